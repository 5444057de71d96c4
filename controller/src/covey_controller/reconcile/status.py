"""Statuses: what is written about each object, and only when it differs from what is stored.

Until the fleet has been seen whole, only what was heard is written (nodes that report, headers that were read): what
the store recalls of Instances and Placements is better than a guess.
"""

from collections.abc import Iterable, Mapping

from covey_api.instance import Instance, InstanceGoal, InstancePhase, InstanceStatus, MemberPhase, MemberStatus
from covey_api.kinds import Kind, ObjectKey
from covey_api.messages import NODE_SILENCE_SECONDS
from covey_api.meta import Status
from covey_api.model import Model
from covey_api.node import Node
from covey_api.placement import Placement, PlacementStatus, ReasonCount
from covey_api.reasons import EventReason, FleetReason, NodeReason

from covey_controller.reconcile.asks import is_read
from covey_controller.reconcile.conditions import Claim, conditions_of, is_changed, make_claim
from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.judge import judge_instance, judge_key, judge_model, judge_node
from covey_controller.reconcile.outcomes import Done, Note, Outcome, Stalled, Waiting
from covey_controller.reconcile.paths import observe_path_failures, plan_path_condition
from covey_controller.reconcile.progress import render_progress
from covey_controller.reconcile.resting import observe_node_rest
from covey_controller.reconcile.sights import MemberSight, NodeSight, Sight
from covey_controller.reconcile.stores import plan_store_condition
from covey_controller.reconcile.table import address_of, front_of, refused_keys
from covey_controller.reconcile.unusable import plan_unusable_condition
from covey_controller.reconcile.usage import count_key
from covey_controller.reconcile.versions import plan_version_condition

_PHASES = {
    MemberPhase.PENDING: InstancePhase.PENDING,
    MemberPhase.FETCHING: InstancePhase.PENDING,
    MemberPhase.STARTING: InstancePhase.STARTING,
    MemberPhase.BACKOFF: InstancePhase.STARTING,
    MemberPhase.READY: InstancePhase.READY,
    MemberPhase.DRAINING: InstancePhase.DRAINING,
    MemberPhase.STOPPED: InstancePhase.PENDING,
    MemberPhase.FAILED: InstancePhase.FAILED,
}
# Names in one message; a node may report as many as fit in a body.
MAX_NAMES = 8
# Names in one column: what a line on a screen has room for.
MAX_COLUMN_NAMES = 4
# What a Node's status holds of a report, which has no such bounds; plans see all lanes.
MAX_LANES, MAX_VERSION = 64, 64
_SAYS_WHY = frozenset({MemberPhase.BACKOFF, MemberPhase.FAILED})


def plan_statuses(draft: Draft, outcomes: Mapping[ObjectKey, Outcome], stored: Mapping[ObjectKey, Kind]) -> None:
    """Write what differs; note each change of `Ready`."""
    refused = draft.indexed.refused_aliases
    for key, model in draft.models.items():
        before, aliases = stored.get(key), refused.get(key, {})
        if not aliases and draft.world.memory.resting_models.get(key) is model:
            draft.resting_models[key] = model
        elif isinstance(before, Model):
            said, outcome = len(draft.statuses) + len(draft.notes), judge_model(draft, model, aliases)
            _write(draft, before, before.status, model.status, outcome)
            # What no node can read now may be read by one that comes.
            is_done = isinstance(outcome, Done) and is_read(model)
            if is_done and len(draft.statuses) + len(draft.notes) == said:
                draft.resting_models[key] = model
    failures = observe_path_failures(draft)
    for node in draft.nodes.values():
        seen = observe_node_rest(draft, node, failures)
        if seen is None or seen != draft.world.memory.resting_nodes.get(node.name):
            said = len(draft.statuses) + len(draft.notes)
            _write_node(draft, node, failures)
            if len(draft.statuses) + len(draft.notes) > said:
                continue
        if seen is not None:
            draft.resting_nodes[node.name] = seen
    if not draft.complete:
        return
    _write_settings(draft)
    for key, sight in draft.sights.items():
        before = stored.get(key)
        if isinstance(before, Instance) and sight.id not in draft.resting_ids:
            _write(draft, before, before.status, _observed_instance(sight), judge_instance(draft, sight))
    for key, placement in draft.placements.items():
        if key in draft.resting:
            continue
        status = _observed_placement(draft, key, placement)
        _write(draft, placement, placement.status, status, outcomes[key], _placement_conditions(draft, key))


def _write_node(draft: Draft, sight: NodeSight, failures: Mapping[str, tuple[str, ...]]) -> None:
    node = sight.node
    if node is not None and (draft.complete or sight.report is not None):
        conditions = _node_conditions(draft, sight, failures)
        _write(draft, node, node.status, _observed_node(node, sight), judge_node(sight), conditions)


