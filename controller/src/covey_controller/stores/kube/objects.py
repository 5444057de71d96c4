"""Covey's objects as the API server has them: where they are, how they are read and written. Pure.

A list is read no further than to identity and version: nearly all of it is known. To make the objects of all lists was
a quarter of what a controller at rest did, most of it for the garbage collector that so many objects call.

An object that doesn't parse is another version's. When only its status is at fault, that is dropped: the controller
writes it anew. Otherwise it becomes `Unreadable`: known to be there, and nothing is concluded from it.
"""

import json
from dataclasses import dataclass
from typing import cast

import msgspec
from covey_api.fleet import Fleet
from covey_api.kinds import Kind, ObjectKey, Unreadable
from covey_api.meta import API_VERSION, ObjectMeta
from covey_api.node import Node
from covey_api.registry import KINDS
from pydantic import ValidationError

from covey_controller.stores.kube.client import JsonObject

FIELD_OWNER = "covey-controller"
MAX_ERRORS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Sighting:
    """One object as it was at one version."""

    key: ObjectKey
    uid: str
    version: int
    body: JsonObject | msgspec.Raw

    @property
    def is_of_list(self) -> bool:
        return not isinstance(self.body, dict)

    @property
    def raw(self) -> JsonObject:
        """The whole object; parsed now, if it is of a list."""
        return self.body if isinstance(self.body, dict) else cast("JsonObject", json.loads(bytes(self.body)))


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, at one version."""

    version: int
    following: str
    """The word that asks for the next part; empty after the last."""
    sightings: tuple[Sighting, ...]


class _Identity(msgspec.Struct, gc=False, rename="camel"):
    name: str
    uid: str
    resource_version: str
    namespace: str = ""


class _Item(msgspec.Struct, gc=False):
    metadata: _Identity


class _ListMeta(msgspec.Struct, gc=False, rename={"resource_version": "resourceVersion", "following": "continue"}):
    resource_version: str
    following: str = ""


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw]


_LIST, _ITEM = msgspec.json.Decoder(_List), msgspec.json.Decoder(_Item)


def collection_path(kind: type[Kind], namespace: str = "") -> str:
    """Of all namespaces when none is given."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{API_VERSION}{scope}/{kind.PLURAL}"


def object_path(key: ObjectKey) -> str:
    return f"{collection_path(KINDS[key.kind], key.namespace)}/{key.name}"


def sight_object(kind: type[Kind], raw: JsonObject) -> Sighting:
    """Identity and version of what the API server sent. The API server is believed: it always sends both."""
    metadata: dict[str, str] = raw["metadata"]
    key = ObjectKey(kind.__name__, metadata.get("namespace", ""), metadata["name"])
    return Sighting(key, metadata["uid"], int(metadata["resourceVersion"]), raw)


def parse_page(kind: type[Kind], content: bytes) -> Page:
    """An answer to a list. ValueError for what no API server says."""
    try:
        found = _LIST.decode(content)
        sightings = tuple(_sight_item(kind, item) for item in found.items)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the answer must be a list of objects: {error}") from error
    return Page(int(found.metadata.resource_version), found.metadata.following, sightings)


def _sight_item(kind: type[Kind], item: msgspec.Raw) -> Sighting:
    identity = _ITEM.decode(item).metadata
    key = ObjectKey(kind.__name__, identity.namespace, identity.name)
    return Sighting(key, identity.uid, int(identity.resource_version), item)


def parse_object(kind: type[Kind], raw: JsonObject) -> tuple[Kind, str]:
    """The object, and in words what about it can't be read (empty: nothing)."""
    try:
        return kind.model_validate(raw), ""
    except ValidationError as error:
        words = _faults(error)
    try:
        return kind.model_validate({**raw, "status": {}}), f"its status is written anew: {words}"
    except ValidationError:
        metadata = ObjectMeta.model_validate(raw["metadata"])
        return Unreadable(kind=kind.__name__, metadata=metadata), f"it is left alone: {words}"


def render_new(item: Kind) -> JsonObject:
    """The body that creates it: what the API server fills in is left out."""
    wire = item.to_wire()
    metadata: dict[str, object] = wire["metadata"]
    kept = ("name", "namespace", "labels", "annotations", "finalizers")
    wire["metadata"] = {name: metadata[name] for name in kept if metadata.get(name)}
    wire.pop("status", None)
    if isinstance(item, Node | Fleet):
        # Defaults are left to the API server: people own every field of such a spec, from the first on.
        wire["spec"] = item.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return wire


def _faults(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)
    fields = (f"`{'.'.join(str(step) for step in each['loc'])}`: {each['msg']}" for each in found[:MAX_ERRORS_SHOWN])
    return "; ".join(fields)
