"""Instances that nodes run and the store does not know: adopted while a Placement asks for them, else strays.

An empty store never stops a fleet (DESIGN §5). A stray is kept and routed, shown on its Node, and drained after
`STRAY_SECONDS`; while the store holds no Placement at all it is never drained, unless the operator said that an empty
source is meant. What this very leader deleted while its node was silent isn't forgotten memory: it is drained at once.

All this is for Instances with the seal that their assignment had (`seal.py`). What a node reports without it may be
made up: the Node says so, and nothing else happens, for it may as well be a real one of an agent that knew no seals.
"""

import hmac
import re

from covey_api.instance import Instance, InstanceGoal
from covey_api.kinds import ObjectKey
from covey_api.meta import DEFAULT_NAMESPACE, NAME_PATTERN
from covey_api.reasons import EventReason
from covey_planner.types import NodeState

from covey_controller.reconcile.draft import Draft, node_key
from covey_controller.reconcile.finalizers import held_metadata
from covey_controller.reconcile.fleet import ENDED, is_running_on, observe_instance
from covey_controller.reconcile.names import lowest_free_name
from covey_controller.reconcile.sights import NodeSight, Sight

# Long enough to put a lost file back, short enough that forgotten memory is found the same day.
STRAY_SECONDS = 15 * 60.0
# How far above its own count a store believes attempts: a node that lies may not use up the numbers there are.
MAX_ATTEMPT_LEAP = 10_000
# The length that Instances' names may have, which is what namespaces may have too.
_NAME = re.compile(rf"(?=.{{1,{Instance.MAX_NAME_LENGTH}}}$){NAME_PATTERN.removeprefix('^')}")


def plan_adoption(draft: Draft) -> None:
    """Take in what nodes hold, before anything is planned."""
    known = {sight.id for sight in draft.sights.values()}
    found: dict[str, Instance] = {}
    silent: set[str] = set()
    for node in draft.nodes.values():
        if node.report is None or not node.report.members:
            continue
        for instance in _unknown_instances(draft, node, known):
            # What a node said before it fell silent may be over: nothing is adopted by it, and no stray is found.
            if node.state is not NodeState.UNKNOWN or instance.spec.instance_id in draft.strays:
                found[instance.spec.instance_id] = instance
            if node.state is NodeState.UNKNOWN:
                silent.add(instance.spec.instance_id)
    for instance in sorted(found.values(), key=lambda each: each.spec.instance_id):
        owner = ObjectKey("Placement", instance.metadata.namespace or DEFAULT_NAMESPACE, instance.spec.placement)
        placement = draft.placements.get(owner)
        is_wished = placement is not None and placement.metadata.deletion_timestamp is None
        is_wished = is_wished and instance.spec.instance_id not in draft.ended
        if is_wished and instance.spec.instance_id not in silent and instance.key not in draft.indexed.taken_names:
            _adopt(draft, instance)
        else:
            _keep_stray(draft, instance)
    draft.strays = {each: since for each, since in draft.strays.items() if each in draft.stray_instances}
    _catch_up_attempts(draft)


def _unknown_instances(draft: Draft, node: NodeSight, known: set[str]) -> list[Instance]:
    """Whole, sealed Instances in this node's report that the store does not know, and that have not ended.

    A node speaks for itself: what it says another one alone runs would be run there, from any source it names. Of
    several members the first must be its own: that node computes and has the file. From another's words the options,
    runtime and sources of that node's engine would be taken, which no seal holds.
    """
    reports = (node.report.members if node.report else None) or ()
    found: list[Instance] = []
    unsealed: set[str] = set()
    for report in reports:
        if report.phase in ENDED or report.instance_id in known:
            continue
        if own := _deleted_here(draft, node, report.instance_id):
            found.append(own)
            continue
        instance = report.instance
        if instance is None or instance.spec.instance_id in known:
            continue
        if not _is_believable(instance, draft.world.term):
            continue
        is_sealed, first = (
            hmac.compare_digest(report.seal, draft.world.seal_of(instance)),
            instance.spec.members[0].node,
        )
        if first != node.name:
            if is_sealed and _may_be_told(draft, first):
                draft.awaiting.add(node.name)
                draft.unclaimed.setdefault(node.name, []).append(instance)
            elif is_sealed and not _is_run_by(draft, first, report.instance_id):
                draft.unclaimed.setdefault(node.name, []).append(instance)
                _forsake(draft, node, report.member, instance)
        elif is_sealed:
            found.append(instance)
        else:
            unsealed.add(f"{instance.metadata.namespace or DEFAULT_NAMESPACE}/{instance.metadata.name}")
    if unsealed:
        draft.unsealed[node.name] = tuple(sorted(unsealed))
    return found


def _deleted_here(draft: Draft, node: NodeSight, instance_id: str) -> Instance | None:
    """What this leader deleted while the node was silent, by its own memory: the node, which takes its Instance to be
    known here, leaves that out of its report, and the memory that it holds may be given to nobody else."""
    own = draft.ended.get(instance_id)
    return own if own is not None and any(member.node == node.name for member in own.spec.members) else None


