"""Swap: what nobody asks makes room for a Model that clients wait for and that fits nowhere, at equal priority too.

Who yields is an Instance above its Placement's `scaling.min`, of a Placement of no higher priority. When:

| the Instance | then |
|---|---|
| failed | at once |
| Ready for less than `minDwellSeconds` | it stays until then: loads are bounded by it |
| without requests | its door closes; of several the one that went unused longest |
| with requests, the other's have waited for its `minDwellSeconds` | the same: who is always asked gives turns too |
| with requests, the other's have not | it stays until then |
| any other (it starts, or makes room for somebody else) | it stays |

Its door closes: it leaves the table and runs on, its clients' next requests are held. Once every gateway has the table
without it and no request on it, it drains; a request is never cut, however long it takes. If the other is asked for no
more meanwhile, the door opens again.

Rejected: draining at once (a drain has a deadline, and what a gateway reported is seconds old); a queue of turns kept
by the controller (a new leader would begin it anew: what clients have waited for is the queue).
"""

from collections.abc import Iterable, Sequence

from covey_api.instance import InstanceGoal, MemberPhase
from covey_api.messages import Order
from covey_planner.types import Wish

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.drains import GATEWAYS_RETURN_SECONDS, is_quiet, left_at, live_gateways
from covey_controller.reconcile.failures import fault_of
from covey_controller.reconcile.leaving import Leaving, find_leaving, owner_of, place_without, quote_names
from covey_controller.reconcile.making import InstanceMaker
from covey_controller.reconcile.scaling import spare_count
from covey_controller.reconcile.sights import Sight
from covey_controller.reconcile.wanted import model_key
from covey_controller.reconcile.world import Scaled, Yield

NEVER = float("inf")


def make_swap(maker: InstanceMaker, wish: Wish, *, may_wait: bool) -> str:
    """What one more replica waits for, in words; empty when nobody makes room for it.

    Not `may_wait`: only if somebody can now.
    """
    draft = maker.draft
    spare = _observe_spare(maker)
    own = [sight for sight in spare if _yields_to(draft, sight, maker)]
    if own and (place := place_without(draft, wish, own)) is not None:
        draft.nominate(maker.key, place)
        return _close(maker, own)
    due = {sight.id: may_yield_at(maker, sight) for sight in spare}
    found = _find(draft, wish, [sight for sight in spare if due[sight.id] <= draft.now])
    if found is not None:
        draft.nominate(maker.key, found.chosen)
        return _close(maker, found.sights)
    if not may_wait:
        return ""
    later = _find(draft, wish, spare)
    if later is None:
        return _wait_behind(maker, wish, spare)
    for sight in spare:
        if due[sight.id] < NEVER:
            draft.wake_at(due[sight.id])
    return f"waits for its turn: {quote_names(later.sights)} may make room on node '{later.chosen.node}'"


def _wait_behind(maker: InstanceMaker, wish: Wish, spare: Sequence[Sight]) -> str:
    """What is promised to others that clients wait for too is had in turn: they are about to start, and yield then."""
    draft = maker.draft
    before = [
        key
        for key, _ in draft.promised
        if (other := draft.placements[key]).spec.scaling is not None
        and other.spec.scaling.min == 0
        and other.spec.priority <= maker.placement.spec.priority
    ]
    going = [sight for sight in draft.sights.values() if sight.instance.spec.goal is InstanceGoal.DRAIN]
    with draft.without_promises(before):
        place = place_without(draft, wish, [*spare, *going]) if before else None
    if place is None:
        return ""
    names = ", ".join(f"'{name}'" for name in sorted({key.name for key in before}))
    return f"waits for its turn on node '{place.node}', after {names}"


