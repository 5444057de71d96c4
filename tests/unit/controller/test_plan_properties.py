"""`plan` on arbitrary worlds: total, deterministic whatever the order, and careful with what runs."""

from dataclasses import dataclass, field, replace

from covey_api.instance import Instance, InstanceGoal, Member, MemberPhase
from covey_api.kinds import Kind
from covey_api.messages import Assignments
from covey_api.meta import ObjectMeta
from covey_api.model import Model
from covey_api.node import Node, NodeSpec, Taint
from covey_api.placement import Placement
from covey_controller.reconcile.fleet import next_silence
from covey_controller.reconcile.outcomes import CreateInstance, DeleteObject, Plan, UpdateInstance
from covey_controller.reconcile.plan import plan
from covey_controller.reconcile.revision import revision_of
from covey_controller.reconcile.rollout import SURGE
from covey_controller.reconcile.sights import AgentView
from covey_controller.reconcile.world import World
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import builders, worlds
from kit.arbitrary import CURRENT, MODEL, NOW, arbitrary_worlds


def render(made: Plan) -> str:
    """All that leaves the leader, to the byte."""
    return repr((made.actions, made.assignments, made.endpoints, made.statuses, made.notes, made.wake_at))


def settle(world: World, now: float) -> World:
    """The memory of one plan: drains have begun, absences are known."""
    return replace(world, memory=plan(world, now).memory)


def running(objects: tuple[Kind, ...], placement: Placement) -> dict[str, Instance]:
    found = [each for each in objects if isinstance(each, Instance)]
    return {
        each.metadata.name: each
        for each in found
        if each.spec.placement == placement.metadata.name and each.spec.goal is InstanceGoal.RUN
    }


@settings(max_examples=150, deadline=None)
@given(arbitrary_worlds(), st.data())
def test_plan_is_total_and_the_same_whatever_the_order_of_its_input(world: World, data: st.DataObject) -> None:
    shuffled = replace(
        world,
        objects=tuple(data.draw(st.permutations(world.objects))),
        agents=tuple(data.draw(st.permutations(world.agents))),
    )
    made, again = plan(world, NOW), plan(shuffled, NOW)
    assert again == made
    assert render(again) == render(made)


@settings(max_examples=150, deadline=None)
@given(arbitrary_worlds())
def test_nothing_is_ended_or_published_before_the_fleet_has_been_seen_whole(world: World) -> None:
    made = plan(world, NOW)
    if made.memory.complete:
        return
    assert made.endpoints is None
    assert not any(each.complete for each in made.assignments.values())
    known = {each.key for each in world.objects}
    for action in made.actions:
        assert not isinstance(action, DeleteObject)
        if isinstance(action, UpdateInstance):
            before = next(each for each in world.objects if each.key == action.instance.key)
            assert isinstance(before, Instance)
            assert action.instance.spec.goal is before.spec.goal
        if isinstance(action, CreateInstance):
            assert action.instance.spec.instance_id == "f" * 16, "only what a node runs is taken in"
            assert action.instance.key not in known


@settings(max_examples=150, deadline=None)
@given(arbitrary_worlds())
def test_no_more_is_created_than_is_wished_and_its_surge(world: World) -> None:
    world = settle(world, NOW)
    made = plan(world, NOW + 1)
    for placement in (each for each in world.objects if isinstance(each, Placement)):
        before = running(world.objects, placement)
        created = [a.instance for a in made.actions if isinstance(a, CreateInstance)]
        fresh = [each for each in created if each.spec.instance_id in world.fresh_ids]
        drained = [
            a.instance.metadata.name
            for a in made.actions
            if isinstance(a, UpdateInstance) and a.instance.spec.goal is InstanceGoal.DRAIN
        ]
        lost = [each for each in before.values() if each.spec.instance_id in made.memory.lost]
        if fresh:
            wanted = 0 if placement.spec.suspend else placement.spec.replicas
            left = [name for name in before if name not in drained]
            assert len(left) - len(lost) + len(fresh) <= wanted + SURGE
        names = [each.metadata.name for each in created]
        assert len(set(names)) == len(names)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(MemberPhase)), min_size=1, max_size=4), st.integers(1, 3))
def test_surge_roll_never_stops_the_last_ready_replica(kinds: list[tuple[bool, MemberPhase]], replicas: int) -> None:
    """With room for all, whoever is ready stays until as many as wished are."""
    made_of = [
        builders.instance(
            f"smollm2-{index}",
            instance_id=f"{index + 1:016x}",
            revision=CURRENT if is_current else "r1-000000000000",
            members=(Member(node="a", costs=()),),
        )
        for index, (is_current, _) in enumerate(kinds)
    ]
    reports = [worlds.member_report(each, phase) for each, (_, phase) in zip(made_of, kinds, strict=True)]
    agent = AgentView("a", NOW, worlds.report(reports, facts=worlds.facts(64 * builders.GIB)))
    world = worlds.world(MODEL, builders.placement(replicas=replicas), *made_of, agents=(agent,))
    world = replace(world, memory=replace(world.memory, planned_at=NOW - 1))
    drained = {
        action.instance.spec.instance_id
        for action in plan(world, NOW).actions
        if isinstance(action, UpdateInstance) and action.instance.spec.goal is InstanceGoal.DRAIN
    }
    phases = [phase for _, phase in kinds]
    ready = [i.spec.instance_id for i, phase in zip(made_of, phases, strict=True) if phase is MemberPhase.READY]
    assert len([each for each in ready if each not in drained]) >= min(len(ready), replicas)


