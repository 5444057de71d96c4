"""What the store refuses to write, for a rule of its own: an admission policy, a quota, a missing right.

One namespace's rule must not stop the fleet: a Placement that a refused write was for is shown to the reconciler as one
that can't be read, so what runs by it goes on and everything else is planned; after a while it is tried again. Its
status says so, if that may be written. Rejected: to skip the one action, since what is published with it speaks of an
object that isn't stored.

A refused action that is for no Placement (a Node, an Instance that nobody wishes, a deletion) is skipped all the same:
nothing is placed by it, and a Node that can't be made would stop every turn. It is tried again ever more rarely.

So is a status that is refused, until it would say something else than the time of its conditions: that may be taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey_api.kinds import Kind, ObjectKey, Unreadable
from covey_api.meta import ConditionStatus, Status
from covey_api.placement import Placement, PlacementStatus
from covey_api.reasons import ReadyReason

from covey_controller.reconcile.conditions import conditions_of
from covey_controller.reconcile.index import is_leaving
from covey_controller.reconcile.outcomes import (
    Action,
    CreateInstance,
    CreateNode,
    DeleteObject,
    HoldObject,
    Stalled,
    StatusWrite,
    UpdateInstance,
)

# Somebody has to change a rule meanwhile. Each try ends a turn of the whole fleet, which begins anew at once.
AGAIN_SECONDS = 30.0
# Of what is for no Placement: the delay doubles up to this, since each try is told and ends a turn.
MAX_AGAIN_SECONDS = 1_800.0


@dataclass(frozen=True, slots=True)
class _Barred:
    until: float
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class _Untold:
    status: Status
    """Without times."""
    barred: _Barred


class SetAside:
    """In the leader's memory only; one event loop, no locks."""

    def __init__(self) -> None:
        self._until: dict[ObjectKey, float] = {}
        self._barred: dict[tuple[type[Action], ObjectKey], _Barred] = {}
        self._untold: dict[ObjectKey, _Untold] = {}

    @property
    def wake_at(self) -> float:
        """When the next one is tried again."""
        barred = (*self._barred.values(), *(each.barred for each in self._untold.values()))
        return min([*self._until.values(), *(each.until for each in barred)], default=float("inf"))

    @property
    def holds_statuses(self) -> bool:
        """Whether something that should be told isn't stored."""
        return bool(self._untold)

    def add(self, action: Action, objects: Mapping[ObjectKey, Kind], now: float) -> Placement | None:
        """The Placement that the refused action was for; None if there is none to set aside."""
        placement = objects.get(_owner_of(action))
        if not isinstance(placement, Placement) or is_leaving(placement) or placement.key in self._until:
            self._bar(action, now)
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

    def allow(self, actions: tuple[Action, ...], now: float) -> tuple[Action, ...]:
        """The planned actions, without those that were refused lately. What isn't planned any more is forgotten."""
        planned = {_identity_of(action) for action in actions}
        self._barred = {key: each for key, each in self._barred.items() if key in planned}
        if not self._barred:
            return actions
        barred = {key for key, each in self._barred.items() if now < each.until}
        return tuple(action for action in actions if _identity_of(action) not in barred)

    def add_status(self, write: StatusWrite, now: float) -> None:
        """It was refused."""
        before, status = self._untold.get(write.key), _without_times(write.status)
        is_same = before is not None and before.status == status
        self._untold[write.key] = _Untold(status, _bar_longer(before.barred if before and is_same else None, now))

    def allow_statuses(self, writes: Sequence[StatusWrite], now: float) -> tuple[StatusWrite, ...]:
        """The planned statuses, without those that were refused lately. What isn't planned any more is forgotten."""
        planned = {write.key for write in writes}
        self._untold = {key: each for key, each in self._untold.items() if key in planned}
        if not self._untold:
            return tuple(writes)
        return tuple(write for write in writes if not self._is_untold(write, now))

    def _is_untold(self, write: StatusWrite, now: float) -> bool:
        known = self._untold.get(write.key)
        return known is not None and now < known.barred.until and known.status == _without_times(write.status)

    def _bar(self, action: Action, now: float) -> None:
        self._barred[_identity_of(action)] = _bar_longer(self._barred.get(_identity_of(action)), now)


def _bar_longer(before: _Barred | None, now: float) -> _Barred:
    delay = min(2 * before.delay_seconds, MAX_AGAIN_SECONDS) if before else AGAIN_SECONDS
    return _Barred(now + delay, delay)


def _without_times(status: Status) -> Status:
    """Each plan that tells it anew dates it anew."""
    told = (each.model_copy(update={"last_transition_time": ""}) for each in status.conditions)
    return status.model_copy(update={"conditions": tuple(told)})


def refused_status(placement: Placement, message: str, timestamp: str) -> PlacementStatus:
    """Its status while a write for it is refused: stalled, and what serves still serves."""
    stored, generation = placement.status, placement.metadata.generation
    stalled = Stalled(ReadyReason.WRITE_REFUSED, message)
    told = conditions_of(stalled, stored, generation, timestamp)
    if any(each.type == "Ready" and each.status is ConditionStatus.TRUE for each in stored.conditions):
        told = tuple(each for each in told if each.type != "Ready")
    replaced = {"Reconciling", *(each.type for each in told)}
    conditions = (*told, *(each for each in stored.conditions if each.type not in replaced))
    return stored.changed(observed_generation=generation, conditions=conditions)


def _identity_of(action: Action) -> tuple[type[Action], ObjectKey]:
    match action:
        case CreateInstance(item) | UpdateInstance(item) | HoldObject(item) | CreateNode(item):
            return type(action), item.key
        case DeleteObject(key):
            return type(action), key


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
