"""What becomes of Placements that have no replica until somebody asks: whether the first would fit, where, in bytes.

On the fleet as it is in the end of a forecast. It must not decide anything: the answer is `choose`'s. What the first
replica would find by then may be another: others that sleep are awake, or what runs has yielded.
"""

from collections.abc import Iterator
from typing import Any

from covey_api.instance import Instance
from covey_api.kinds import ObjectKey
from covey_api.placement import Placement
from covey_api.units import format_bytes
from covey_planner.choice import choose
from covey_planner.types import Chosen, Decision, Wish
from covey_planner.words import render_exactly

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.making import running_instances
from covey_controller.reconcile.wanted import failed_lanes, model_key, render_wish

Entry = dict[str, Any]


def list_sleeping(draft: Draft) -> list[Entry]:
    """One entry for each Placement that scales and has no replica, in their order."""
    return [
        _entry(draft, key, wish)
        for key, placement in draft.placements.items()
        if _sleeps(draft, key, placement) and (wish := _wish(draft, key, placement)) is not None
    ]


def render_sleeping(found: list[Entry]) -> Iterator[str]:
    for each in found:
        yield f"sleeps: placement/{each['name']}: {each['message']}"


def _sleeps(draft: Draft, key: ObjectKey, placement: Placement) -> bool:
    spec = placement.spec
    is_out = spec.suspend or placement.metadata.deletion_timestamp is not None
    return spec.scaling is not None and not spec.scaling.min and not is_out and not draft.sights_of(key)


def _wish(draft: Draft, key: ObjectKey, placement: Placement) -> Wish | None:
    model = draft.models.get(model_key(key, placement))
    if model is None:
        return None
    failed = failed_lanes(placement.status.failures)
    return render_wish(placement, model, draft.fleet, failed, (), draft.offered_engines(), draft.held_digests())


def _entry(draft: Draft, key: ObjectKey, wish: Wish) -> Entry:
    """1. It fits as things are. 2. It fits once others yield to it. 3. It isn't known yet. 4. It doesn't fit."""
    named = {"kind": key.kind, "namespace": key.namespace, "name": key.name}
    decision = choose(wish, draft.roster(), 1)
    if decision.chosen:  # 1
        return named | _place(draft, decision.chosen[0], "")
    surplus = _surplus(draft)
    if surplus and decision.pending is None:
        with draft.without(*surplus) as roster:
            after = choose(wish, roster, 1)
        if after.chosen:  # 2
            names = ", ".join(f"'{each.metadata.name}'" for each in surplus)
            return named | _place(draft, after.chosen[0], f", once of {names} those without requests have made room")
    return named | _refusal(decision)


def _place(draft: Draft, chosen: Chosen, condition: str) -> Entry:
    pools: dict[str, int] = {}
    for costs in chosen.costs:
        pools[costs.pool] = pools.get(costs.pool, 0) + costs.total_bytes
    view = draft.roster().view(chosen.node)
    artifacts = (chosen.artifact, *(each.artifact for each in chosen.companions))
    fetched = sum(each.fetched_bytes for each in artifacts if view and each.digest not in view.cached)
    taken = ", ".join(f"{render_exactly(count)} of '{pool}'" for pool, count in pools.items())
    first = f"; it would fetch {format_bytes(fetched)} first" if fetched else ""
    return {
        "fits": True,
        "node": chosen.node,
        "engine": chosen.lane.engine.value,
        "compute": chosen.lane.compute.value,
        "contextTokens": chosen.options.context_tokens,
        "pools": [{"name": pool, "bytes": count} for pool, count in pools.items()],
        "fetchBytes": fetched,
        "message": (
            f"no replica until it is asked for; the first would fit on node '{chosen.node}', {taken}, lane "
            f"{chosen.lane.engine}/{chosen.lane.compute}, window {chosen.options.context_tokens} tokens x "
            f"{chosen.options.slots} slots{condition}{first}"
        ),
    }


def _refusal(decision: Decision) -> Entry:
    if decision.pending is not None:  # 3
        words = f"whether one would fit isn't known: {decision.pending.message}"
        return {"fits": None, "shortBytes": 0, "message": f"no replica until it is asked for; {words}"}
    closest = decision.closest  # 4
    why = closest.closest_words if closest else "there is no node"
    if closest and closest.node:
        why = f"node '{closest.node}' is closest: {closest.reason}: {closest.message}"
    message = f"no replica until it is asked for, and then none would fit: {why}"
    return {"fits": False, "shortBytes": closest.short_bytes if closest else 0, "message": message}


def _surplus(draft: Draft) -> list[Instance]:
    """Instances of Placements that scale, beyond the least that stay."""
    found: list[Instance] = []
    for key, placement in draft.placements.items():
        if placement.spec.scaling is not None:
            found += running_instances(draft, key)[placement.spec.scaling.min :]
    return found
