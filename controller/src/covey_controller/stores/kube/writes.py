"""Writes of Covey's objects: each with its precondition, each answer into the mirror. They decide nothing.

Server-side apply for status, with one field manager; merge patches that carry the `resourceVersion` for the rest, since
a stale one is a conflict to the API server, where the test of a JSON patch is an invalid request. Of what a person
wrote, nothing is ever touched but `metadata.finalizers`.
"""

from http import HTTPStatus
from typing import TypeVar

from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import API_VERSION, DRAIN_FINALIZER, Status
from covey_api.node import Node
from covey_api.registry import KINDS

from covey_controller.ports import Conflict, CreatedT, HeldT, Refused
from covey_controller.stores.kube.client import APPLY_PATCH, MERGE_PATCH, JsonObject, KubeClient
from covey_controller.stores.kube.errors import KindsOutdated, KubeError
from covey_controller.stores.kube.mirror import Entry
from covey_controller.stores.kube.news import News
from covey_controller.stores.kube.objects import FIELD_OWNER, collection_path, object_path, render_new
from covey_controller.stores.kube.sync import Sync

STRICT = {"fieldManager": FIELD_OWNER, "fieldValidation": "Strict"}
# Somebody else's finalizers and ours may change at the same time; each failed try means that theirs did.
MAX_TRIES = 5
WrittenT = TypeVar("WrittenT", bound=Kind)


class ObjectWriter:
    """Creates, changes and deletes objects at the API server."""

    def __init__(self, client: KubeClient, sync: Sync, news: News) -> None:
        self._client = client
        self._sync = sync
        self._news = news

    def entry(self, key: ObjectKey) -> Entry | None:
        return self._sync.mirrors[KINDS[key.kind]].entries.get(key)

    async def create(self, item: CreatedT) -> CreatedT:
        """Conflict if the name is taken, or the namespace is going."""
        key = item.key
        if self.entry(key) is not None:
            raise Conflict(f"'{key}' exists already")
        with self._news.own_write(key) as write:
            try:
                if isinstance(item, Node):
                    raw = await self.apply_new(item)
                else:
                    path = collection_path(type(item), key.namespace)
                    raw = await self._client.request("POST", path, body=render_new(item), query=STRICT)
            except KubeError as error:
                raise _refused_creation(key, error) from error
            write.version = _version(raw)
            return self._take(item, raw)

    async def apply_new(self, item: Kind) -> JsonObject:
        """Make an object that is people's to write, unless there is one: it owns no field that they may set.

        A POST would own every default, and the first `kubectl apply` of another value would be a conflict.
        """
        body = render_new(item)
        return await self._client.request(
            "PATCH", object_path(item.key), body=body, content_type=APPLY_PATCH, query=STRICT
        )

    async def update(self, item: HeldT) -> HeldT:
        """Conflict as the port says."""
        key, version = item.key, item.metadata.resource_version
        entry = self._require(key, item.metadata.uid)
        if str(entry.version) != version:
            raise Conflict(
                f"'{key}' has changed: its resourceVersion is {entry.version}, the change was made to {version}"
            )
        body = _difference(entry.object, item)
        if not body:
            return item
        with self._news.own_write(key) as write:
            raw = await self._patch(key, version, body)
            write.version = _version(raw)
            return self._take(item, raw)

    async def delete(self, key: ObjectKey, uid: str) -> None:
        """Ask for its deletion, and let go of it. One that is gone already is no conflict."""
        entry = self.entry(key)
        if entry is None:
            return
        self._require(key, uid)
        with self._news.own_write(key) as write:
            if entry.object.metadata.deletion_timestamp is None:
                if key.kind != Instance.__name__:
                    raise Conflict(f"nobody asked for the deletion of '{key}'")
                await self._ask_deletion(key, uid)
            await self._let_go(key, uid)
            write.removed()

    async def apply_status(self, key: ObjectKey, status: Status) -> None:
        """Replace the status of the object as it is known. Nothing if there is none, or it has this status."""
        entry = self.entry(key)
        stored: object = getattr(entry.object, "status", None) if entry else None
        if entry is None or stored == status:
            return
        if type(stored) is not type(status):
            raise TypeError(f"status of '{key}' must be a {type(stored).__name__}; got a {type(status).__name__}")
        identity = {"name": key.name, "uid": entry.uid, "resourceVersion": str(entry.version)}
        metadata = identity | ({"namespace": key.namespace} if key.namespace else {})
        body = {"apiVersion": API_VERSION, "kind": key.kind, "metadata": metadata, "status": status.to_wire()}
        path, query = f"{object_path(key)}/status", STRICT | {"force": "true"}
        with self._news.own_write(key) as write:
            try:
                raw = await self._client.request("PATCH", path, body=body, content_type=APPLY_PATCH, query=query)
            except KubeError as error:
                if error.is_missing:
                    self._sync.observe_missing(key, entry.uid)
                    return
                if error.is_refusal:
                    raise Refused(f"the status of '{key}' can't be written: {error.message}") from error
                raise _conflict_or(error, key) from error
            write.version = _version(raw)
            self._sync.observe(KINDS[key.kind], raw)

    async def _patch(self, key: ObjectKey, version: str, body: JsonObject) -> JsonObject:
        metadata: JsonObject = body.get("metadata") or {}
        body = {**body, "metadata": {**metadata, "resourceVersion": version}}
        try:
            return await self._client.request(
                "PATCH", object_path(key), body=body, content_type=MERGE_PATCH, query=STRICT
            )
        except KubeError as error:
            if error.is_missing:
                raise Conflict(f"'{key}' doesn't exist any more") from error
            # An Instance's rules are Covey's own: a term that fell is somebody else's newer one.
            if error.is_refusal and (key.kind != Instance.__name__ or not error.is_invalid):
                raise Refused(f"'{key}' can't be changed: {error.message}") from error
            raise _conflict_or(error, key) from error

    async def _ask_deletion(self, key: ObjectKey, uid: str) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._client.request("DELETE", object_path(key), body=body)
        except KubeError as error:
            if error.is_refusal:
                raise Refused(f"'{key}' can't be deleted: {error.message}") from error
            if not error.is_missing:
                raise _conflict_or(error, key) from error

    async def _let_go(self, key: ObjectKey, uid: str) -> None:
        """Take our finalizer away; whoever else holds the object keeps it."""
        for _ in range(MAX_TRIES):
            try:
                raw = await self._client.request("GET", object_path(key))
                metadata: JsonObject = raw["metadata"]
                held: list[str] = metadata.get("finalizers") or []
                if metadata["uid"] != uid:
                    break
                if DRAIN_FINALIZER not in held:
                    self._sync.observe(KINDS[key.kind], raw)
                    return
                left = [each for each in held if each != DRAIN_FINALIZER]
                body: JsonObject = {
                    "metadata": {"finalizers": left or None, "resourceVersion": metadata["resourceVersion"]}
                }
                raw = await self._client.request("PATCH", object_path(key), body=body, content_type=MERGE_PATCH)
            except KubeError as error:
                if error.is_missing:
                    break
                if error.is_conflict:
                    continue
                if error.is_refusal:
                    raise Refused(f"'{key}' can't be let go of: {error.message}") from error
                raise
            if left:
                self._sync.observe(KINDS[key.kind], raw)
                return
            break
        else:
            raise Conflict(f"'{key}' is written by others all the time")
        self._sync.observe_missing(key, uid)

    def _require(self, key: ObjectKey, uid: str) -> Entry:
        entry = self.entry(key)
        if entry is None:
            raise Conflict(f"'{key}' doesn't exist any more")
        if entry.uid != uid:
            raise Conflict(f"'{key}' was made again: its uid is {entry.uid}, not {uid}")
        return entry

    def _take(self, item: WrittenT, raw: JsonObject) -> WrittenT:
        """What was written, as it is stored now."""
        self._sync.observe(type(item), raw)
        return type(item).model_validate(raw)