def _write_settings(draft: Draft) -> None:
    """What has no state of its own: seen, and in force. Unsaid, a wait for it would never end."""
    if (fleet := draft.fleet) is not None:
        _write(draft, fleet, fleet.status, fleet.status, Done(FleetReason.APPLIED, "new instances are made by it"))
    refused = refused_keys(draft.keys)
    for key in draft.keys:
        is_refused = key.key in refused
        status = key.status if is_refused else key.status.changed(usage=count_key(draft, key))
        _write(draft, key, key.status, status, judge_key(is_refused=is_refused))


def _write(
    draft: Draft, item: Kind, stored: Status, status: Status, outcome: Outcome, extra: tuple[Claim, ...] = ()
) -> None:
    generation = item.metadata.generation
    conditions = conditions_of(outcome, stored, generation, draft.world.timestamp, extra, draft.made_conditions)
    changed = status.changed(observed_generation=generation, conditions=conditions)
    draft.write_status(item, stored, changed)
    if conditions is not stored.conditions and is_changed(outcome, stored):
        is_warning = isinstance(outcome, Stalled) or (isinstance(outcome, Waiting) and outcome.warns)
        draft.notes.append(Note(item.key, outcome.reason.value, outcome.message, is_warning))


def _observed_node(stored: Node, node: NodeSight) -> Status:
    before, report = stored.status, node.report
    if report is None:
        return before
    lanes = before.lanes if report.lanes is None else report.lanes[:MAX_LANES]
    return before.changed(
        version=report.version[:MAX_VERSION],
        facts=report.facts or before.facts,
        lanes=lanes,
        lane_names=join_names(f"{lane.engine}/{lane.compute}" for lane in lanes),
        unusable_names=join_names(each.engine.value for each in report.unusable or ()),
    )


def _node_conditions(draft: Draft, node: NodeSight, failures: Mapping[str, tuple[str, ...]]) -> tuple[Claim, ...]:
    path = plan_path_condition(draft, node, node.node, failures) if node.node is not None else ()
    own = (*_stray_condition(draft, node), *_unsealed_condition(draft, node), *_contested_condition(draft, node))
    told = (*plan_unusable_condition(draft, node), *plan_store_condition(draft, node))
    return (*own, *told, *plan_version_condition(draft, node), *path)


def _contested_condition(draft: Draft, node: NodeSight) -> tuple[Claim, ...]:
    """`NameContested`, only while another machine reports under the same name; noted when it appears."""
    heard = node.agent.rival if node.agent else None
    if heard is None or heard + NODE_SILENCE_SECONDS <= draft.now or node.node is None:
        return ()
    draft.wake_at(heard + NODE_SILENCE_SECONDS)
    message = (
        f"another machine reports as '{node.name}' too: the one that came first is heard, the other is "
        "refused. Give one of them another name (`--name`) and a state folder of its own"
    )
    if all(before.type != "NameContested" for before in node.node.status.conditions):
        draft.note(node.node.key, EventReason.NAME_CONTESTED, message, warning=True)
    return (make_claim("NameContested", is_true=True, reason=NodeReason.NAME_CONTESTED, message=message),)


def _unsealed_condition(draft: Draft, node: NodeSight) -> tuple[Claim, ...]:
    """`UnsealedInstances`, only while there are any; noted when it appears."""
    unsealed = draft.unsealed.get(node.name, ())
    if not unsealed or node.node is None:
        return ()
    names = ", ".join(f"'{name}'" for name in unsealed[:MAX_NAMES])
    more = f" and {len(unsealed) - MAX_NAMES} more" if len(unsealed) > MAX_NAMES else ""
    message = (
        f"reports {names}{more} without this controller's seal: not adopted, not routed, and not stopped. An agent of "
        "an older version does that after the store was lost, and every agent after 'fleet.secret' was: put the secret "
        f"back, or clear the agent's state on '{node.name}'. If it is neither, don't trust the node: delete it."
    )
    if all(before.type != "UnsealedInstances" for before in node.node.status.conditions):
        draft.note(node.node.key, EventReason.UNSEALED_FOUND, message, warning=True)
    return (make_claim("UnsealedInstances", is_true=True, reason=NodeReason.NOT_SEALED, message=message),)


def _stray_condition(draft: Draft, node: NodeSight) -> tuple[Claim, ...]:
    """`StrayInstances`, only while there are any."""
    if not draft.stray_instances:
        return ()
    strays = [
        instance.metadata.name
        for _, instance in sorted(draft.stray_instances.items())
        if any(member.node == node.name for member in instance.spec.members)
    ]
    if not strays:
        return ()
    names = ", ".join(f"'{name}'" for name in strays)
    message = f"runs {names}, which no Placement asks for: kept, routed, and drained later"
    return (make_claim("StrayInstances", is_true=True, reason=NodeReason.NOT_WISHED, message=message),)


