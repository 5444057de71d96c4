"""`KubeControl`: a fleet's objects at the API server itself, as the user who asks."""

import hashlib
import secrets
from collections.abc import Iterator
from http import HTTPStatus
from typing import cast
from urllib.parse import quote

import httpx
from covey_api.access_key import KEY_PREFIX, AccessKey
from covey_api.meta import API_VERSION
from covey_api.registry import parse_kind

from covey.changes import diff_objects
from covey.documents import Documents
from covey.errors import CommandError, ExitCode
from covey.kube.api import FIELD_MANAGER, KubeApi, path_of
from covey.kube.manifests import Manifest, explain_invalid, parse_manifests
from covey.kube.refusals import Refusal, refusal_of
from covey.kube.watch import watch_kinds
from covey.ports import JsonObject

# As the controller makes them: nobody guesses 256 bits.
_KEY_BYTES = 32
# What only the server writes and nobody reads; kubectl leaves it out too.
_UNSHOWN = ("managedFields",)
EVENTS_NAMESPACE = "default"


class KubeControl:
    """`Objects` of ports.py."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    def list_objects(self, plural: str, namespace: str | None = None) -> list[JsonObject]:
        items, _ = self._api.list_all(path_of(parse_kind(plural), namespace))
        return [_shown(item) for item in items]

    def get_object(self, plural: str, namespace: str, name: str) -> JsonObject:
        return _shown(self._api.call("GET", path_of(parse_kind(plural), namespace, name)))

    def list_events(self, plural: str, namespace: str, name: str) -> list[JsonObject]:
        """Those of a cluster-scoped object are in namespace `default`."""
        kind = parse_kind(plural).__name__
        wanted = {"involvedObject.kind": kind, "involvedObject.name": name, "involvedObject.apiVersion": API_VERSION}
        params = {"fieldSelector": ",".join(f"{field}={value}" for field, value in wanted.items())}
        path = f"/api/v1/namespaces/{quote(namespace or EVENTS_NAMESPACE, safe='')}/events"
        items, _ = self._api.list_all(path, params)
        return [
            {
                "reason": item.get("reason", ""),
                "message": item.get("message", ""),
                "warning": item["type"] == "Warning",
                "seen": _moment(item),
            }
            for item in sorted(items, key=_moment)
        ]

    def watch_objects(self, plurals: list[str], namespace: str | None) -> Iterator[JsonObject]:
        for change in watch_kinds(self._api, [parse_kind(plural) for plural in plurals], namespace):
            yield {**change, "object": _shown(change["object"])} if change else {}

    def check_documents(self, documents: Documents, namespace: str) -> list[JsonObject]:
        return [_shown(made) for _, made in self._check(parse_manifests(documents, namespace), documents)]

    def apply_documents(self, documents: Documents, namespace: str, author: str = "") -> list[JsonObject]:
        """Server-side, and only once a dry run of every document went well: a set as a whole, as far as can be had."""
        manifests = parse_manifests(documents, namespace)
        results: list[JsonObject] = []
        for manifest, (live, _) in zip(manifests, self._check(manifests, documents), strict=True):
            response = self._patch(manifest)
            if response.is_error:
                error = explain_invalid([(manifest, response)], documents, self._api.context)
                done = ", ".join(f"{each['kind']} {each['name']}" for each in results)
                raise CommandError(f"{error}\n(applied before it: {done or 'nothing'})") from None
            results.append(manifest.result | {"outcome": _outcome(live, cast(JsonObject, response.json()))})
        return results

    def _check(self, manifests: list[Manifest], documents: Documents) -> list[tuple[JsonObject | None, JsonObject]]:
        """Of each: the object as it is, and as it would be. InvalidDocuments with every refusal."""
        checked: list[tuple[JsonObject | None, JsonObject]] = []
        refused: list[tuple[Manifest, httpx.Response]] = []
        for manifest in manifests:
            live = self._find(manifest)
            response = self._patch(manifest, dry=True)
            if response.is_error:
                refused.append((manifest, response))
            else:
                checked.append((live, cast(JsonObject, response.json())))
        if refused:
            raise explain_invalid(refused, documents, self._api.context)
        return checked

    def _find(self, manifest: Manifest) -> JsonObject | None:
        response = self._api.send("GET", path_of(manifest.kind, manifest.namespace, manifest.name))
        if response.status_code == HTTPStatus.NOT_FOUND and response.headers.get("content-type", "").startswith(
            "application/json"
        ):
            return None
        if response.is_error:
            raise refusal_of(response, self._api.context)
        return cast(JsonObject, response.json())

    def _patch(self, manifest: Manifest, *, dry: bool = False) -> httpx.Response:
        params = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"} | ({"dryRun": "All"} if dry else {})
        path = path_of(manifest.kind, manifest.namespace, manifest.name)
        return self._api.send("PATCH", path, manifest.body, params=params, headers=_APPLY)

    def delete_keys(self, keys: list[JsonObject], author: str = "") -> list[JsonObject]:
        """Nothing is deleted unless all are there."""
        paths = [path_of(parse_kind(key["kind"]), key["namespace"], key["name"]) for key in keys]
        for path in paths:
            try:
                self._api.call("GET", path)
            except Refusal as refusal:
                if refusal.code is ExitCode.NOTHING_MATCHED:
                    raise CommandError(f"nothing was deleted: {refusal}", refusal.code) from None
                raise
        for path in paths:
            self._api.call("DELETE", path)
        return [key | {"outcome": "deleted"} for key in keys]

    def create_key(self, name: str, namespace: str, limits: JsonObject) -> str:
        """Made here: the API server sees its hash alone, and the user's own right to create it decides."""
        text = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
        spec = {"hash": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"} | limits
        body = {"apiVersion": API_VERSION, "kind": AccessKey.__name__, "metadata": {"name": name}, "spec": spec}
        params = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        try:
            self._api.call("POST", path_of(AccessKey, namespace), body, params=params)
        except Refusal as refusal:
            if refusal.status == HTTPStatus.CONFLICT:
                words = f"access key '{name}' exists in namespace '{namespace}'; choose another name or delete it first"
                raise CommandError(words) from None
            raise
        return text


_APPLY = {"content-type": "application/apply-patch+yaml"}


def _shown(item: JsonObject) -> JsonObject:
    metadata = {key: value for key, value in item["metadata"].items() if key not in _UNSHOWN}
    return item | {"metadata": metadata}


def _outcome(live: JsonObject | None, applied: JsonObject) -> str:
    """By content: the server gives the first apply that changes nothing a new resourceVersion all the same."""
    if live is None:
        return "created"
    return "configured" if diff_objects(live, applied) else "unchanged"


def _moment(event: JsonObject) -> str:
    """When it was seen last: old and new writers of Events say it in different fields."""
    series = cast(JsonObject, event.get("series") or {})
    found = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(found or event["metadata"].get("creationTimestamp") or "")
