"""Preemption: what of lower priority leaves, so that a replica that fits nowhere fits. Only where a Placement asks.

1. What drains already is waited for, if the replica fits once it is gone: nothing more leaves meanwhile, and nobody of
   lower priority gets the place (`Draft.nominate`).
2. Else, of all nodes, the set of Instances of lower priority by whose leaving it would fit there, in this order: the
   least important, the fewest, the fewest bytes, by name. It drains; it is never stopped with requests on it.

Never of equal priority: two such Placements would take turns for ever. One set per Placement at a time. Who was drained
is missing a replica and looks for another place at once, after everybody of higher priority.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from covey_api.instance import InstanceGoal
from covey_api.kinds import ObjectKey
from covey_api.placement import Placement, Preemption
from covey_planner.choice import choose
from covey_planner.types import Chosen, Wish

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.fleet import Sight
from covey_controller.reconcile.making import InstanceMaker

_Order = tuple[int, int, int, str]


@dataclass(frozen=True, slots=True)
class _Victims:
    """Instances of one node by whose leaving a replica fits there."""

    order: _Order
    """Highest priority among them, how many, their bytes, the node: the smallest is preferred."""
    sights: tuple[Sight, ...]
    chosen: Chosen


def order_by_priority(placements: Mapping[ObjectKey, Placement]) -> list[tuple[ObjectKey, Placement]]:
    """Higher first, ties by name: who is important chooses first."""
    return sorted(placements.items(), key=lambda item: (-item[1].spec.priority, item[0]))


def make_way(maker: InstanceMaker, wish: Wish) -> str:
    """What one more replica waits for, in words; empty when nothing can be done for it."""
    if maker.placement.spec.preemption is not Preemption.LOWER_PRIORITY:
        return ""
    draft = maker.draft
    going = [sight for sight in draft.sights.values() if sight.instance.spec.goal is InstanceGoal.DRAIN]
    with draft.without(*(sight.instance for sight in going)) as roster:
        place = next(iter(choose(wish, roster, 1).chosen), None)
    if place is not None:  # 1
        draft.nominate(place)
        here = [s.instance.metadata.name for s in going if any(m.node == place.node for m in s.instance.spec.members)]
        return f"waits for {_quoted(here)} to leave node '{place.node}'"
    found = _choose_victims(maker, wish)  # 2
    if found is None:
        return ""
    for sight in found.sights:
        owner = draft.placements[_owner(sight)]
        draft.drain(
            sight,
            f"it makes room for {maker.key.name} of priority {maker.placement.spec.priority}; its own is "
            f"{owner.spec.priority}",
        )
    draft.nominate(found.chosen)
    names = _quoted([sight.instance.metadata.name for sight in found.sights])
    return f"waits for {names} of lower priority to leave node '{found.chosen.node}'"


def _choose_victims(maker: InstanceMaker, wish: Wish) -> _Victims | None:
    found = (_victims_on(maker, wish, node, sights) for node, sights in _lower_by_node(maker).items())
    return min((each for each in found if each is not None), key=lambda each: each.order, default=None)


def _lower_by_node(maker: InstanceMaker) -> dict[str, list[Sight]]:
    """Running Instances of Placements of lower priority, by node, the least important and newest first."""
    draft, own = maker.draft, maker.placement.spec.priority
    lower: dict[str, list[Sight]] = {}
    for sight in draft.sights.values():
        owner = draft.placements.get(_owner(sight))
        if owner is None or owner.spec.priority >= own or sight.instance.spec.goal is not InstanceGoal.RUN:
            continue
        for node in {member.node: None for member in sight.instance.spec.members}:
            lower.setdefault(node, []).append(sight)
    for sights in lower.values():
        sights.sort(key=lambda each: each.instance.metadata.name)
        sights.sort(key=lambda each: each.instance.metadata.creation_timestamp, reverse=True)
        sights.sort(key=lambda each: _priority(draft, each))
    return lower


def _victims_on(maker: InstanceMaker, wish: Wish, node: str, lower: Sequence[Sight]) -> _Victims | None:
    """Add one after the other until it fits; then spare whoever needs not leave, the most important first."""
    if wish.include and node not in wish.include:
        return None
    asked = replace(wish, include=frozenset({node}))
    if _place_without(maker, asked, lower) is None:
        return None
    count = next(n for n in range(1, len(lower) + 1) if _place_without(maker, asked, lower[:n]) is not None)
    kept = list(lower[:count])
    for sight in reversed(lower[:count]):
        others = [each for each in kept if each is not sight]
        if others and _place_without(maker, asked, others) is not None:
            kept = others
    place = _place_without(maker, asked, kept)
    if place is None:
        return None
    highest = max(_priority(maker.draft, each) for each in kept)
    held = sum(c.total_bytes for each in kept for m in each.instance.spec.members if m.node == node for c in m.costs)
    return _Victims((highest, len(kept), held, node), tuple(kept), place)


def _place_without(maker: InstanceMaker, asked: Wish, gone: Sequence[Sight]) -> Chosen | None:
    with maker.draft.without(*(sight.instance for sight in gone)) as roster:
        return next(iter(choose(asked, roster, 1).chosen), None)


def _priority(draft: Draft, sight: Sight) -> int:
    return draft.placements[_owner(sight)].spec.priority


def _owner(sight: Sight) -> ObjectKey:
    return ObjectKey(Placement.__name__, sight.instance.key.namespace, sight.instance.spec.placement)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
