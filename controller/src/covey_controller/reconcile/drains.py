"""The end of an Instance: drained, stopped, deleted. And which Instances are lost with a silent node.

| step | what is seen | what follows |
|---|---|---|
| goal `Drain` | it can't hold a request (it is not Ready, or never was in a table) | members stop at once |
| goal `Drain` | it has yet to begin, says its agent (it may have lost its files); a gateway isn't quiet | as if Ready |
| out of the table | a live gateway has not applied it, or reports requests on it | wait: `drainSeconds` at most |
| quiet | every live gateway applied it and reports none in flight | members stop |
| quiet, new leader | `GATEWAYS_RETURN_SECONDS` of its leading have not passed | wait: a gateway may not be back yet |
| no gateway lives | `NO_GATEWAY_SECONDS` have passed | members stop |
| stopping | the node reports `Stopped` or `Failed`, or applied the stop and no longer names it | deleted |
| stopping | its node is silent beyond the grace, or the Node is gone | deleted |

Nothing is deleted or judged lost before the fleet has been seen whole (`complete`).
"""

from dataclasses import replace

from covey_api.instance import InstanceGoal, MemberPhase
from covey_api.messages import NODE_SILENCE_SECONDS, MemberGoal, Order
from covey_api.reasons import EventReason
from covey_planner.types import NodeState

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.fleet import ENDED, is_live, is_running_on, routed_ids
from covey_controller.reconcile.sights import MemberSight, Sight
from covey_controller.reconcile.world import Drain, GatewayView

# How long a silent node may stay silent before what it runs is replaced, and what drains on it is forgotten.
NODE_GRACE_SECONDS = 60.0
# One replica after the other is given up: many nodes silent at once is more likely the leader's own network.
LOSS_INTERVAL_SECONDS = 5.0
# With no gateway in sight nobody can say that a drain is quiet; one that was cut off is back within this.
NO_GATEWAY_SECONDS = 10.0
# A new leader knows only the gateways it has heard. One that lost the last leader tries again 10 s apart at most, and
# says at once what it has in flight.
GATEWAYS_RETURN_SECONDS = 12.0
# What comes back of a node that was silent is asked for here; of more, 15 minutes decide as of any stray.
MAX_ENDED = 1024
_HOLDS_REQUESTS = frozenset({MemberPhase.READY, MemberPhase.DRAINING})
_BEFORE_A_LOOK = frozenset({MemberPhase.PENDING, MemberPhase.FETCHING, MemberPhase.STARTING})


def observe_losses(draft: Draft) -> None:
    """Which running Instances are lost, and which a gateway found unreachable while their node was silent.

    Lost: its node has been silent for the grace, and no live gateway has requests on it. It is replaced, and leaves
    when the replacement serves; if its node comes back first, it is as good as ever.
    """
    demands = [gateway.demand for gateway in live_gateways(draft) if gateway.demand]
    shunned = {e.instance_id for demand in demands for e in demand.endpoints if e.unreachable}
    busy = {e.instance_id for demand in demands for e in demand.endpoints if e.in_flight > 0 and not e.unreachable}
    unsure = [sight for sight in draft.sights.values() if not sight.is_confirmed]
    since = {sight.id: _silent_since(draft, sight) for sight in unsure}
    silent = [sight for sight in unsure if since[sight.id] < float("inf")]
    ids = {sight.id for sight in silent}
    draft.unreachable = {each for each in draft.unreachable | shunned if each in ids}
    draft.lost = {each: when for each, when in draft.lost.items() if each in ids}
    for sight in sorted(silent, key=lambda each: (since[each.id], each.id)):
        if sight.id in draft.lost or sight.instance.spec.goal is not InstanceGoal.RUN:
            continue
        if sight.id in busy:  # nobody says when a request ends
            draft.wake_at(draft.now + LOSS_INTERVAL_SECONDS)
            continue
        due = max(
            since[sight.id] + NODE_GRACE_SECONDS,
            max(draft.lost.values(), default=float("-inf")) + LOSS_INTERVAL_SECONDS,
        )
        if draft.now < due:
            draft.wake_at(due)
            continue
        draft.lost[sight.id] = draft.now
        message = f"its node has been silent for {int(NODE_GRACE_SECONDS)} s and no gateway has requests on it"
        draft.note(sight.instance.key, EventReason.LOST, message, warning=True)


def _silent_since(draft: Draft, sight: Sight) -> float:
    """When the first of its nodes fell silent; infinity while all of them speak.

    A node that neither the store nor an agent knows (somebody removed it by force) has been silent all the time.
    """
    if any(member.node is None for member in sight.members):
        return max(draft.world.led_since, draft.watching_since) + NODE_SILENCE_SECONDS
    return sight.unknown_since


def live_gateways(draft: Draft) -> list[GatewayView]:
    """Those whose word counts. What a dead one said last is over with it."""
    return [gateway for gateway in draft.world.gateways if is_live(gateway, draft.watching_since, draft.now)]


