"""Why a coming Instance goes where it goes: what other nodes said when it was decided on. Pure.

That is after every earlier decision of the same plan: the second of two replicas sees the first where it went. So each
plan is followed action by action, on one draft, instead of asking the world that it began with.
"""

from collections.abc import Collection, Mapping

from covey_api.instance import Instance
from covey_api.kinds import ObjectKey
from covey_api.placement import Placement
from covey_api.units import format_bytes
from covey_planner.choice import explain_nodes
from covey_planner.types import Chosen, Refusal, Wish

from covey_controller.reconcile.begin import begin_draft
from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.forecast import Forecast
from covey_controller.reconcile.index import index_objects
from covey_controller.reconcile.making import next_wish
from covey_controller.reconcile.outcomes import CreateInstance
from covey_controller.reconcile.wanted import model_key
from covey_controller.reconcile.world import World

# More nodes than a person compares; `covey why` names them all. Nobody else is asked: a plan of a hundred Instances on
# a thousand nodes would take minutes for words that are not shown.
_NODES_SHOWN = 8


def list_reasons(made: Forecast, coming: Collection[str]) -> Mapping[str, str]:
    """One line for each of `coming`, by instanceId."""
    wanted = frozenset(coming)
    reasons = dict.fromkeys(coming, "")
    for each in made.creating:
        draft = draft_of(each.world, each.world.memory.planned_at or 0.0)
        for action in each.actions:
            if isinstance(action, CreateInstance) and action.instance.spec.instance_id in wanted:
                reasons[action.instance.spec.instance_id] = _why_there(draft, action.instance)
            draft.follow(action)
    return reasons


def _why_there(draft: Draft, instance: Instance) -> str:
    key = ObjectKey("Placement", instance.metadata.namespace, instance.spec.placement)
    wish = wish_of(draft, key, draft.placements[key]) if key in draft.placements else None
    if wish is None:
        return ""
    chosen = {member.node for member in instance.spec.members}
    others = [view for view in draft.roster() if view.name not in chosen]
    if not others:
        return "the only node there is"
    said = [_answer(each) for each in explain_nodes(wish, sorted(others, key=lambda view: view.name)[:_NODES_SHOWN])]
    rest = len(others) - len(said)
    return "other nodes: " + ", ".join(said) + (f" and {rest} more" if rest > 0 else "")


def _answer(each: Chosen | Refusal) -> str:
    if isinstance(each, Refusal):
        return f"'{each.node}' {each.reason}{f' ({format_bytes(each.short_bytes)} short)' if each.short_bytes else ''}"
    return f"'{each.node}' could take it too, window {each.options.context_tokens}"


def wish_of(draft: Draft, key: ObjectKey, placement: Placement) -> Wish | None:
    """What the planner is asked for one more replica; None without its Model."""
    model = draft.models.get(model_key(key, placement))
    if model is None:
        return None
    return next_wish(draft, key, placement, model, placement.status.failures)


def draft_of(world: World, now: float) -> Draft:
    """Everything as a plan of this world would begin."""
    return begin_draft(world, index_objects(world.objects), now)
