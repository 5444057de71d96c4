"""`UnusableEngines` of a Node: engines that people count on there and that can't be started, in its agent's words."""

from covey_api.meta import ConditionStatus
from covey_api.reasons import EventReason, NodeReason
from covey_planner.types import NodeState

from covey_controller.reconcile.conditions import Claim, make_claim
from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.sights import NodeSight

TYPE = "UnusableEngines"


def plan_unusable_condition(draft: Draft, sight: NodeSight) -> tuple[Claim, ...]:
    """Only while there are any; noted when it appears. What a silent node said last stands."""
    node = sight.node
    if node is None:
        return ()
    before = next((each for each in node.status.conditions if each.type == TYPE), None)
    if sight.report is None or sight.report.unusable is None:
        is_kept = before is not None and (sight.report is None or sight.state is NodeState.FACTS_PENDING)
        return (Claim(before.type, before.status, before.reason, before.message),) if before and is_kept else ()
    message = explain_unusable(sight)
    if not message:
        return ()
    if before is None or before.status is not ConditionStatus.TRUE:
        draft.note(node.key, EventReason.ENGINE_UNUSABLE, message, warning=True)
    return (make_claim(TYPE, is_true=True, reason=NodeReason.ENGINE_UNUSABLE, message=message),)


def explain_unusable(sight: NodeSight) -> str:
    """In words; empty when there is none."""
    found = sorted((sight.report.unusable if sight.report else None) or (), key=lambda each: each.engine)
    return " ".join(f"{each.engine}: {each.cause}: {each.message}" for each in found)