def _may_be_told(draft: Draft, first: str) -> bool:
    """Whether the node of a group's first member may still tell of it: until then the others' nodes are left alone."""
    due = draft.world.led_since + STRAY_SECONDS
    draft.wake_at(due)
    sight = draft.nodes.get(first)
    has_told = sight is not None and sight.report is not None and sight.report.members is not None
    is_there = has_told and sight is not None and sight.state is not NodeState.UNKNOWN
    return not is_there and draft.now < due


def _is_run_by(draft: Draft, node: str, instance_id: str) -> bool:
    """As far as it has told this leader."""
    sight = draft.nodes.get(node)
    return sight is not None and is_running_on(sight, instance_id)


def _forsake(draft: Draft, node: NodeSight, member: str, instance: Instance) -> None:
    """A member of a group whose first one is gone: its node would keep it for ever, as it keeps all that is left out.

    One that was linked to the first ends with it; one that never was waits for it.
    """
    draft.forsaken.setdefault(node.name, []).append((member, instance))
    published = draft.world.published.assignments.get(node.name)
    told = {each.instance.spec.instance_id for each in published.members} if published is not None else set[str]()
    if instance.spec.instance_id not in told:
        first = instance.spec.members[0].node
        message = f"holds a member of instance '{instance.metadata.name}', which node '{first}' does not run: stopped"
        draft.note(node_key(node.name), EventReason.STRAY_FOUND, message, warning=True)


def _is_believable(instance: Instance, term: int) -> bool:
    """Whether anybody may say this: a later term than the leader's, or no valid name, could not be stored, and every
    turn would fail by it."""
    names = (instance.metadata.name, instance.metadata.namespace or DEFAULT_NAMESPACE)
    return instance.spec.term <= term and all(_NAME.fullmatch(name) for name in names)


def _adopt(draft: Draft, instance: Instance) -> None:
    """The same Instance, made again: identity, stamps and goal as they were, under this leader's term."""
    namespace = instance.metadata.namespace or DEFAULT_NAMESPACE
    name = instance.metadata.name
    if ObjectKey("Instance", namespace, name) in draft.sights:
        name = lowest_free_name(draft, namespace, instance.spec.placement)
    spec = instance.spec.model_copy(update={"term": max(instance.spec.term, draft.world.term)})
    adopted = Instance(metadata=held_metadata(name, namespace), spec=spec)
    nodes = ", ".join(f"'{member.node}'" for member in spec.members)
    draft.create(adopted, EventReason.ADOPTED, f"node {nodes} runs it and the store did not know it: adopted as it is")


def _keep_stray(draft: Draft, instance: Instance) -> None:
    instance_id = instance.spec.instance_id
    draft.stray_instances[instance_id] = instance
    if instance_id not in draft.strays:
        draft.strays[instance_id] = draft.now
        is_ended = instance_id in draft.ended
        why = (
            "was deleted while it was silent: drained"
            if is_ended
            else "no Placement asks for: kept, and served while it runs"
        )
        for node in {member.node: None for member in instance.spec.members}:
            message = f"holds instance '{instance.metadata.name}', which {why}"
            draft.note(node_key(node), EventReason.STRAY_FOUND, message, warning=True)


def observe_strays(draft: Draft) -> list[Sight]:
    """Strays as the table and assignments see them: with goal Drain once their time is over."""
    may_drain = draft.complete and (bool(draft.placements) or draft.world.allow_empty)
    sights: list[Sight] = []
    for instance_id, instance in sorted(draft.stray_instances.items()):
        due = draft.strays[instance_id] + STRAY_SECONDS
        if draft.complete and instance_id in draft.ended:
            spec = instance.spec.model_copy(update={"goal": InstanceGoal.DRAIN})
            instance = instance.model_copy(update={"spec": spec})
        elif not may_drain or _is_of_another_version(draft, instance):
            # The time runs only while somebody wishes for something: a store that is filled again has all of it.
            draft.strays[instance_id] = draft.now
        elif may_drain and draft.now >= due:
            spec = instance.spec.model_copy(update={"goal": InstanceGoal.DRAIN})
            instance = instance.model_copy(update={"spec": spec})
        elif may_drain:
            draft.wake_at(due)
        sights.append(observe_instance(instance, draft.nodes))
    return sights


def _is_of_another_version(draft: Draft, instance: Instance) -> bool:
    """Whether it, or its Placement, is stored in a way that this version can't read: then it isn't forgotten."""
    namespace = instance.metadata.namespace or DEFAULT_NAMESPACE
    owner = ObjectKey("Placement", namespace, instance.spec.placement)
    own = ObjectKey("Instance", namespace, instance.metadata.name)
    return owner in draft.indexed.unreadable or own in draft.indexed.taken_names


def _catch_up_attempts(draft: Draft) -> None:
    """An attempt that a node already runs is never numbered lower in the store (an older store was put back)."""
    for sight in list(draft.sights.values()):
        attempt = max((m.report.attempt for m in sight.members if m.report), default=0)
        spec = sight.instance.spec
        if spec.attempt < attempt <= spec.attempt + MAX_ATTEMPT_LEAP:
            changed = spec.model_copy(update={"attempt": attempt, "term": max(spec.term, draft.world.term)})
            draft.update(sight.instance.model_copy(update={"spec": changed}))
