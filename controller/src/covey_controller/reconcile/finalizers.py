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

from covey_api.kinds import Kind
from covey_api.meta import DRAIN_FINALIZER, ObjectMeta

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.index import HELD
from covey_controller.reconcile.outcomes import DeleteObject, HoldObject


def held_metadata(name: str, namespace: str = "") -> ObjectMeta:
    """Of an object that is made here."""
    return ObjectMeta(name=name, namespace=namespace, finalizers=(DRAIN_FINALIZER,))


def plan_finalizers(draft: Draft, objects: Iterable[Kind]) -> None:
    """Hold what is not held, and let go of what can't be read and is to be deleted: `Indexed.finalizing`."""
    for item in objects:
        if isinstance(item, HELD):
            metadata = item.metadata.model_copy(update={"finalizers": (*item.metadata.finalizers, DRAIN_FINALIZER)})
            draft.actions.append(HoldObject(item.model_copy(update={"metadata": metadata})))
        elif not draft.sights_of(item.key):
            draft.actions.append(DeleteObject(item.key, item.metadata.uid))
