"""`plan(world, now) -> Plan`: pure, total, deterministic. The same world gives the same plan, to the byte.

What it must not do: read a clock, invent an id, iterate a set unsorted, raise because a wish can't be had.

Order of one plan:

1. Nodes as they look now; whether the fleet has been seen whole (`complete`).
2. Answers to asks become Model status; Instances that only nodes know are adopted, or kept as strays.
3. Only when complete: losses, then each Placement (who leaves, who comes), orphans, drains, deletions.
4. Asks; assignments; the endpoints table (when complete); statuses.
"""

from collections.abc import Iterable
from typing import TypeVar

from covey_api.access_key import AccessKey
from covey_api.fleet import Fleet
from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import ObjectMeta
from covey_api.model import Model
from covey_api.node import Node
from covey_api.placement import Placement
from covey_api.reasons import EventReason
from covey_planner.types import NodeState

from covey_controller.reconcile.adoption import observe_strays, plan_adoption
from covey_controller.reconcile.asks import plan_answers, plan_asks
from covey_controller.reconcile.assignments import plan_assignments
from covey_controller.reconcile.draft import Draft, node_key, sort_key
from covey_controller.reconcile.drains import observe_losses, plan_drains
from covey_controller.reconcile.failures import observe_absence
from covey_controller.reconcile.fleet import NodeSight, observe_instance, observe_nodes
from covey_controller.reconcile.instances import plan_placement
from covey_controller.reconcile.judge import judge_placement
from covey_controller.reconcile.outcomes import CreateNode, DeleteObject, Plan
from covey_controller.reconcile.status import is_deletable_node, plan_statuses
from covey_controller.reconcile.table import plan_table
from covey_controller.reconcile.world import Memory, World

# How long known nodes may take to report to a new leader before it goes on without them.
FIRST_REPORTS_SECONDS = 10.0
# With no node known the store is new, or was lost: whoever runs already is back within this.
UNKNOWN_FLEET_SECONDS = 3.0
# A plan this long after the last one: the leader was paused, and heard nobody meanwhile.
PAUSE_SECONDS = 10.0
# The longest sleep: well below PAUSE_SECONDS.
MAX_SLEEP_SECONDS = 5.0

K = TypeVar("K", bound=Kind)


def plan(world: World, now: float) -> Plan:
    """What to do now, and why."""
    stored = {item.key: item for item in sorted(world.objects, key=lambda item: sort_key(item.key))}
    draft = _begin(world, stored, now)
    plan_answers(draft)
    plan_adoption(draft)
    strays = observe_strays(draft)
    if draft.complete:
        observe_absence(draft)
        observe_losses(draft)
        for key, placement in draft.placements.items():
            plan_placement(draft, key, placement)
        _drain_orphans(draft)
        plan_drains(draft, strays)
        _finish_deletions(draft)
    plan_asks(draft)
    outcomes = (
        {key: judge_placement(draft, key, each) for key, each in draft.placements.items()} if draft.complete else {}
    )
    plan_statuses(draft, outcomes, stored)
    return Plan(
        actions=tuple(draft.actions),
        assignments=plan_assignments(draft, strays),
        endpoints=plan_table(draft, strays, outcomes) if draft.complete else None,
        statuses=tuple(draft.statuses),
        notes=tuple(draft.notes),
        memory=_remember(draft),
        used_answers=tuple(draft.used_answers),
        wake_at=min((*draft.deadlines, now + MAX_SLEEP_SECONDS)),
    )


def _of_kind(objects: Iterable[Kind], kind: type[K]) -> dict[ObjectKey, K]:
    return {item.key: item for item in objects if isinstance(item, kind)}


