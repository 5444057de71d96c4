"""What each node should do: its members with their goals, strays included, and open asks.

An Instance travels as it was stamped, without status and store metadata, so that a snapshot changes only when what it
asks for changes. `complete` is true for a node only after that node has told this leader all it holds: a leader that
doesn't know what is there never lets it be stopped by leaving it out. That of a group only the node of its first member
tells (`adoption`), for which the others' nodes wait.
"""

from collections.abc import Mapping
from operator import is_

from covey_api.instance import Instance, InstanceGoal, MemberPhase, MemberRole
from covey_api.kinds import ObjectKey
from covey_api.messages import Ask, Assignments, MemberAssignment, MemberFront, MemberGoal
from covey_api.meta import ObjectMeta
from covey_api.model import ResolvedArtifact, architecture_for
from covey_api.node import NodeSpec

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.sights import NodeSight, Sight
from covey_controller.reconcile.stores import is_store, observe_kept
from covey_controller.reconcile.world import Drain

# Who waits to be told of others before it starts.
_IS_TOLD = frozenset({MemberRole.DRIVER, MemberRole.RANK})
_OVER = frozenset({MemberPhase.FAILED, MemberPhase.STOPPED})


def plan_assignments(draft: Draft, strays: list[Sight]) -> Mapping[str, Assignments]:
    """By node, sorted; term and serial are set when it is published."""
    published = draft.world.published.assignments
    members: dict[str, list[MemberAssignment]] = {}
    for sight in sorted((*draft.sights.values(), *strays), key=lambda each: each.id):
        goal = member_goal(sight.instance, draft.drains.get(sight.id))
        doubt = draft.doubts.get(sight.id)
        since = doubt.since if doubt else ""
        for member in sight.instance.spec.members:
            before = _find_member(published.get(member.node), sight.id, member.name)
            assignment = _assign_member(draft, sight.instance, member.name, goal, before)
            fronts = plan_fronts(sight) if member.role in _IS_TOLD else ()
            if assignment.suspect_since != since or assignment.fronts != fronts:
                assignment = assignment.changed(suspect_since=since, fronts=fronts)
            members.setdefault(member.node, []).append(assignment)
    for node, forsaken in draft.forsaken.items():
        for name, instance in forsaken:
            before = _find_member(published.get(node), instance.spec.instance_id, name)
            members.setdefault(node, []).append(_assign_member(draft, instance, name, MemberGoal.STOP, before))
    asks: dict[str, list[Ask]] = {}
    for _, open_ask in sorted(draft.asks.items()):
        asks.setdefault(open_ask.node, []).append(open_ask.ask)
    stores = {node.name for node in draft.nodes.values() if is_store(node)}
    kept = observe_kept(draft)[0] if stores else ()
    return {
        name: _assign(
            draft, node, tuple(members.get(name, ())), tuple(asks.get(name, ())), kept if name in stores else ()
        )
        for name, node in draft.nodes.items()
    }


def _find_member(published: Assignments | None, instance_id: str, member: str) -> MemberAssignment | None:
    for each in published.members if published is not None else ():
        if each.member == member and each.instance.spec.instance_id == instance_id:
            return each
    return None


def plan_fronts(sight: Sight) -> tuple[MemberFront, ...]:
    """Donors that are ready in this attempt: their driver is started once all are. Ranks that keep a port for it, which
    they do when they lack nothing else: all are started once all do."""
    found: list[MemberFront] = []
    for member, spec in zip(sight.members, sight.instance.spec.members, strict=True):
        report, node = member.report, member.node.report if member.node else None
        if spec.role not in (MemberRole.DONOR, MemberRole.RANK) or report is None or node is None:
            continue
        is_ready = report.phase is MemberPhase.READY if spec.role is MemberRole.DONOR else report.phase not in _OVER
        is_there = is_ready and report.attempt == sight.instance.spec.attempt
        if is_there and report.front_port and node.address:
            found.append(MemberFront(member=member.name, address=node.address, port=report.front_port))
    return tuple(found)


def member_goal(instance: Instance, drain: Drain | None) -> MemberGoal:
    """Serve, then Drain, then Stop; within an attempt only forward."""
    if instance.spec.goal is InstanceGoal.RUN:
        return MemberGoal.SERVE
    return MemberGoal.STOP if drain and drain.stop else MemberGoal.DRAIN


def _assign(
    draft: Draft,
    node: NodeSight,
    members: tuple[MemberAssignment, ...],
    asks: tuple[Ask, ...],
    kept: tuple[ResolvedArtifact, ...],
) -> Assignments:
    """As the last plan had it, while it says the same: most nodes', in most plans."""
    before = draft.world.memory.assignments.get(node.name)
    report = node.report
    is_complete = draft.complete and report is not None and report.members is not None
    is_complete = is_complete and node.name not in draft.awaiting
    if (
        before is not None
        and before.term == draft.world.term
        and before.complete is is_complete
        and node.node is not None
        and before.spec is node.node.spec
        and len(before.members) == len(members)
        and (not members or all(map(is_, before.members, members)))
        and before.asks == asks
        and before.kept == kept
    ):
        return before
    return Assignments(
        term=draft.world.term,
        serial=0,
        complete=is_complete,
        node=node.name,
        spec=node.node.spec if node.node else NodeSpec(),
        members=members,
        asks=asks,
        kept=kept,
    )


def _assign_member(
    draft: Draft, instance: Instance, member: str, goal: MemberGoal, before: MemberAssignment | None
) -> MemberAssignment:
    """As it is published, but for its goal, while it is of the very same spec: bare form, key and seal follow it."""
    if before is not None and before.instance.spec is instance.spec and _is_named(before.instance, instance):
        return before if before.goal is goal else before.changed(goal=goal)
    key, seal = draft.world.engine_key(instance.spec.instance_id), draft.world.seal_of(instance)
    return MemberAssignment(
        instance=_bare(instance),
        member=member,
        goal=goal,
        key=key,
        seal=seal,
        architecture=_architecture_of(draft, instance),
    )


def _architecture_of(draft: Draft, instance: Instance) -> str:
    """As a node read it of the very artifact; what a Model declares in its place is no fact."""
    spec = instance.spec
    model = draft.models.get(ObjectKey("Model", instance.metadata.namespace, spec.model))
    for each in model.status.variants if model else ():
        if (
            each.name == spec.variant
            and each.geometry
            and each.artifact
            and each.artifact.digest == spec.artifact.digest
        ):
            return architecture_for(spec.engine, each.geometry)
    return ""


def _is_named(bare: Instance, instance: Instance) -> bool:
    names, others = bare.metadata, instance.metadata
    return (names.name, names.namespace) == (others.name, others.namespace)


def _bare(instance: Instance) -> Instance:
    metadata = ObjectMeta(name=instance.metadata.name, namespace=instance.metadata.namespace)
    return Instance(metadata=metadata, spec=instance.spec)
