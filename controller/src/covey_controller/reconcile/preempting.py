"""Who leaves, so that a replica that fits nowhere fits.

1. What drains already is waited for, if the replica fits once it is gone: nothing more leaves meanwhile, and nobody of
   lower priority gets the place (`Draft.nominate`).
2. Else what nobody asks makes room for what clients wait for (`swapping`).
3. Else, where the Placement asks for that: of all nodes, or groups of nodes, the set of Instances of lower priority by
   whose leaving it would fit there, in this order: the least important, the fewest, the fewest bytes, by name. It
   drains; it is never stopped with requests on it.

By preemption never of equal priority: two such Placements would take turns for ever. One set per Placement at a time.
Who was drained is missing a replica and looks for another place at once, after everybody of higher priority.
"""

from collections.abc import Sequence

from covey_api.instance import InstanceGoal
from covey_api.kinds import ObjectKey
from covey_api.placement import Placement, Preemption
from covey_planner.types import Wish

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.leaving import Leaving, find_leaving, owner_of, place_without, quote_names
from covey_controller.reconcile.making import InstanceMaker
from covey_controller.reconcile.sights import Sight
from covey_controller.reconcile.swapping import make_swap
from covey_controller.reconcile.wanted import model_key

_Order = tuple[int, int, int, str]


def order_by_priority(draft: Draft) -> list[tuple[ObjectKey, Placement]]:
    """Higher first: who is important chooses first. Of equal ones whose clients wait longest, then by name."""
    if not draft.asked and not draft.indexed.has_priorities:  # sorted by key already
        return list(draft.placements.items())
    return sorted(
        draft.placements.items(), key=lambda item: (-item[1].spec.priority, _asked_since(draft, *item), item[0])
    )


def _asked_since(draft: Draft, key: ObjectKey, placement: Placement) -> float:
    asked = draft.asked.get(model_key(key, placement)) if draft.asked else None
    return asked.since if asked is not None else float("inf")


def make_way(maker: InstanceMaker, wish: Wish) -> str:
    """What one more replica waits for, in words; empty when nothing can be done for it."""
    displaces = maker.placement.spec.preemption is Preemption.LOWER_PRIORITY
    is_asked = model_key(maker.key, maker.placement) in maker.draft.asked
    if not displaces and not is_asked:
        return ""
    return (
        _wait_for_leaving(maker, wish)  # 1
        or (make_swap(maker, wish, may_wait=False) if is_asked else "")  # 2
        or (_preempt(maker, wish) if displaces else "")  # 3
        or (make_swap(maker, wish, may_wait=True) if is_asked else "")
    )


def _wait_for_leaving(maker: InstanceMaker, wish: Wish) -> str:
    draft = maker.draft
    going = [sight for sight in draft.sights.values() if sight.instance.spec.goal is InstanceGoal.DRAIN]
    place = place_without(draft, wish, going) if going else None
    if place is None:
        return ""
    draft.nominate(maker.key, place)
    nodes = {node for node, _ in place.places}
    here = [sight for sight in going if any(member.node in nodes for member in sight.instance.spec.members)]
    left = sorted(nodes & {member.node for sight in here for member in sight.instance.spec.members})
    return f"waits for {quote_names(here)} to leave {'node' if len(left) == 1 else 'nodes'} {_quote(left)}"


def _quote(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _preempt(maker: InstanceMaker, wish: Wish) -> str:
    draft = maker.draft
    found = _choose_victims(maker, wish)
    if found is None:
        return ""
    for sight in found.sights:
        owner = draft.placements[owner_of(sight)]
        draft.drain(
            sight,
            f"it makes room for {maker.key.name} of priority {maker.placement.spec.priority}; its own is "
            f"{owner.spec.priority}",
        )
    draft.nominate(maker.key, found.chosen)
    return f"waits for {quote_names(found.sights)} of lower priority to leave {_where(found)}"


def _where(found: Leaving) -> str:
    nodes = sorted({node for node, _ in found.chosen.places})
    return f"{'node' if len(nodes) == 1 else 'nodes'} {_quote(nodes)}"


def _choose_victims(maker: InstanceMaker, wish: Wish) -> Leaving | None:
    draft = maker.draft
    return min(find_leaving(draft, wish, _lower(maker)), key=lambda each: _order(draft, each), default=None)


def _order(draft: Draft, each: Leaving) -> _Order:
    """Highest priority among them, how many, their bytes, the node: the smallest is preferred."""
    nodes = {node for node, _ in each.chosen.places}
    members = [member for sight in each.sights for member in sight.instance.spec.members if member.node in nodes]
    held = sum(costs.total_bytes for member in members for costs in member.costs)
    return (max(_priority(draft, sight) for sight in each.sights), len(each.sights), held, each.chosen.node)


def _lower(maker: InstanceMaker) -> list[Sight]:
    """Running Instances of Placements of lower priority, the least important and newest first."""
    draft, own = maker.draft, maker.placement.spec.priority
    lower: list[Sight] = []
    for sight in draft.sights.values():
        owner = draft.placements.get(owner_of(sight))
        if owner is None or owner.spec.priority >= own or sight.instance.spec.goal is not InstanceGoal.RUN:
            continue
        lower.append(sight)
    lower.sort(key=lambda each: each.instance.metadata.name)
    lower.sort(key=lambda each: each.instance.metadata.creation_timestamp, reverse=True)
    lower.sort(key=lambda each: _priority(draft, each))
    return lower


def _priority(draft: Draft, sight: Sight) -> int:
    return draft.placements[owner_of(sight)].spec.priority
