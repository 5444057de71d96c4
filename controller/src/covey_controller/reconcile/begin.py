"""How a plan begins: the world indexed and sorted, nodes as they look now, and whether the fleet has been seen whole.

`complete` is what keeps a new leader from acting on what it has not heard yet (DESIGN §5): until then nothing is
created, drained or deleted, and gateways keep the table they have.
"""

from dataclasses import replace

from covey_api.messages import NODE_SILENCE_SECONDS

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.fleet import live_until, observe_instances, observe_nodes
from covey_controller.reconcile.index import Indexed
from covey_controller.reconcile.world import Memory, World

# How long known nodes may take to report to a new leader before it goes on without them.
FIRST_REPORTS_SECONDS = 10.0
# With no node known the store is new, or was lost: whoever is quick is there within this.
UNKNOWN_FLEET_SECONDS = 3.0
# Of a lost store's fleet, whoever will come back has dialled again within this (`LONGEST_DELAY_SECONDS`) and reported.
LOST_STORE_SECONDS = 15.0
# No sign of life of the leader itself for this long: it was paused, and heard nobody meanwhile.
PAUSE_SECONDS = 10.0


def begin_draft(world: World, indexed: Indexed, now: float) -> Draft:
    """Everything as it looks now, and nothing decided."""
    memory = world.memory
    watched_since = world.led_since if memory.watching_since is None else memory.watching_since
    watching_since = now if was_paused(memory, now) else watched_since
    known = memory.fleet if memory.fleet is not None and memory.fleet.watching_since == watching_since else None
    nodes = observe_nodes(
        indexed.nodes, world.agents, world.led_since, watching_since, now, known.nodes if known else {}
    )
    draft = Draft(
        world=world,
        now=now,
        indexed=indexed,
        fleet=indexed.fleet,
        models=dict(indexed.models),
        placements=indexed.placements,
        keys=indexed.keys,
        nodes=nodes,
        sights=observe_instances(indexed.instances, nodes, known.sights if known else {}),
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
        ended=dict(memory.ended),
        retries=dict(memory.retries),
        heard=memory.heard,
        doubts=memory.doubts,
        loads=dict(memory.loads),
    )
    draft.complete = memory.complete or _is_complete(draft, memory.expected)
    for node in nodes.values():
        if node.report is None:  # for the others see `next_silence`
            draft.wake_at(world.led_since + NODE_SILENCE_SECONDS)
            draft.wake_at(node.unknown_since)
    for gateway in world.gateways:
        if not gateway.connected:
            draft.wake_at(live_until(gateway, watching_since))
    return draft


def was_paused(memory: Memory, now: float) -> bool:
    """Whether this leader was stopped for a while since its last plan, as a process or with its machine."""
    return memory.planned_at is not None and now - memory.planned_at > PAUSE_SECONDS


def stay_awake(memory: Memory, now: float) -> Memory:
    """Of a leader that gives a sign of life; one that was paused since its last one will be found out."""
    return memory if was_paused(memory, now) else replace(memory, planned_at=now)


def _is_complete(draft: Draft, expected: frozenset[str] | None) -> bool:
    """Whether enough of the fleet has been seen to decide about what runs.

    1. Nodes were known: when each has reported whole, or `FIRST_REPORTS_SECONDS` have passed.
    2. None was known, and nobody recalls an earlier leader: when somebody has reported and `UNKNOWN_FLEET_SECONDS` have
       passed, or `FIRST_REPORTS_SECONDS`.
    3. None was known, and somebody does: the store was lost. Each node must have reported that gateways route to; where
       none says to whom, or one stays away, when `LOST_STORE_SECONDS` have passed.
    """
    reported = frozenset(n.name for n in draft.nodes.values() if n.report is not None and n.report.members is not None)
    if known := expected_nodes(draft, expected):
        return known <= reported or _has_led_for(draft, FIRST_REPORTS_SECONDS)
    is_lost = _is_recalled(draft.world)
    if _has_led_for(draft, LOST_STORE_SECONDS if is_lost else FIRST_REPORTS_SECONDS):
        return True
    routed = frozenset(node for each in draft.world.gateways if each.demand for node in each.demand.nodes)
    is_seen = bool(routed) and routed <= reported if is_lost else bool(reported)
    return _has_led_for(draft, UNKNOWN_FLEET_SECONDS) and is_seen


def _has_led_for(draft: Draft, seconds: float) -> bool:
    until = draft.world.led_since + seconds
    if draft.now < until:
        draft.wake_at(until)
    return draft.now >= until


def _is_recalled(world: World) -> bool:
    """Whether anybody knows of an earlier leader: nothing is started and no table published before `complete`."""
    reports = [agent.report for agent in world.agents if agent.report is not None]
    return (
        any(gateway.demand is not None and gateway.demand.applied is not None for gateway in world.gateways)
        or any(report.members for report in reports)
        or any(report.applied is not None and report.applied.term != world.term for report in reports)
    )


def expected_nodes(draft: Draft, expected: frozenset[str] | None) -> frozenset[str]:
    """Nodes that the store knew at this leader's first look."""
    known = frozenset(node.name for node in draft.nodes.values() if node.node is not None)
    return known if expected is None else expected
