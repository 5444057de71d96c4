"""`plan(world, now) -> Plan`: pure, total, deterministic. The same world gives the same plan, to the byte.

What it must not do: read a clock, invent an id, iterate a set unsorted, raise because a wish can't be had.

Order of one plan:

1. Nodes as they look now; whether the fleet has been seen whole (`complete`).
2. Answers to asks, and what engines took, become Model status; Instances that only nodes know are adopted, or kept as
   strays.
3. Only when complete: losses, how many are asked for, then each Placement by its priority (who leaves, who comes),
   orphans, drains, doubts, deletions.
4. Asks; assignments; the endpoints table (when complete); statuses.
"""

from collections.abc import Mapping

from covey_api.kinds import ObjectKey
from covey_api.messages import Assignments
from covey_api.node import Node
from covey_api.placement import Placement
from covey_api.reasons import EventReason
from covey_planner.types import NodeState

from covey_controller.reconcile.adoption import observe_strays, plan_adoption
from covey_controller.reconcile.asks import plan_answers, plan_asks
from covey_controller.reconcile.assignments import plan_assignments
from covey_controller.reconcile.begin import begin_draft, expected_nodes
from covey_controller.reconcile.calibrate import plan_calibrations
from covey_controller.reconcile.doubts import observe_doubts
from covey_controller.reconcile.draft import Draft, node_key
from covey_controller.reconcile.drains import observe_losses, plan_drains
from covey_controller.reconcile.failures import observe_absence
from covey_controller.reconcile.finalizers import held_metadata, plan_finalizers
from covey_controller.reconcile.index import index_again, is_held, is_leaving
from covey_controller.reconcile.instances import plan_placement
from covey_controller.reconcile.judge import judge_placement
from covey_controller.reconcile.outcomes import CreateNode, DeleteObject, Outcome, Plan
from covey_controller.reconcile.preempting import order_by_priority
from covey_controller.reconcile.resting import judge_resting, keep_resting, remember_resting
from covey_controller.reconcile.scaling import observe_demand
from covey_controller.reconcile.sights import FleetSight
from covey_controller.reconcile.status import is_deletable_node, plan_statuses
from covey_controller.reconcile.table import keep_drained, plan_table
from covey_controller.reconcile.world import Memory, World

# What becomes due is named by the plan, and what changes or falls silent wakes the loop; this is for what neither
# foresees.
MAX_SLEEP_SECONDS = 30.0


def plan(world: World, now: float) -> Plan:
    """What to do now, and why."""
    indexed = index_again(world.objects, world.memory.indexed)
    draft = begin_draft(world, indexed, now)
    plan_finalizers(draft, indexed.finalizing)
    _plan_nodes(draft)
    plan_answers(draft)
    plan_calibrations(draft)
    plan_adoption(draft)
    strays = observe_strays(draft)
    if draft.complete:
        observe_absence(draft)
        observe_losses(draft)
        observe_demand(draft)
        for key, placement in order_by_priority(draft):
            if not keep_resting(draft, key, placement):
                plan_placement(draft, key, placement)
        _drain_orphans(draft)
        plan_drains(draft, strays)
        observe_doubts(draft)
        _finish_deletions(draft)
    plan_asks(draft)
    outcomes: dict[ObjectKey, Outcome] = {}
    if draft.complete:
        for key, each in draft.placements.items():
            outcomes[key] = judge_resting(draft, key) or judge_placement(draft, key, each)
    plan_statuses(draft, outcomes, indexed.by_key)
    remember_resting(draft, outcomes)
    endpoints = plan_table(draft, strays, outcomes) if draft.complete else None
    assignments = plan_assignments(draft, strays)
    return Plan(
        actions=tuple(draft.actions),
        assignments=assignments,
        endpoints=endpoints,
        endpoints_unacted=keep_drained(draft, endpoints) if endpoints and draft.actions else None,
        statuses=tuple(draft.statuses),
        notes=tuple(draft.notes),
        memory=_remember(draft, assignments),
        used_answers=tuple(draft.used_answers),
        wake_at=min((*draft.deadlines, now + MAX_SLEEP_SECONDS)),
        spending=draft.spending,
    )


def _plan_nodes(draft: Draft) -> None:
    """A Node for each agent that reports and has none. One that was deleted does not come back by an old report."""
    for node in draft.nodes.values():
        if node.node is None and node.report is not None and node.state is not NodeState.UNKNOWN:
            draft.actions.append(CreateNode(Node(metadata=held_metadata(node.name))))
            message = "its agent reported: a Node with an empty spec was made"
            draft.note(node_key(node.name), EventReason.NODE_JOINED, message)


def _drain_orphans(draft: Draft) -> None:
    """Instances whose Placement is gone, and not merely another version's."""
    for key, sight in list(draft.sights.items()):
        owner = ObjectKey("Placement", key.namespace, sight.instance.spec.placement)
        if owner not in draft.placements and (owner not in draft.indexed.unreadable or is_leaving(sight.instance)):
            draft.drain(sight, f"placement '{sight.instance.spec.placement}' does not exist any more")


def _finish_deletions(draft: Draft) -> None:
    """Placements and Nodes whose deletion was asked for go when nothing of theirs runs."""
    nodes: list[Node] = []
    for item in draft.indexed.leaving:
        if isinstance(item, Placement) and item.key in draft.placements and not draft.sights_of(item.key):
            draft.actions.append(DeleteObject(item.key, item.metadata.uid))
        elif isinstance(item, Node):
            nodes.append(item)
    for node in nodes:
        if is_held(node) and is_deletable_node(draft, node):
            draft.actions.append(DeleteObject(node.key, node.metadata.uid))


def _remember(draft: Draft, assignments: Mapping[str, Assignments]) -> Memory:
    ids = {sight.id for sight in draft.sights.values()}
    placements = draft.placements.keys()
    return Memory(
        complete=draft.complete,
        expected=expected_nodes(draft, draft.world.memory.expected),
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
        ended=draft.ended,
        retries={key: value for key, value in draft.retries.items() if key in placements},
        heard=draft.heard,
        doubts=draft.doubts,
        loads=draft.loads,
        asked=draft.asked,
        scaled=draft.scaled,
        serving=draft.serving,
        yields=draft.yields,
        revisions=draft.revisions,
        assignments=assignments,
        resting_nodes=draft.resting_nodes,
        resting_placements=draft.resting_placements,
        resting_models=draft.resting_models,
        indexed=draft.indexed,
        fleet=FleetSight(draft.watching_since, draft.nodes, draft.sights),
    )
