"""Placements for which the store refuses a write, for a rule of its own: an admission policy, a quota, a missing right.

One namespace's rule must not stop the fleet: such a Placement is shown to the reconciler as one that can't be read, so
what runs by it goes on and everything else is planned; after a while it is tried again. Rejected: to skip the one
action, since what is published with it speaks of an object that isn't stored.
"""

from collections.abc import Mapping

from covey_api.kinds import Kind, ObjectKey, Unreadable
from covey_api.placement import Placement

from covey_controller.reconcile.finalizers import is_leaving
from covey_controller.reconcile.outcomes import Action, CreateInstance, HoldObject, UpdateInstance

# Somebody has to change a rule meanwhile. Each try ends a turn of the whole fleet, which begins anew at once.
AGAIN_SECONDS = 30.0


class SetAside:
    """In the leader's memory only; one event loop, no locks."""

    def __init__(self) -> None:
        self._until: dict[ObjectKey, float] = {}

    @property
    def wake_at(self) -> float:
        """When the next one is tried again."""
        return min(self._until.values(), default=float("inf"))

    def add(self, action: Action, objects: Mapping[ObjectKey, Kind], now: float) -> Placement | None:
        """The Placement that the refused action was for; None if there is none to set aside."""
        placement = objects.get(_owner_of(action))
        if not isinstance(placement, Placement) or is_leaving(placement) or placement.key in self._until:
            return None
        self._until[placement.key] = now + AGAIN_SECONDS
        return placement

    def was_added(self, action: Action, now: float) -> bool:
        """Whether another action's refusal at this very time set its Placement aside: several are tried at once."""
        return self._until.get(_owner_of(action)) == now + AGAIN_SECONDS

    def hide(self, objects: Mapping[ObjectKey, Kind], now: float) -> tuple[Kind, ...]:
        """All objects, without what is set aside now."""
        self._until = {key: until for key, until in self._until.items() if now < until and key in objects}
        return tuple(_unread(item) if key in self._until else item for key, item in objects.items())


def _owner_of(action: Action) -> ObjectKey:
    match action:
        case CreateInstance(item) | UpdateInstance(item):
            return ObjectKey(Placement.__name__, item.key.namespace, item.spec.placement)
        case HoldObject(item):
            return item.key
        case _:
            return ObjectKey("", "", "")


def _unread(item: Kind) -> Kind:
    if is_leaving(item):
        return item
    metadata = item.metadata.model_copy(update={"namespace": item.key.namespace})
    return Unreadable(kind=item.key.kind, metadata=metadata)
