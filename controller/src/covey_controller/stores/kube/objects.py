"""Covey's objects as the API server has them: where they are, how they are read and written. Pure.

An object that doesn't parse is another version's. When only its status is at fault, that is dropped: the controller
writes it anew. Otherwise it becomes `Unreadable`: known to be there, and nothing is concluded from it.
"""

from dataclasses import dataclass

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
    raw: JsonObject


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