def _begin(world: World, stored: dict[ObjectKey, Kind], now: float) -> Draft:
    memory = world.memory
    was_paused = memory.planned_at is not None and now - memory.planned_at > PAUSE_SECONDS
    watched_since = world.led_since if memory.watching_since is None else memory.watching_since
    watching_since = now if was_paused else watched_since
    instances = _of_kind(stored.values(), Instance)
    nodes = _of_kind(stored.values(), Node)
    sights = observe_nodes(nodes.values(), world.agents, world.led_since, watching_since, now)
    draft = Draft(
        world=world,
        now=now,
        fleet=next(iter(_of_kind(stored.values(), Fleet).values()), None),
        models=_of_kind(stored.values(), Model),
        placements=_of_kind(stored.values(), Placement),
        keys=tuple(_of_kind(stored.values(), AccessKey).values()),
        nodes=sights,
        sights={key: observe_instance(instance, sights) for key, instance in instances.items()},
        complete=memory.complete,
        watching_since=watching_since,
        drains=dict(memory.drains),
        lost=dict(memory.lost),
        unreachable=set(memory.unreachable),
        absent=dict(memory.absent),
        failed=dict(memory.failed),
        backoffs=dict(memory.backoffs),
        asks=dict(memory.asks),
        searches=dict(memory.searches),
        strays=dict(memory.strays),
        retries=dict(memory.retries),
    )
    draft.complete = memory.complete or _is_complete(draft, memory.expected)
    for node in sights.values():
        draft.wake_at(node.unknown_since)
        if node.node is None and node.report is not None and node.state is not NodeState.UNKNOWN:
            _join(draft, node)
    return draft


def _is_complete(draft: Draft, expected: frozenset[str] | None) -> bool:
    """Whether enough of the fleet has been seen to decide about what runs.

    1. `FIRST_REPORTS_SECONDS` have passed: yes, whoever is missing.
    2. Nodes were known: when each has reported whole.
    3. None was known: when somebody has reported and `UNKNOWN_FLEET_SECONDS` have passed.
    """
    led_since, now = draft.world.led_since, draft.now
    draft.wake_at(led_since + FIRST_REPORTS_SECONDS)
    if now >= led_since + FIRST_REPORTS_SECONDS:
        return True
    reported = {n.name for n in draft.nodes.values() if n.report is not None and n.report.members is not None}
    known = _expected(draft, expected)
    if known:
        return known <= reported
    draft.wake_at(led_since + UNKNOWN_FLEET_SECONDS)
    return bool(reported) and now >= led_since + UNKNOWN_FLEET_SECONDS


def _expected(draft: Draft, expected: frozenset[str] | None) -> frozenset[str]:
    """Nodes that the store knew at this leader's first look."""
    known = frozenset(node.name for node in draft.nodes.values() if node.node is not None)
    return known if expected is None else expected


def _join(draft: Draft, node: NodeSight) -> None:
    draft.actions.append(CreateNode(Node(metadata=ObjectMeta(name=node.name))))
    draft.note(node_key(node.name), EventReason.NODE_JOINED, "its agent reported: a Node with an empty spec was made")


def _drain_orphans(draft: Draft) -> None:
    """Instances whose Placement is gone."""
    for sight in list(draft.sights.values()):
        key = sight.instance.key
        if ObjectKey("Placement", key.namespace, sight.instance.spec.placement) not in draft.placements:
            draft.drain(sight, f"placement '{sight.instance.spec.placement}' does not exist any more")


def _finish_deletions(draft: Draft) -> None:
    """Placements and Nodes whose deletion was asked for go when nothing of theirs runs."""
    for key, placement in draft.placements.items():
        if placement.metadata.deletion_timestamp is not None and not draft.sights_of(key):
            draft.actions.append(DeleteObject(key, placement.metadata.uid))
    for node in draft.nodes.values():
        if node.node is not None and is_deletable_node(draft, node.node):
            draft.actions.append(DeleteObject(node.node.key, node.node.metadata.uid))


def _remember(draft: Draft) -> Memory:
    ids = {sight.id for sight in draft.sights.values()}
    placements = draft.placements.keys()
    return Memory(
        complete=draft.complete,
        expected=_expected(draft, draft.world.memory.expected),
        planned_at=draft.now,
        watching_since=draft.watching_since,
        drains=draft.drains,
        lost=draft.lost,
        unreachable=frozenset(draft.unreachable),
        absent=draft.absent,
        failed={each: attempt for each, attempt in draft.failed.items() if each in ids},
        backoffs={spot: backoff for spot, backoff in draft.backoffs.items() if spot.placement in placements},
        asks=draft.asks,
        searches=draft.searches,
        strays=draft.strays,
        retries={key: value for key, value in draft.retries.items() if key in placements},
    )
