"""Objects as the documents that would make them: no status, nothing that the server set, no default. Pure.

What a person wrote and what the schema filled in can't be told apart in a stored object. So a field that equals its
default is left out: whoever applies the document gets the same object, now and after a default was changed on purpose.
"""

from collections.abc import Iterable
from typing import Any, cast

from covey_api.kinds import Kind
from covey_api.meta import API_VERSION, DEFAULT_NAMESPACE
from covey_api.node import Node
from covey_api.registry import KINDS, WRITABLE_KINDS
from covey_api.schema import JsonSchema, render_schema
from covey_controller.stores.files.strict import fill_defaults
from pydantic import ValidationError

EXPORTED_KINDS = tuple(kind for name, kind in KINDS.items() if name in WRITABLE_KINDS)
# What kubectl writes for itself.
_TOOL_ANNOTATIONS = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})

JsonObject = dict[str, Any]


def render_documents(kind: type[Kind], items: Iterable[JsonObject]) -> list[JsonObject]:
    """The documents of one kind's objects, by namespace and name.

    Left out is what nobody wishes for: what is being deleted, and a Node that only joined.
    """
    schema = render_schema(kind)
    chosen = [item for item in items if not item["metadata"].get("deletionTimestamp")]
    documents = [_render_document(kind, item, schema) for item in sorted(chosen, key=_order)]
    return [
        document for document in documents if kind is not Node or len(document) > 3 or len(document["metadata"]) > 1
    ]


def drop_defaults(value: Any, schema: JsonSchema) -> Any:
    """The smallest value that `fill_defaults` makes the same of."""
    if isinstance(value, list):
        return [drop_defaults(entry, schema.get("items", {})) for entry in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    properties: dict[str, JsonSchema] = schema.get("properties", {})
    others: JsonSchema = schema.get("additionalProperties", {})
    kept: JsonObject = {}
    for name, field in cast("JsonObject", value).items():
        below = properties.get(name, others)
        if "default" not in below or fill_defaults(below["default"], below) != field:
            kept[name] = drop_defaults(field, below)
    return kept


def _render_document(kind: type[Kind], item: JsonObject, schema: JsonSchema) -> JsonObject:
    metadata = item["metadata"]
    written: JsonObject = {"name": metadata["name"]}
    namespace = metadata.get("namespace", "")
    if kind.NAMESPACED and namespace not in ("", DEFAULT_NAMESPACE):
        written["namespace"] = namespace
    for field in ("labels", "annotations"):
        found: dict[str, str] = metadata.get(field) or {}
        pairs = {key: value for key, value in found.items() if key not in _TOOL_ANNOTATIONS}
        if pairs:
            written[field] = dict(sorted(pairs.items()))
    document: JsonObject = {"apiVersion": API_VERSION, "kind": kind.__name__, "metadata": written}
    properties: dict[str, JsonSchema] = schema["properties"]
    spec = drop_defaults(_drop_known_defaults(kind, item), properties["spec"])
    if spec or "default" not in properties["spec"]:
        document["spec"] = spec
    return document


def _drop_known_defaults(kind: type[Kind], item: JsonObject) -> JsonObject:
    """The spec without what its type fills in, also in lists, where the schema names no defaults."""
    spec: JsonObject = item.get("spec", {})
    try:
        parsed = cast("Any", kind.model_validate(item)).spec
    except ValidationError:
        return spec
    if not _is_within(spec, parsed.to_wire()):
        return spec  # of another version: nothing that only it knows may be lost
    return parsed.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)


def _is_within(part: Any, whole: Any) -> bool:
    match part, whole:
        case dict(), dict():
            fields, others = cast("JsonObject", part), cast("JsonObject", whole)
            return all(name in others and _is_within(fields[name], others[name]) for name in fields)
        case list(), list():
            entries, found = cast("list[Any]", part), cast("list[Any]", whole)
            return len(entries) == len(found) and all(map(_is_within, entries, found))
        case _:
            return bool(part == whole)


def _order(item: JsonObject) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]