def may_yield_at(maker: InstanceMaker, sight: Sight) -> float:
    """By the table above."""
    draft = maker.draft
    if fault_of(draft, sight) is not None:
        return draft.now
    serving = draft.serving.get(sight.id)
    scaling = draft.placements[owner_of(sight)].spec.scaling
    if serving is None or scaling is None or _yields(draft, sight) is not None:
        return NEVER
    dwelt_at = serving.since + scaling.min_dwell_seconds
    if not draft.in_flight.get(sight.id):
        return dwelt_at
    asked = draft.asked[model_key(maker.key, maker.placement)]
    return max(dwelt_at, asked.since + scaling.min_dwell_seconds)


def _observe_spare(maker: InstanceMaker) -> list[Sight]:
    """Instances that are not needed by their own Placement, those that went unused longest first."""
    draft = maker.draft
    own_model = model_key(maker.key, maker.placement)
    spare: list[Sight] = []
    for key, placement in draft.placements.items():
        if placement.spec.scaling is None or placement.spec.priority > maker.placement.spec.priority:
            continue
        if model_key(key, placement) == own_model:
            continue
        running = [each for each in draft.sights_of(key) if each.instance.spec.goal is InstanceGoal.RUN]
        spare += sorted(running, key=lambda each: _used_at(draft, each))[: spare_count(placement, running)]
    return sorted(spare, key=lambda each: _used_at(draft, each))


def _used_at(draft: Draft, sight: Sight) -> tuple[bool, float, str]:
    """What serves nobody first, then what was used longest ago; busy ones last."""
    serving = draft.serving.get(sight.id)
    used_at = float("-inf") if serving is None else serving.used_at
    return (sight.id in draft.in_flight, used_at, sight.instance.metadata.name)


def _find(draft: Draft, wish: Wish, spare: Sequence[Sight]) -> Leaving | None:
    """The fewest that went unused longest; ties by the node's name."""
    ranks = {sight.id: rank for rank, sight in enumerate(spare)}
    return min(
        find_leaving(draft, wish, spare),
        key=lambda each: (max(ranks[sight.id] for sight in each.sights), len(each.sights), each.chosen.node),
        default=None,
    )


def _yields(draft: Draft, sight: Sight) -> Yield | None:
    return draft.yields.get(sight.id) or draft.world.memory.yields.get(sight.id)


def _yields_to(draft: Draft, sight: Sight, maker: InstanceMaker) -> bool:
    known = _yields(draft, sight)
    return known is not None and known.by == maker.key


def _close(maker: InstanceMaker, sights: Iterable[Sight]) -> str:
    """Shut the door of each; all drain together once they are quiet."""
    draft = maker.draft
    closed = list(sights)
    for sight in closed:
        draft.yields[sight.id] = Yield(maker.key, _left(draft, sight))
    if not all(_is_quiet(draft, sight) for sight in closed):
        return f"waits for the requests on {quote_names(closed)} to end, which then makes room"
    for sight in closed:
        owner = owner_of(sight)
        draft.drain(sight, f"it makes room for {maker.key.name}, which is asked for; it is above its minimum and idle")
        count = draft.scaled[owner].count if owner in draft.scaled else 1
        draft.scaled[owner] = Scaled(max(0, count - 1), draft.now)
    return f"waits for {quote_names(closed)}, which nobody asks, to make room"


def _left(draft: Draft, sight: Sight) -> Order | None:
    """Order of the first table since which it has been out; None while it is in: its door may have been opened."""
    known = draft.world.memory.yields.get(sight.id)
    out = left_at(draft, sight.id)
    return known.left if out is not None and known is not None and known.left is not None else out


def _is_quiet(draft: Draft, sight: Sight) -> bool:
    """Whether no gateway can have a request on it. A new leader waits for gateways that may not be back yet."""
    if sight.phase is not MemberPhase.READY:
        return True
    all_back_at = draft.world.led_since + GATEWAYS_RETURN_SECONDS
    if draft.now < all_back_at:
        draft.wake_at(all_back_at)
        return False
    left = draft.yields[sight.id].left
    return all(is_quiet(gateway, sight.id, left) for gateway in live_gateways(draft))
