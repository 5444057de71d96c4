"""How nodes, gateways and members look now: states derived from reports, and the memory that is spoken for.

Silence is measured from the last report, or from when this leader began to watch, whichever is later: a leader that was
paused or has just begun never mistakes its own absence for the death of a node. Pure; times are arguments.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from covey_api.engines import HOST_POOL, EngineName
from covey_api.fleet import Fleet
from covey_api.instance import Instance, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.messages import NODE_SILENCE_SECONDS, Endpoints, MemberReport
from covey_api.node import Node, NodeSpec
from covey_api.units import parse_quantity
from covey_planner.choice.builds import pin_lane
from covey_planner.fit.limits import limit_pools
from covey_planner.fit.reserves import reserve_bytes
from covey_planner.types import NodeState, NodeView, Pool

from covey_controller.reconcile.holding import held_bytes
from covey_controller.reconcile.sights import AgentView, MemberSight, NodeSight, Sight
from covey_controller.reconcile.world import GatewayView

# A stream that is opened again within this (a renewed certificate, a restarted reader) was not broken.
STREAM_BREAK_SECONDS = 1.0

# Phases in which a member's engine is gone for good.
ENDED = frozenset({MemberPhase.STOPPED, MemberPhase.FAILED})
# What an Instance of several members counts as: the first of these that any member is in.
_WORST_FIRST = (
    MemberPhase.FAILED,
    MemberPhase.STOPPED,
    MemberPhase.BACKOFF,
    MemberPhase.PENDING,
    MemberPhase.FETCHING,
    MemberPhase.STARTING,
    MemberPhase.DRAINING,
    MemberPhase.READY,
)


_NO_SIGHTS: Mapping[str, NodeSight] = {}


def observe_nodes(
    nodes: Iterable[Node],
    agents: Iterable[AgentView],
    led_since: float,
    watching_since: float,
    now: float,
    known: Mapping[str, NodeSight] = _NO_SIGHTS,
) -> dict[str, NodeSight]:
    """Every node that the store knows or that reported, by name, sorted.

    `known`: as they were seen with this `watching_since`. A node of which nothing changed is the very same value.
    """
    by_name = {node.metadata.name: node for node in nodes}
    by_agent = {agent.node: agent for agent in agents}
    sights: dict[str, NodeSight] = {}
    for name in sorted(by_name.keys() | by_agent.keys()):
        node, agent, before = by_name.get(name), by_agent.get(name), known.get(name)
        if (
            before is not None
            and before.node is node
            and before.agent is agent
            and before.report is not None
            and before.state is not NodeState.UNKNOWN
            and now < before.unknown_since
        ):
            sights[name] = before
        else:
            sights[name] = observe_node(name, node, agent, led_since, watching_since, now)
    return sights


def observe_node(
    name: str, node: Node | None, agent: AgentView | None, led_since: float, watching_since: float, now: float
) -> NodeSight:
    """State of one node.

    1. Nothing heard in this leadership: facts pending for `NODE_SILENCE_SECONDS`, then Unknown.
    2. Silent for `NODE_SILENCE_SECONDS`, or its stream is broken: Unknown, since the last report at the earliest. They
       may go on without a stream, and nobody is given up who speaks.
    3. No facts or lanes reported: facts pending.
    4. Otherwise Ready.
    """
    if agent is None or agent.report is None:
        is_unknown = now >= led_since + NODE_SILENCE_SECONDS
        state = NodeState.UNKNOWN if is_unknown else NodeState.FACTS_PENDING
        return NodeSight(name, node, agent, state, max(led_since, watching_since) + NODE_SILENCE_SECONDS)
    unknown_since = heard_until(agent, watching_since)
    if now >= unknown_since:
        state, unknown_since = NodeState.UNKNOWN, max(unknown_since, agent.seen)
    elif agent.report.facts is None or agent.report.lanes is None:
        state = NodeState.FACTS_PENDING
    else:
        state = NodeState.READY
    return NodeSight(name, node, agent, state, unknown_since)


def heard_until(agent: AgentView, watching_since: float) -> float:
    """When this agent's node becomes Unknown, if nothing more is heard of it."""
    until = max(agent.seen, watching_since) + NODE_SILENCE_SECONDS
    if agent.disconnected is not None:
        until = min(until, max(agent.disconnected, watching_since) + STREAM_BREAK_SECONDS)
    return until


def next_silence(agents: Iterable[AgentView], watching_since: float, planned_at: float) -> float:
    """When the first node that the plan of `planned_at` still heard becomes Unknown; infinity while none is heard.

    It moves with each report. A plan at what was foreseen would be the only thing that a fleet at rest has to do.
    """
    ends = (heard_until(agent, watching_since) for agent in agents if agent.report is not None)
    return min((end for end in ends if end > planned_at), default=float("inf"))


def is_live(gateway: GatewayView, watching_since: float, now: float) -> bool:
    """Whether a drain waits for this gateway: it may still send requests by the table it has."""
    return gateway.connected or now < live_until(gateway, watching_since)


def live_until(gateway: GatewayView, watching_since: float) -> float:
    """When a gateway without a stream stops counting."""
    return max(gateway.seen, watching_since) + NODE_SILENCE_SECONDS