def plan_drains(draft: Draft, strays: list[Sight]) -> None:
    """Move each draining Instance one step on, and delete those that ended."""
    draining = [s for s in draft.sights.values() if s.instance.spec.goal is InstanceGoal.DRAIN]
    leaving = [s for s in strays if s.instance.spec.goal is InstanceGoal.DRAIN]
    drains: dict[str, Drain] = {}
    for sight in sorted((*draining, *leaving), key=lambda each: each.id):
        drains[sight.id] = _advance(draft, sight, draft.drains.get(sight.id) or Drain(draft.now))
    draft.drains = drains
    for sight in draining:
        if why := why_ended(draft, sight):
            if sight.unknown_since < float("inf"):
                draft.ended[sight.id] = sight.instance
                for oldest in list(draft.ended)[:-MAX_ENDED]:
                    del draft.ended[oldest]
            draft.end_instance(sight, why)
            del draft.drains[sight.id]


def _advance(draft: Draft, sight: Sight, drain: Drain) -> Drain:
    drain = replace(drain, left=drain.left or left_at(draft, sight.id))
    if drain.stop or (why := why_quiet(draft, sight, drain)) is None:
        return drain
    draft.note(sight.instance.key, EventReason.DRAIN_ENDED, f"its members stop: {why}")
    return replace(drain, stop=True)


def left_at(draft: Draft, instance_id: str) -> Order | None:
    """Order of the published table, if the Instance is not in it."""
    table = draft.world.published.endpoints
    return table.order if table is not None and instance_id not in routed_ids(table) else None


def why_quiet(draft: Draft, sight: Sight, drain: Drain) -> str | None:
    """Why its members may stop now, in words; None while requests may still be on it. Decisions in the table above."""
    live = live_gateways(draft)
    all_back_at = draft.world.led_since + GATEWAYS_RETURN_SECONDS
    if sight.phase not in _HOLDS_REQUESTS:
        is_quiet_now = draft.now >= all_back_at and all(is_quiet(each, sight.id, drain.left) for each in live)
        if is_quiet_now or not _may_have_served(sight):
            return "it serves no request"
        draft.wake_at(all_back_at)
    deadline = drain.since + sight.instance.spec.drain_seconds
    if draft.now >= deadline:
        return f"`drainSeconds` ({sight.instance.spec.drain_seconds}) have passed"
    draft.wake_at(deadline)
    if not live:
        due = max(drain.since + NO_GATEWAY_SECONDS, draft.world.led_since + GATEWAYS_RETURN_SECONDS)
        draft.wake_at(due)
        return "no gateway is there to send requests" if draft.now >= due else None
    if not all(is_quiet(gateway, sight.id, drain.left) for gateway in live):
        return None
    if draft.now < all_back_at:
        draft.wake_at(all_back_at)
        return None
    return "every gateway has the table without it and no request on it"


def _may_have_served(sight: Sight) -> bool:
    """Although its agent says that it has yet to begin: one that lost its files says so of an engine that serves."""
    return sight.phase in _BEFORE_A_LOOK and not any(each.report and each.report.restarts for each in sight.members)


def is_quiet(gateway: GatewayView, instance_id: str, left: Order | None) -> bool:
    """Whether this gateway routes by a table without the Instance and has no request on it."""
    demand = gateway.demand
    if left is None or demand is None or demand.applied is None or left.is_after(demand.applied):
        return False
    return not any(each.instance_id == instance_id and each.in_flight > 0 for each in demand.endpoints)


def why_ended(draft: Draft, sight: Sight) -> str | None:
    """Why the Instance can be deleted; None while a member may still run."""
    ends = [_member_ended(draft, sight, member) for member in sight.members]
    return ends[0] if all(ends) else None


def _member_ended(draft: Draft, sight: Sight, member: MemberSight) -> str | None:
    node = member.node
    if node is None:
        return "its node does not exist any more"
    if node.state is NodeState.UNKNOWN:
        due = node.unknown_since + NODE_GRACE_SECONDS
        draft.wake_at(due)
        return f"node '{node.name}' has been silent for {int(NODE_GRACE_SECONDS)} s" if draft.now >= due else None
    if member.report is not None and member.phase in ENDED:
        return "its members ended"
    if node.report is None or node.report.members is None or is_running_on(node, sight.id):
        return None
    if not _has_applied_stop(draft, sight, node.name):
        return None
    return f"node '{node.name}' was told to stop it and has it no more"


def _has_applied_stop(draft: Draft, sight: Sight, node: str) -> bool:
    published = draft.world.published.assignments.get(node)
    report = draft.nodes[node].report
    if published is None or report is None or report.applied is None or published.order.is_after(report.applied):
        return False
    stopped = {m.instance.spec.instance_id for m in published.members if m.goal is MemberGoal.STOP}
    return sight.id in stopped
