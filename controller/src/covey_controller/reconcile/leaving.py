"""By whose leaving a replica would fit: on one node, or, where the Placement allows that, on several as a group.

Looks, and decides nothing: who may leave is the caller's word.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from covey_api.kinds import ObjectKey
from covey_api.placement import Placement
from covey_planner.choice import choose
from covey_planner.types import Chosen, Wish

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.sights import Sight


@dataclass(frozen=True, slots=True)
class Leaving:
    """Instances by whose leaving a replica fits."""

    sights: tuple[Sight, ...]
    chosen: Chosen


def find_leaving(draft: Draft, wish: Wish, first: Sequence[Sight]) -> Iterable[Leaving]:
    """On each node by itself; a group only where no node alone will do.

    `first`: who may leave, whoever leaves first at the head.
    """
    by_node: dict[str, list[Sight]] = {}
    for sight in first:
        for node in {member.node: None for member in sight.instance.spec.members}:
            by_node.setdefault(node, []).append(sight)
    if wish.spread is None or not wish.spread.is_asked:
        found = [each for each in (_leaving_on(draft, wish, *item) for item in sorted(by_node.items())) if each]
        if found or wish.spread is None:
            return found
    together = _leaving_for(draft, wish, first)
    return () if together is None else (together,)


def _leaving_on(draft: Draft, wish: Wish, node: str, first: Sequence[Sight]) -> Leaving | None:
    if wish.include and node not in wish.include:
        return None
    return _leaving_for(draft, replace(wish, include=frozenset({node}), spread=None), first)


def _leaving_for(draft: Draft, asked: Wish, first: Sequence[Sight]) -> Leaving | None:
    """Add one after the other, as ordered, until it fits; then spare whoever needs not leave, the last ones first."""
    if not first or place_without(draft, asked, first) is None:
        return None
    # The more leave the sooner it fits; where hundreds may, each look at a large fleet counts.
    fewer = range(1, len(first))
    count = 1 + bisect_left(fewer, True, key=lambda n: place_without(draft, asked, first[:n]) is not None)
    kept = list(first[:count])
    for sight in reversed(first[:count]):
        others = [each for each in kept if each is not sight]
        if others and place_without(draft, asked, others) is not None:
            kept = others
    place = place_without(draft, asked, kept)
    return None if place is None else Leaving(tuple(kept), place)


def place_without(draft: Draft, asked: Wish, gone: Sequence[Sight]) -> Chosen | None:
    with draft.without(*(sight.instance for sight in gone)) as roster:
        return next(iter(choose(asked, roster, 1).chosen), None)


def owner_of(sight: Sight) -> ObjectKey:
    return ObjectKey(Placement.__name__, sight.instance.key.namespace, sight.instance.spec.placement)


def quote_names(sights: Sequence[Sight]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(sight.instance.metadata.name for sight in sights))