@settings(max_examples=150, deadline=None)
@given(arbitrary_worlds())
def test_no_ready_instance_leaves_without_a_stated_cause(world: World) -> None:
    """A cause is one of: fewer are wished, another revision is, or its Instance, Placement or Node is to go."""
    world = settle(world, NOW)
    made = plan(world, NOW + 1)
    told = {note.key for note in made.notes if note.message}
    placements = {each.metadata.name: each for each in world.objects if isinstance(each, Placement)}
    deleted = {n.metadata.name for n in world.objects if isinstance(n, Node) and n.metadata.deletion_timestamp}
    models = [each for each in world.objects if isinstance(each, Model)]
    reports = {
        (member.instance_id, member.attempt): member.phase
        for agent in world.agents
        if agent.report is not None
        for member in agent.report.members or ()
    }
    for action in made.actions:
        if not isinstance(action, UpdateInstance) or action.instance.spec.goal is not InstanceGoal.DRAIN:
            continue
        before = next(each for each in world.objects if each.key == action.instance.key)
        assert isinstance(before, Instance)
        if before.spec.goal is InstanceGoal.DRAIN:
            continue
        assert action.instance.key in told
        placement = placements.get(before.spec.placement)
        is_ready = reports.get((before.spec.instance_id, before.spec.attempt)) is MemberPhase.READY
        if not is_ready or placement is None or placement.spec.suspend or before.spec.members[0].node in deleted:
            continue
        is_other_revision = bool(models) and revision_of(placement, models[0]) != before.spec.revision
        is_surplus = len(running(world.objects, placement)) > placement.spec.replicas
        assert is_other_revision or is_surplus


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from((1 << 30, 8 << 30, 64 << 30)), max_size=3), st.integers(1, 3), st.booleans())
def test_no_better_place_moves_what_serves(arriving: list[int], replicas: int, is_tainted: bool) -> None:
    """Roomier nodes arrive, and the node that serves is cordoned and tainted: what is Ready stays."""
    serving = [
        builders.instance(f"smollm2-{index}", node="a", instance_id=f"{index + 1:016x}", revision=CURRENT)
        for index in range(replicas)
    ]
    ready = [worlds.member_report(each, MemberPhase.READY) for each in serving]
    agents = [AgentView("a", NOW, worlds.report(ready, facts=worlds.facts(8 << 30)))]
    agents += [
        AgentView(f"b{index}", NOW, worlds.report([], facts=worlds.facts(size))) for index, size in enumerate(arriving)
    ]
    spec = NodeSpec(unschedulable=is_tainted, taints=(Taint(key="k"),) if is_tainted else ())
    home = Node(metadata=ObjectMeta(name="a", uid="uid-a", finalizers=builders.HELD), spec=spec)
    world = worlds.world(MODEL, builders.placement(replicas=replicas), home, *serving, agents=tuple(agents))
    world = replace(world, memory=replace(world.memory, planned_at=NOW - 1))
    touched = (CreateInstance, UpdateInstance, DeleteObject)
    assert [each for each in plan(world, NOW).actions if isinstance(each, touched)] == []


def is_heard(agent: AgentView) -> bool:
    """In a still world: reports for ever."""
    return agent.seen == NOW and agent.disconnected is None


def without_serials(made: Plan) -> dict[str, Assignments]:
    """They are the board's to set."""
    return {node: each.model_copy(update={"serial": 0}) for node, each in made.assignments.items()}


@dataclass(slots=True)
class StillWorld(worlds.Worldlet):
    """Everybody says the same for ever: nothing changes but what the leader does, and the time."""

    said: World = field(default_factory=worlds.world)

    def observe(self) -> World:
        own = worlds.Worldlet.observe(self)
        here = [replace(each, seen=self.now) if is_heard(each) else each for each in self.said.agents]
        return replace(
            self.said, objects=own.objects, agents=tuple(here), memory=own.memory, published=own.published, answers={}
        )

    def settle(self) -> Plan:
        """Turns of one moment, until there is nothing to do."""
        for _ in range(20):
            before = self.published
            made = self.step(0.0)
            if not made.actions and not made.statuses and self.published == before:
                return made
        raise AssertionError("a plan must come to rest")


@settings(max_examples=150, deadline=None)
@given(arbitrary_worlds(), st.data())
def test_nothing_becomes_due_before_the_moment_that_the_plan_named(world: World, data: st.DataObject) -> None:
    """A leader at rest overlooks nothing: a plan made earlier would do just nothing."""
    still = StillWorld(said=world, memory=world.memory, now=NOW)
    still.put(*world.objects)
    for _ in range(6):
        made = still.settle()
        watching_since = still.memory.watching_since or world.led_since
        silent = [each for each in world.agents if not is_heard(each)]
        due = min(made.wake_at, next_silence(silent, watching_since, still.now))
        assert due > still.now
        still.now += (due - still.now) * data.draw(st.floats(0.01, 0.99))
        still.memory = replace(made.memory, planned_at=still.now)
        earlier = plan(still.observe(), still.now)
        assert (earlier.actions, earlier.statuses) == ((), ())
        assert (without_serials(earlier), earlier.endpoints) == (without_serials(made), made.endpoints)
        still.now, still.memory = due, replace(made.memory, planned_at=due)