def _observed_instance(sight: Sight) -> InstanceStatus:
    instance = sight.instance
    stored = {member.name: member for member in instance.status.members}
    members = tuple(
        _observed_member(member, spec.node, stored.get(member.name))
        for member, spec in zip(sight.members, instance.spec.members, strict=True)
    )
    address = address_of(sight) if sight.phase in (MemberPhase.READY, MemberPhase.DRAINING) else None
    is_draining = instance.spec.goal is InstanceGoal.DRAIN and sight.phase is not MemberPhase.FAILED
    phase = InstancePhase.DRAINING if is_draining else _PHASES[sight.phase]
    endpoint = f"http://{address[0]}:{address[1]}" if address else ""
    front = front_of(sight) if address else None
    rendered = render_front(front) if front else ""
    return instance.status.changed(phase=phase, members=members, endpoint=endpoint, front=rendered)


def render_front(front: tuple[str, int]) -> str:
    host, port = front
    return f"tls://[{host}]:{port}" if ":" in host else f"tls://{host}:{port}"


def _observed_member(member: MemberSight, node: str, stored: MemberStatus | None) -> MemberStatus:
    report = member.report
    reason = report if member.phase in _SAYS_WHY else None
    before = stored or MemberStatus(name=member.name, node=node)
    return before.changed(
        node=node,
        phase=member.phase,
        cause=reason.cause if reason else None,
        message=reason.message if reason else "",
        restarts=report.restarts if report else 0,
        progress=render_progress(report.progress, before.progress) if report and report.progress else "",
    )


def _observed_placement(draft: Draft, key: ObjectKey, placement: Placement) -> PlacementStatus:
    progressing = draft.progressing[key]
    running = [s for s in draft.sights_of(key) if s.instance.spec.goal is InstanceGoal.RUN]
    serving = [s for s in running if s.phase is MemberPhase.READY and s.is_confirmed]
    ready_as_wished = sum(s.instance.spec.revision == progressing.revision for s in serving)
    specs = [sight.instance.spec for sight in running]
    nodes = sorted({member.node for spec in specs for member in spec.members})
    refused = progressing.decision
    closest = refused.closest if refused else None
    return placement.status.changed(
        replicas=len(running),
        ready_replicas=len(serving),
        selector=f"covey.dev/placement={key.name}",
        revision=progressing.revision or placement.status.revision,
        ready=f"{ready_as_wished}/{progressing.wanted}",
        engine=",".join(sorted({f"{spec.engine}/{spec.compute}" for spec in specs}))[:64],
        context_tokens=min((s.instance.spec.options.context_tokens for s in serving or running), default=None),
        nodes=tuple(nodes)[:64],
        node_names=join_names(nodes),
        refusals=tuple(ReasonCount(reason=r, nodes=n) for r, n in (refused.counts if refused else ()))[:16],
        closest_refusal=f"{closest.node or 'together'}: {closest.reason}: {closest.message}"[:1024] if closest else "",
        failures=progressing.failures,
    )


def join_names(names: Iterable[str]) -> str:
    """One text for a printer column: kubectl prints of a list the first entry, or JSON."""
    whole = sorted(set(names))
    more = f" + {len(whole) - MAX_COLUMN_NAMES} more" if len(whole) > MAX_COLUMN_NAMES else ""
    return ",".join(whole[:MAX_COLUMN_NAMES]) + more


def _placement_conditions(draft: Draft, key: ObjectKey) -> tuple[Claim, ...]:
    """How far the wished replicas are: placed, artifacts there, engines ready, serving."""
    progressing = draft.progressing[key]
    running = [s for s in draft.sights_of(key) if s.instance.spec.goal is InstanceGoal.RUN]
    current = [s for s in running if s.instance.spec.revision == progressing.revision]
    phases = [sight.phase for sight in current]
    is_planned = len(current) >= progressing.wanted
    is_fetched = is_planned and not any(p in (MemberPhase.PENDING, MemberPhase.FETCHING) for p in phases)
    is_ready = sum(phase is MemberPhase.READY for phase in phases) >= progressing.wanted
    is_serving = any(sight.phase is MemberPhase.READY for sight in running)
    steps = (
        ("Planned", is_planned),
        ("ArtifactsReady", is_fetched),
        ("EngineReady", is_ready),
        ("Serving", is_serving),
    )
    return tuple(make_claim(name, is_true=is_true, reason=name if is_true else f"Not{name}") for name, is_true in steps)


def is_deletable_node(draft: Draft, node: Node) -> bool:
    """A Node whose deletion was asked for, with nothing on it any more."""
    if node.metadata.deletion_timestamp is None:
        return False
    members = (member for sight in draft.sights.values() for member in sight.instance.spec.members)
    return all(member.node != node.metadata.name for member in members)
