"""Metadata of stored objects, as Kubernetes would write it. Pure: ids, versions and times are arguments.

`uid` once per object, `resourceVersion` with every write, `generation` with every change of `spec`.
"""

from typing import TypeVar

from covey_api.access_key import AccessKey
from covey_api.fleet import Fleet
from covey_api.instance import Instance, InstanceGoal, InstanceSpec
from covey_api.kinds import Kind
from covey_api.meta import ObjectMeta
from covey_api.model import Model
from covey_api.node import Node, NodeSpec
from covey_api.placement import Placement

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


def transition_faults(before: InstanceSpec, after: InstanceSpec) -> tuple[str, ...]:
    """The CRD's transition rules for an Instance's spec that a change breaks, in the CRD's words."""
    rules = (
        (after.term >= before.term, "`spec.term` must never fall"),
        (after.attempt >= before.attempt, "`spec.attempt` must never fall"),
        (after.instance_id == before.instance_id, "`spec.instanceId` must not change"),
        (after.goal in (before.goal, InstanceGoal.DRAIN), "`spec.goal` must only go from 'Run' to 'Drain'"),
    )
    return tuple(message for holds, message in rules if not holds)
