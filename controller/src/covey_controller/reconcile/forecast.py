"""What the fleet would come to if documents were applied: `plan` run again and again on a world that obeys. Pure.

Owns the assumption in between two plans: agents follow at once and every engine starts, gateways apply each table at
once and have no request in flight, nobody answers an ask, who is silent stays so. It must not decide anything: what
comes and goes is `plan`'s word alone. Time stands still while something changes and is then moved to what is due, for
`HORIZON_SECONDS` in all: long enough for every wait of an orderly rollout, too short to give up a silent node.

Rejected: one plan alone (it shows the first replica of a rollout and not whether the last one fits).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from covey_api.instance import Instance, MemberPhase
from covey_api.kinds import Kind
from covey_api.messages import (
    NODE_SILENCE_SECONDS,
    Assignments,
    Endpoints,
    MemberAssignment,
    MemberGoal,
    MemberReport,
    Order,
)
from covey_api.meta import Status

from covey_controller.reconcile.fleet import ENDED
from covey_controller.reconcile.outcomes import (
    Action,
    CreateInstance,
    CreateNode,
    DeleteObject,
    HoldObject,
    Note,
    Plan,
    UpdateInstance,
)
from covey_controller.reconcile.plan import plan
from covey_controller.reconcile.sights import AgentView
from covey_controller.reconcile.world import GatewayView, Published, World

HORIZON_SECONDS = 15.0
# A replica takes three plans to be replaced; Placements go at the same time. What is beyond is said to be beyond.
MAX_ROUNDS = 200
_IDS_PER_ROUND = 64
# Ids of what a forecast creates begin here: none may be one that the fleet has.
_FIRST_ID = 0xF << 60


@dataclass(frozen=True, slots=True)
class Round:
    """One plan: what it saw, and what it decided, in its order."""

    world: World
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Where it begins and ends, and what was decided on the way."""

    begin: World
    """With the documents applied."""
    end: World
    now: float
    """At the end."""
    creating: tuple[Round, ...]
    """The plans that created Instances."""
    notes: tuple[Note, ...]
    is_settled: bool
    """False: it goes on beyond `MAX_ROUNDS`."""


def forecast(world: World, now: float, documents: Sequence[Kind]) -> Forecast:
    """Plan until nothing follows any more."""
    current = begin = replace(world, objects=_overlay(world, documents))
    live = frozenset(each.node for each in world.agents if _is_live(each, now))
    horizon = now + HORIZON_SECONDS
    creating: list[Round] = []
    notes: list[Note] = []
    for number in range(MAX_ROUNDS):
        current = replace(_meet(current, live, now), fresh_ids=_fresh_ids(number))
        made = plan(current, now)
        notes += made.notes
        if any(isinstance(action, CreateInstance) for action in made.actions):
            creating.append(Round(current, tuple(made.actions)))
        after = _follow(_act(current, made), live)
        is_quiet = not made.actions and not made.statuses and _is_same(after, current)
        current = after
        if is_quiet and now >= horizon:
            return Forecast(begin, current, now, tuple(creating), tuple(notes), is_settled=True)
        if is_quiet:
            now = min(max(made.wake_at, now + 0.1), horizon)
            # However far it moved, nobody was paused meanwhile.
            current = replace(current, memory=replace(current.memory, planned_at=now))
    return Forecast(begin, current, now, tuple(creating), tuple(notes), is_settled=False)


def _overlay(world: World, documents: Sequence[Kind]) -> tuple[Kind, ...]:
    """Each document in the place of its object: the object keeps its identity and status."""
    objects = {item.key: item for item in world.objects}
    for document in documents:
        objects[document.key] = _merge(objects.get(document.key), document, world.timestamp)
    return tuple(objects.values())


def _merge(live: Kind | None, document: Kind, timestamp: str) -> Kind:
    if live is None:
        made = {"uid": f"forecast-{document.key}", "generation": 1, "creation_timestamp": timestamp}
        return document.model_copy(update={"metadata": document.metadata.model_copy(update=made)})
    written: dict[str, object] = {
        "labels": document.metadata.labels,
        "annotations": document.metadata.annotations,
        "generation": live.metadata.generation + (spec_of(live) != spec_of(document)),
    }
    status: Status | None = getattr(live, "status", None)
    return document.model_copy(
        update={"metadata": live.metadata.model_copy(update=written)} | ({"status": status} if status else {})
    )


def spec_of(item: Kind) -> object:
    """The `spec` that every kind has."""
    return getattr(item, "spec", None)


def _is_live(agent: AgentView, now: float) -> bool:
    return agent.report is not None and agent.disconnected is None and now < agent.seen + NODE_SILENCE_SECONDS


def _meet(world: World, live: frozenset[str], now: float) -> World:
    """Everybody who was there speaks again."""
    return replace(
        world,
        agents=tuple(replace(each, seen=now) if each.node in live else each for each in world.agents),
        gateways=tuple(replace(each, seen=now) if each.connected else each for each in world.gateways),
    )


