"""Metadata of stored objects, as Kubernetes would write it. Pure: ids, versions and times are arguments.

`uid` once per object, `resourceVersion` with every write, `generation` with every change of `spec`.
"""

from typing import TypeVar

from covey_api.access_key import AccessKey
from covey_api.fleet import Fleet
from covey_api.instance import Instance
from covey_api.kinds import Kind
from covey_api.meta import DRAIN_FINALIZER, ObjectMeta
from covey_api.model import Model
from covey_api.node import Node, NodeSpec
from covey_api.placement import Placement

# Nobody but this store removes a row, so every object counts as held, from the first on.
HELD = (DRAIN_FINALIZER,)

AnyObject = Model | Placement | Node | Instance | Fleet | AccessKey
ObjectT = TypeVar("ObjectT", bound=AnyObject)


def known(found: Kind) -> AnyObject:
    """The same object as one of the kinds there are."""
    if not isinstance(found, AnyObject):
        raise TypeError(f"kind must be one that Covey stores; got '{type(found).__name__}'")
    return found


def new_object(wish: ObjectT, uid: str, version: str, now: str) -> ObjectT:
    """The object as first stored: its own name, labels, annotations and spec; no status, whatever it came with."""
    metadata = ObjectMeta(
        name=wish.metadata.name,
        namespace=wish.key.namespace,
        labels=wish.metadata.labels,
        annotations=wish.metadata.annotations,
        uid=uid,
        resource_version=version,
        generation=1,
        creation_timestamp=now,
        finalizers=HELD,
    )
    return wish.model_copy(update={"metadata": metadata, "status": type(wish.status)()})


def changed_object(stored: ObjectT, wish: AnyObject, version: str) -> ObjectT:
    """The stored object with a wish's labels, annotations and spec; the stored one itself when they are the same.

    A deletion that was asked for is withdrawn when somebody wishes for the object again.
    """
    is_new_spec = stored.spec != wish.spec
    metadata = stored.metadata.model_copy(
        update={
            "labels": wish.metadata.labels,
            "annotations": wish.metadata.annotations,
            "deletion_timestamp": wish.metadata.deletion_timestamp,
            "generation": stored.metadata.generation + is_new_spec,
        }
    )
    if not is_new_spec and metadata == stored.metadata:
        return stored
    metadata = metadata.model_copy(update={"resource_version": version})
    return stored.model_copy(update={"metadata": metadata, "spec": wish.spec})


def without_document(stored: AnyObject, version: str, deletion: str | None) -> Node | None:
    """What stays of an object when its document goes. None: nothing.

    A machine stays: its Node takes nothing new, and with a deletion it is to be drained too. A Node that never
    reported is only words in a document, and goes with it.
    """
    if not isinstance(stored, Node) or stored.status.facts is None:
        return None
    wish = Node(
        metadata=ObjectMeta(name=stored.metadata.name, deletion_timestamp=deletion), spec=NodeSpec(unschedulable=True)
    )
    return changed_object(stored, wish, version)


def held(stored: ObjectT) -> ObjectT:
    """The object as this version keeps it: rows of older ones had no finalizers."""
    if stored.metadata.finalizers == HELD:
        return stored
    return stored.model_copy(update={"metadata": stored.metadata.model_copy(update={"finalizers": HELD})})
