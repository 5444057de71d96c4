"""Finalizers: what holds an object until everything that runs by it was drained, and what follows from not having it.

| object | finalizer | what it is |
|---|---|---|
| not being deleted | there | held |
| not being deleted | missing | to be held: `HoldObject` |
| being deleted | there | drained, then let go of: `DeleteObject` |
| being deleted | gone | gone: somebody else's finalizer keeps the object, and its name |

An object that can't be read (`Unreadable`) is another version's: nothing that runs by it is drained, and nothing is
made of it. It is let go of when it is deleted, once nothing of it runs that is known.
"""

from collections.abc import Iterable

from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey, Unreadable
from covey_api.meta import DRAIN_FINALIZER, ObjectMeta
from covey_api.node import Node
from covey_api.placement import Placement

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.outcomes import DeleteObject, HoldObject

# A tuple: quicker than a union.
_HELD = (Placement, Instance, Node)


def is_held(item: Kind) -> bool:
    return DRAIN_FINALIZER in item.metadata.finalizers


def held_metadata(name: str, namespace: str = "") -> ObjectMeta:
    """Of an object that is made here."""
    return ObjectMeta(name=name, namespace=namespace, finalizers=(DRAIN_FINALIZER,))


def is_leaving(item: Kind) -> bool:
    """Its deletion was asked for."""
    return item.metadata.deletion_timestamp is not None


def is_gone(item: Kind) -> bool:
    """Let go of already; only its name is still taken."""
    return is_leaving(item) and not is_held(item) and isinstance(item, Placement | Instance)


def taken_names(objects: Iterable[Kind]) -> frozenset[ObjectKey]:
    """Of Instances that a plan doesn't see, and must not make again."""
    return frozenset(
        item.key
        for item in objects
        if (_is_unreadable(item) or (is_leaving(item) and is_gone(item))) and item.key.kind == Instance.__name__
    )


def unreadable_placements(objects: Iterable[Kind]) -> frozenset[ObjectKey]:
    """Of which nobody knows what they ask for: what runs by them goes on."""
    return frozenset(
        item.key
        for item in objects
        if _is_unreadable(item) and item.key.kind == Placement.__name__ and not is_leaving(item)
    )


def plan_finalizers(draft: Draft, objects: Iterable[Kind]) -> None:
    """Hold what is not held, and let go of what can't be read and is to be deleted."""
    for item in objects:
        if isinstance(item, _HELD):
            if is_held(item) or is_leaving(item):
                continue
            metadata = item.metadata.model_copy(update={"finalizers": (*item.metadata.finalizers, DRAIN_FINALIZER)})
            draft.actions.append(HoldObject(item.model_copy(update={"metadata": metadata})))
        elif _is_unreadable(item) and is_leaving(item) and is_held(item) and not draft.sights_of(item.key):
            draft.actions.append(DeleteObject(item.key, item.metadata.uid))


def _is_unreadable(item: Kind) -> bool:
    return type(item) is Unreadable
