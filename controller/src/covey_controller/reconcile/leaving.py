"""By whose leaving a replica would fit on one node. Looks, and decides nothing: who may leave is the caller's word."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from covey_api.kinds import ObjectKey
from covey_api.placement import Placement
from covey_planner.choice import choose
from covey_planner.types import Chosen, Wish

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.sights import Sight


@dataclass(frozen=True, slots=True)
class Leaving:
    """Instances of one node by whose leaving a replica fits there."""

    sights: tuple[Sight, ...]
    chosen: Chosen


def find_leaving(draft: Draft, wish: Wish, node: str, first: Sequence[Sight]) -> Leaving | None:
    """Add one after the other, as ordered, until it fits; then spare whoever needs not leave, the last ones first."""
    if wish.include and node not in wish.include:
        return None
    asked = replace(wish, include=frozenset({node}))
    if place_without(draft, asked, first) is None:
        return None
    count = next(n for n in range(1, len(first) + 1) if place_without(draft, asked, first[:n]) is not None)
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
