"""Better places for what serves, as they would be chosen if it weren't there: for people, who alone move it. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from covey_api.instance import InstanceGoal, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.meta import RESTART_ANNOTATION
from covey_planner.choice import choose
from covey_planner.choice.gain import explain_gain
from covey_planner.types import Wish

from covey_controller.reconcile.draft import Draft


def list_better(draft: Draft, key: ObjectKey, wish: Wish) -> list[dict[str, Any]]:
    """By name of the Instance; `wish` is its Placement's."""
    found: list[dict[str, Any]] = []
    for sight in draft.sights_of(key):
        spec = sight.instance.spec
        if spec.goal is not InstanceGoal.RUN or sight.phase is not MemberPhase.READY or not sight.is_confirmed:
            continue
        placed = dict(wish.placed)
        for member in spec.members:
            placed[member.node] = placed.get(member.node, 1) - 1
        others = {node: count for node, count in placed.items() if count > 0}
        with draft.without(sight.instance) as roster:
            chosen = choose(replace(wish, placed=others), roster, 1).chosen
        if chosen and (gain := explain_gain(wish, spec, chosen[0])):
            place = chosen[0]
            found.append(
                {
                    "instance": sight.instance.metadata.name,
                    "node": place.node,
                    "variant": place.variant,
                    "engine": place.lane.engine.value,
                    "compute": place.lane.compute.value,
                    "contextTokens": place.options.context_tokens,
                    "gain": gain,
                }
            )
    return found


def render_better(found: list[dict[str, Any]]) -> Iterator[str]:
    for each in found:
        yield (
            f"instance/{each['instance']} would be better on node '{each['node']}', lane "
            f"{each['engine']}/{each['compute']}: {each['gain']}. What serves isn't moved by itself: another value of "
            f"the annotation `{RESTART_ANNOTATION}` of the Placement rolls it"
        )
