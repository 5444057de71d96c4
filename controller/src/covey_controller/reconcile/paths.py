"""`DataPathReachable` of a Node: whether gateways find a way to the fronts of what serves there.

| what is seen | the condition |
|---|---|
| a live gateway names a failure for an Instance, Ready on a Ready node | False, with who, where, what to open |
| the node silent, or the leader too young to have heard every gateway again | as it was |
| none, and what serves there has a front | True |
| none, and it has no front, or donors' alone | absent: every gateway is on that machine, or nothing serves |

A gateway names a failure only after several tries in a row (`covey_gateway.paths`), and takes it back with the first
that succeeds. So there is nothing to count here, and no time in it but a leader's first seconds.
"""

from collections.abc import Mapping

from covey_api.instance import InstanceGoal, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.messages import MemberReport
from covey_api.meta import Condition, ConditionStatus
from covey_api.node import Node
from covey_api.reasons import EventReason, NodeReason
from covey_planner.types import NodeState

from covey_controller.reconcile.conditions import Claim, make_claim
from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.drains import GATEWAYS_RETURN_SECONDS, live_gateways
from covey_controller.reconcile.sights import NodeSight
from covey_controller.reconcile.table import front_of

TYPE = "DataPathReachable"
# Failures that one message tells; the rest are of the same kind most likely, and are told once these are gone.
MAX_FAILURES = 3


def observe_path_failures(draft: Draft) -> Mapping[str, tuple[str, ...]]:
    """By node: what gateways can't reach there, in words, sorted."""
    named = {
        (gateway.name, each.instance_id): each.path_failure
        for gateway in live_gateways(draft)
        for each in (gateway.demand.endpoints if gateway.demand else ())
        if each.path_failure
    }
    sights = {sight.id: sight for sight in draft.sights.values()} if named else {}
    found: dict[str, list[str]] = {}
    for (gateway, instance_id), failure in sorted(named.items()):
        sight = sights.get(instance_id)
        if sight is None or sight.instance.spec.goal is not InstanceGoal.RUN or sight.phase is not MemberPhase.READY:
            continue
        first = sight.members[0]
        if first.node is not None and first.report is not None:
            front = front_of(sight)
            at = f" at address {front[0]}, port {front[1]}" if front else ""
            words = f"gateway '{gateway}' can't reach '{sight.instance.metadata.name}'{at}: {failure}"
            found.setdefault(first.node.name, []).append(words)
    return {node: tuple(words) for node, words in found.items()}


def plan_path_condition(
    draft: Draft, node: NodeSight, stored: Node, failures: Mapping[str, tuple[str, ...]]
) -> tuple[Claim, ...]:
    """The condition, if there is one; noted when it turns. Decisions in the table above."""
    before = next((each for each in stored.status.conditions if each.type == TYPE), None)
    all_back_at = draft.world.led_since + GATEWAYS_RETURN_SECONDS
    draft.wake_at(all_back_at)
    if node.state is not NodeState.READY or draft.now < all_back_at:
        return (Claim(before.type, before.status, before.reason, before.message),) if before is not None else ()
    if failed := failures.get(node.name):
        return (_tell(draft, stored, before, _render(node.name, failed)),)
    reports = (node.report.members if node.report else None) or ()
    has_front = any(report.front_port and not _is_of_donor(draft, node, report) for report in reports)
    if not has_front:
        return ()
    if before is not None and before.status is ConditionStatus.FALSE:
        draft.note(stored.key, EventReason.DATA_PATH_OPENED, "every gateway reaches what serves on it again")
    message = "no gateway misses a way to what serves on it"
    return (make_claim(TYPE, is_true=True, reason=NodeReason.DATA_PATH_OPEN, message=message),)


def _is_of_donor(draft: Draft, node: NodeSight, report: MemberReport) -> bool:
    """Whether no gateway comes by this front: an Instance is reached at its first member's."""
    sight = draft.sights.get(ObjectKey("Instance", report.namespace, report.name))
    return sight is not None and sight.id == report.instance_id and sight.instance.spec.members[0].node != node.name


def _tell(draft: Draft, stored: Node, before: Condition | None, message: str) -> Claim:
    closed = make_claim(TYPE, is_true=False, reason=NodeReason.DATA_PATH_CLOSED, message=message)
    if before is None or before.status is not ConditionStatus.FALSE:
        draft.note(stored.key, EventReason.DATA_PATH_CLOSED, message, warning=True)
    return closed


def _render(node: str, failed: tuple[str, ...]) -> str:
    return (
        f"{'; '.join(failed[:MAX_FAILURES])}. Its agent is there and the engine is ready: open TCP ports 52500-52599 "
        f"of node '{node}' to the gateway (firewall, security group), or start the agent with an `--address` that the "
        "gateway reaches"
    )