def _difference(stored: Kind, wish: Kind) -> JsonObject:
    """The merge patch from one to the other; empty if there is nothing to write."""
    body: JsonObject = {}
    if stored.metadata.finalizers != wish.metadata.finalizers:
        body["metadata"] = {"finalizers": list(wish.metadata.finalizers)}
    if isinstance(wish, Instance) and isinstance(stored, Instance) and stored.spec != wish.spec:
        before, after = stored.spec.to_wire(), wish.spec.to_wire()
        body["spec"] = {name: value for name, value in after.items() if before.get(name) != value}
    return body


def _refused_creation(key: ObjectKey, error: KubeError) -> Exception:
    if error.is_unknown_field:
        return KindsOutdated(error)
    if error.is_conflict:
        return Conflict(f"'{key}' exists already")
    words = f"'{key}' can't be made: {error.message}"
    # Its kind is gone, or goes: what else there is to write, such as letting go of what went with it, may not wait.
    if (error.is_missing and "namespaces" not in error.message) or error.status == HTTPStatus.METHOD_NOT_ALLOWED:
        return Refused(words)
    # Of its namespace: there is another one soon, or none.
    is_ending = any(each in error.message for each in ("being terminated", "is terminating"))
    if error.is_missing or (error.status == HTTPStatus.FORBIDDEN and is_ending):
        return Conflict(words)
    return Refused(words) if error.is_refusal else error


def _conflict_or(error: KubeError, key: ObjectKey) -> Exception:
    """A precondition or a rule of the kind that didn't hold is a conflict; all else is what it is."""
    if error.is_unknown_field:
        return KindsOutdated(error)
    if error.is_conflict:
        return Conflict(f"'{key}' has changed: its resourceVersion is another one now")
    return Conflict(f"'{key}': {error.message}") if error.is_invalid else error


def _version(raw: JsonObject) -> float:
    return float(raw["metadata"]["resourceVersion"])