def _fresh_ids(number: int) -> tuple[str, ...]:
    return tuple(f"{_FIRST_ID + number * _IDS_PER_ROUND + index:016x}" for index in range(1, _IDS_PER_ROUND + 1))


def _act(world: World, made: Plan) -> World:
    """As the loop does: actions, publication, statuses."""
    objects = {item.key: item for item in world.objects}
    for action in made.actions:
        match action:
            case CreateInstance(instance):
                objects[instance.key] = _stored(instance, world.timestamp)
            case UpdateInstance(item) | HoldObject(item):
                objects[item.key] = item
            case CreateNode(node):
                objects[node.key] = node
            case DeleteObject(key, _):
                objects.pop(key, None)
            case _:
                assert_never(action)
    for write in made.statuses:
        if (item := objects.get(write.key)) is not None:
            objects[write.key] = item.model_copy(update={"status": write.status})
    published = _publish(world, made)
    answers = {each: answer for each, answer in world.answers.items() if each not in made.used_answers}
    return replace(world, objects=tuple(objects.values()), published=published, memory=made.memory, answers=answers)


def _stored(instance: Instance, timestamp: str) -> Instance:
    made = {"uid": f"forecast-{instance.spec.instance_id}", "creation_timestamp": timestamp}
    return instance.model_copy(update={"metadata": instance.metadata.model_copy(update=made)})


def _publish(world: World, made: Plan) -> Published:
    """Snapshots that differ get the next serial, as on the board."""
    before = world.published
    orders = [each.serial for each in (*before.assignments.values(), *([before.endpoints] if before.endpoints else []))]
    serial = max(orders, default=0) + 1
    assignments = dict(before.assignments)
    for node, new in made.assignments.items():
        old = assignments.get(node)
        numbered = new.model_copy(update={"term": world.term, "serial": old.serial if old else 0})
        if numbered != old:
            assignments[node] = numbered.model_copy(update={"serial": serial})
    table = before.endpoints
    if made.endpoints is not None:
        numbered_table = made.endpoints.model_copy(update={"term": world.term, "serial": table.serial if table else 0})
        if numbered_table != table:
            table = numbered_table.model_copy(update={"serial": serial})
    return Published(table, assignments)


def _follow(world: World, live: frozenset[str]) -> World:
    published = world.published
    agents = tuple(
        _follow_assignments(each, published.assignments.get(each.node)) if each.node in live else each
        for each in world.agents
    )
    gateways = tuple(_follow_table(each, published.endpoints) if each.connected else each for each in world.gateways)
    return replace(world, agents=agents, gateways=gateways)


def _follow_assignments(agent: AgentView, wanted: Assignments | None) -> AgentView:
    if wanted is None or agent.report is None:
        return agent
    known = {(each.instance_id, each.member): each for each in agent.report.members or ()}
    named = {(each.instance.spec.instance_id, each.member): each for each in wanted.members}
    others = () if wanted.complete else tuple(each for key, each in known.items() if key not in named)
    followed = (_follow_member(each, known.get(key)) for key, each in named.items())
    members = (*others, *(each for each in followed if each is not None))
    order = Order(term=wanted.term, serial=wanted.serial)
    return replace(agent, report=agent.report.model_copy(update={"members": members, "applied": order}))


def _follow_member(wanted: MemberAssignment, before: MemberReport | None) -> MemberReport | None:
    """1. This attempt has ended: it stays so. 2. Stop: ended. 3. Drain: no new request. 4. Serve: ready."""
    spec = wanted.instance.spec
    phase = before.phase if before is not None and before.attempt >= spec.attempt else None
    if phase in ENDED:
        return before
    if wanted.goal is MemberGoal.STOP:
        return None if phase is None else _report(wanted, MemberPhase.STOPPED)
    if wanted.goal is MemberGoal.DRAIN:
        return before if phase is not MemberPhase.READY else _report(wanted, MemberPhase.DRAINING)
    return before if phase is MemberPhase.READY else _report(wanted, MemberPhase.READY)


def _report(wanted: MemberAssignment, phase: MemberPhase) -> MemberReport:
    instance = wanted.instance
    return MemberReport(
        instance_id=instance.spec.instance_id,
        namespace=instance.metadata.namespace,
        name=instance.metadata.name,
        member=wanted.member,
        attempt=instance.spec.attempt,
        phase=phase,
        port=1,  # a table takes no member without one
        instance=instance,
        seal=wanted.seal,
    )


def _follow_table(gateway: GatewayView, table: Endpoints | None) -> GatewayView:
    if gateway.demand is None or table is None:
        return gateway
    shunned = tuple(each.model_copy(update={"in_flight": 0}) for each in gateway.demand.endpoints if each.unreachable)
    demand = gateway.demand.model_copy(update={"applied": table.order, "endpoints": shunned})
    return replace(gateway, demand=demand)


def _is_same(after: World, before: World) -> bool:
    return (after.published, after.agents, after.gateways, after.objects) == (
        before.published,
        before.agents,
        before.gateways,
        before.objects,
    )
