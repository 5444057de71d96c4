"""Documents on their way to the API server: which objects they name, where each is written, and refusals by line.

The API server decides what is valid. Once it has refused, the words are those of files mode wherever the same rule is
known here: they name what must hold, and the line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import httpx
from covey_api.kinds import Kind
from covey_api.meta import API_VERSION
from covey_api.registry import KINDS
from covey_controller.ports import InvalidSet
from covey_controller.stores.files.documents import parse_objects
from covey_controller.stores.files.yaml_positions import YamlNode, parse_yaml

from covey.control import InvalidDocuments
from covey.documents import Documents
from covey.kube.context import Context
from covey.kube.refusals import refusal_of, shorten, status_of
from covey.ports import JsonObject

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_UNDECLARED = re.compile(r"\.(?P<field>[^\s:]+): (?P<words>field not declared in schema|expected [^\n]+)")
_STRICT = re.compile(r'unknown field "(?P<field>[^"]+)"')


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object that is written in a document."""

    kind: type[Kind]
    namespace: str
    """Empty for cluster-scoped kinds."""
    name: str
    body: JsonObject
    file: str
    node: YamlNode

    @property
    def result(self) -> JsonObject:
        """How results name it."""
        return {"kind": self.kind.__name__, "namespace": self.namespace, "name": self.name}

    def refuse(self, field: str, message: str) -> JsonObject:
        """An error at a field."""
        line = self.node.line_of(parse_field(field), key=True)
        return {"file": self.file, "line": line, "field": field, "found": "", "message": message}


def parse_manifests(documents: Documents, namespace: str) -> list[Manifest]:
    """Every object that the documents name. InvalidDocuments where one can't be told."""
    errors: list[JsonObject] = []
    manifests: list[Manifest] = []
    for file, text in documents.texts:
        source = parse_yaml(text.encode())
        errors += [_error(file, each.line, each.message) for each in source.problems]
        for node in (item for document in source.documents for item in _expand(document)):
            parsed = _parse(file, node, namespace)
            if isinstance(parsed, Manifest):
                manifests.append(parsed)
            else:
                errors.append(parsed)
    if errors:
        raise InvalidDocuments(errors)
    return manifests


def _expand(node: YamlNode) -> Iterator[YamlNode]:
    """The entries of a `v1` List; any other document as it is."""
    fields = node.fields
    is_list = [fields[name].value for name in ("apiVersion", "kind") if name in fields] == ["v1", "List"]
    entries = fields.get("items")
    if is_list and entries is not None and isinstance(entries.value, list):
        for entry in entries.entries:
            yield from _expand(entry)
    else:
        yield node


def _parse(file: str, node: YamlNode, namespace: str) -> Manifest | JsonObject:
    value: Any = node.value
    if not isinstance(value, dict):
        return _error(file, node.line, "a document must be a mapping with `apiVersion`, `kind` and `metadata`")
    body = cast(JsonObject, value)
    kind = KINDS.get(str(body.get("kind"))) if body.get("apiVersion") == API_VERSION else None
    if kind is None:
        found = f"'{body.get('apiVersion')}' '{body.get('kind')}'"
        words = f"`apiVersion` and `kind` must be '{API_VERSION}' and one of {', '.join(KINDS)}; got {shorten(found)}"
        return _error(file, node.line, f"{words}. Give other objects to `kubectl apply`.")
    metadata: Any = body.get("metadata")
    known = cast(JsonObject, metadata) if isinstance(metadata, dict) else {}
    name, place = known.get("name"), known.get("namespace")
    if not isinstance(name, str) or not name:
        return _error(file, node.line, "`metadata.name` must be given")
    written = str(place) if place else namespace
    return Manifest(kind, written if kind.NAMESPACED else "", name, body, file, node)


def _error(file: str, line: int, message: str) -> JsonObject:
    return {"file": file, "line": line, "field": "", "found": "", "message": message}


def explain_invalid(
    refused: list[tuple[Manifest, httpx.Response]], documents: Documents, context: Context
) -> Exception:
    """Every refusal of a set as one error: by files mode's words where it refuses too, else by the server's.

    What is no matter of the document (rights, logins, a missing namespace) is told as it is, and first.
    """
    for _, response in refused:
        if not is_about_document(response):
            return refusal_of(response, context)
    if not any(response.status_code == HTTPStatus.CONFLICT for _, response in refused):
        try:
            for name, text in documents.texts:
                parse_objects(text, name)
        except InvalidSet as invalid:
            fields = ("file", "line", "field", "found", "message")
            return InvalidDocuments([{field: getattr(each, field) for field in fields} for each in invalid.errors])
    return InvalidDocuments([error for manifest, response in refused for error in _errors_of(manifest, response)])


def is_about_document(response: httpx.Response) -> bool:
    """Whether the server refused what is written, rather than who asks or where."""
    message = str(status_of(response).get("message", ""))
    is_typed = bool(_UNDECLARED.search(message)) or "failed to create typed" in message
    return is_typed or response.status_code in (
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.CONFLICT,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    )


def _errors_of(manifest: Manifest, response: httpx.Response) -> Iterator[JsonObject]:
    """1. Another manager's fields. 2. Causes by field. 3. Fields that the schema doesn't know. 4. As it says."""
    status = status_of(response)
    message = str(status.get("message") or response.text)
    details = cast(JsonObject, status.get("details") or {})
    causes = cast("list[JsonObject]", details.get("causes") or [])
    told = [each for each in causes if each.get("field") not in (None, "", "<nil>")]
    typed = list(_UNDECLARED.finditer(message))
    strict = list(_STRICT.finditer(message))
    name = f"{manifest.kind.SINGULAR} '{shorten(manifest.name)}'"
    if response.status_code == HTTPStatus.CONFLICT and told:  # 1
        yield from (_explain_conflict(manifest, name, each) for each in told)
    elif told:  # 2
        seen = {str(each["field"]).lstrip("."): str(each["message"]) for each in reversed(told)}
        for field, words in reversed(seen.items()):
            yield manifest.refuse(field, f"`{shorten(field)}` of {name} is refused: {shorten(words)}")
    elif typed or strict:  # 3
        for each in typed:
            yield manifest.refuse(each["field"], f"`{shorten(each['field'])}` of {name}: {shorten(each['words'])}")
        for each in strict:
            yield manifest.refuse(each["field"], f"`{shorten(each['field'])}` of {name}: unknown field")
    else:  # 4
        yield manifest.refuse("", f"{name} is refused: {shorten(message)}")


def _explain_conflict(manifest: Manifest, name: str, cause: JsonObject) -> JsonObject:
    field = str(cause["field"]).lstrip(".")
    owner = str(cause["message"]).removeprefix("conflict with ").split(" with ")[0].split(" using ")[0].strip('"')
    words = f"`{field}` of {name} is managed by '{owner}', which gave it another value"
    take = "take it over with `kubectl apply --server-side --force-conflicts --field-manager=covey -f FILE`"
    return manifest.refuse(field, f"{words}. Change it there, leave the field out here, or {take}.")


def parse_field(field: str) -> tuple[str | int, ...]:
    """`spec.variants[0].name` as steps."""
    return tuple(int(index) if index else key for key, index in _STEP.findall(field))