def observe_instances(
    instances: Mapping[ObjectKey, Instance], nodes: Mapping[str, NodeSight], known: Mapping[ObjectKey, Sight]
) -> dict[ObjectKey, Sight]:
    """`known`: as they were seen before. One of which nothing changed, nor of its nodes, is the very same value."""
    sights: dict[ObjectKey, Sight] = {}
    for key, instance in instances.items():
        before = known.get(key)
        if before is not None and before.instance is instance and _are_nodes_the_same(before, nodes):
            sights[key] = before
        else:
            sights[key] = observe_instance(instance, nodes)
    return sights


def _are_nodes_the_same(before: Sight, nodes: Mapping[str, NodeSight]) -> bool:
    for member, spec in zip(before.members, before.instance.spec.members, strict=True):
        if member.node is not nodes.get(spec.node):
            return False
    return True


def observe_instance(instance: Instance, nodes: Mapping[str, NodeSight]) -> Sight:
    """Members as their nodes reported them; where a node has said nothing yet, as the store recalls them."""
    stored = {member.name: member.phase for member in instance.status.members}
    members: list[MemberSight] = []
    for member in instance.spec.members:
        node = nodes.get(member.node)
        reports = node.report.members if node and node.report else None
        if reports is None:
            members.append(MemberSight(member.name, node, stored.get(member.name, MemberPhase.PENDING), None))
            continue
        report = _report_of(instance, member.name, reports)
        members.append(MemberSight(member.name, node, report.phase if report else MemberPhase.PENDING, report))
    phases = [member.phase for member in members]
    worst = phases[0] if len(phases) == 1 else next(phase for phase in _WORST_FIRST if phase in phases)
    is_confirmed = all(member.node is not None and member.node.state is NodeState.READY for member in members)
    return Sight(instance, tuple(members), worst, is_confirmed, instance.spec.instance_id)


def _report_of(instance: Instance, member: str, reports: tuple[MemberReport, ...]) -> MemberReport | None:
    """The report of this attempt; an older attempt's says nothing of this one."""
    for report in reports:
        if report.instance_id == instance.spec.instance_id and report.member == member:
            return report if report.attempt >= instance.spec.attempt else None
    return None


def is_running_on(node: NodeSight, instance_id: str) -> bool:
    """Whether a node lists a member of this Instance that has not ended, of whatever attempt."""
    reports = (node.report.members if node.report else None) or ()
    return any(report.instance_id == instance_id and report.phase not in ENDED for report in reports)


def reservations(instances: Iterable[Instance]) -> dict[str, tuple[Instance, ...]]:
    """Instances by the nodes that they hold memory on, from the decision on until they are deleted."""
    by_node: dict[str, tuple[Instance, ...]] = {}
    for instance in instances:
        for node in {member.node: None for member in instance.spec.members}:
            by_node[node] = (*by_node.get(node, ()), instance)
    return by_node


def view_node(sight: NodeSight, holders: Collection[Instance], fleet: Fleet | None = None) -> NodeView:
    """One node for the planner, with what `holders` have reserved on it. `fleet`: whose pins count."""
    report = sight.report
    stored = sight.node.status if sight.node else None
    facts = (report.facts if report else None) or (stored.facts if stored else None)
    lanes = report.lanes if report and report.lanes is not None else (stored.lanes if stored else ())
    declared = parse_quantity((sight.node.spec if sight.node else NodeSpec()).reserve.memory)
    pools = tuple(
        Pool(
            name=pool.name,
            total_bytes=pool.total_bytes,
            reserve_bytes=reserve_bytes(pool.name, pool.total_bytes, declared, lanes),
            reserved_bytes=0,
            declared_bytes=declared if pool.name == HOST_POOL else 0,
        )
        for pool in (facts.pools if facts else ())
    )
    pools += tuple(limit_pools(lanes))
    if pins := pinned_versions(sight.node, fleet):
        lanes = tuple(pin_lane(lane, pins.get(lane.engine, "")) for lane in lanes)
    view = NodeView(
        name=sight.name,
        state=sight.state,
        schedulable=sight.node is None or is_schedulable(sight.node),
        labels=sight.node.metadata.labels if sight.node else {},
        lanes=lanes,
        pools=pools,
        cpu_cores=facts.cpu_cores if facts else 1,
        cached=frozenset(report.blobs or ()) if report else frozenset(),
        taints=sight.node.spec.taints if sight.node else (),
        is_offline=sight.node is not None and sight.node.spec.offline,
    )
    held: dict[str, int] = {}
    if not holders:
        return view
    for holder in holders:
        for pool, count in held_bytes(view, holder.spec).items():
            held[pool] = held.get(pool, 0) + count
    return replace(view, pools=tuple(replace(pool, reserved_bytes=held.get(pool.name, 0)) for pool in pools))


def pinned_versions(node: Node | None, fleet: Fleet | None) -> Mapping[EngineName, str]:
    """By engine: the Node's pin, or else the Fleet's."""
    pins = (*(fleet.spec.engines if fleet else ()), *(node.spec.engines if node else ()))
    return {each.engine: each.version for each in pins if each.version}


def is_schedulable(node: Node) -> bool:
    return not node.spec.unschedulable and node.metadata.deletion_timestamp is None


def routed_ids(endpoints: Endpoints | None) -> frozenset[str]:
    """instanceIds in a published table."""
    return frozenset(endpoint.instance_id for endpoint in endpoints.endpoints) if endpoints else frozenset()
