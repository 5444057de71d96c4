"""Priority and preemption: who chooses first, who leaves for whom, and that nobody takes turns."""

from collections.abc import Iterable

from covey_api.instance import Instance, InstanceGoal
from covey_api.meta import Condition
from covey_api.node import Node
from covey_api.placement import ContextWish, NodeChoice, Placement, Preemption
from covey_api.reasons import EventReason, ReadyReason
from covey_controller.reconcile.begin import begin_draft
from covey_controller.reconcile.fleet import reservations, view_node
from covey_controller.reconcile.index import index_objects
from covey_controller.reconcile.wanted import render_wish
from covey_controller.reconcile.why import explain
from covey_planner.choice import choose
from covey_planner.types import NodeView
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import builders
from kit.worlds import FakeGateway, Worldlet

# Beside the node's reserve of a GiB there is room for one replica of 4 slots of 8192 tokens.
ONE_BYTES = 2_500_000_000
TWO_BYTES = 4_000_000_000


def wish(name: str, priority: int = 0, *, displaces: bool = False, **spec: object) -> Placement:
    preemption = Preemption.LOWER_PRIORITY if displaces else Preemption.NEVER
    context = ContextWish(tokens=8192)
    fields: dict[str, object] = {"context": context, "priority": priority, "preemption": preemption}
    return builders.placement(name, model="smollm2", **(fields | spec))


def fleet(*placements: Placement, nodes: Iterable[str] = ("a",), total_bytes: int = ONE_BYTES) -> Worldlet:
    story = Worldlet()
    story.put(builders.model(), *placements)
    story.add_agents(*nodes, total_bytes=total_bytes)
    story.gateways["g"] = FakeGateway()
    story.run(20)
    return story


def ready(story: Worldlet, name: str) -> Condition:
    placement = story.objects[wish(name).key]
    assert isinstance(placement, Placement)
    return next(each for each in placement.status.conditions if each.type == "Ready")


def test_higher_priority_chooses_first_whatever_its_name() -> None:
    story = fleet(wish("early"), wish("late", 10))
    assert story.routed() == ["late-0"]
    assert ready(story, "early").reason == ReadyReason.NOT_PLACED


def test_higher_priority_that_comes_later_waits_unless_it_asks_to_displace() -> None:
    story = fleet(wish("first"))
    story.put(wish("second", 10))
    story.run(30)
    assert story.routed() == ["first-0"]
    assert ready(story, "second").reason == ReadyReason.NOT_PLACED


def test_lower_priority_is_drained_with_its_requests_and_then_gives_its_place() -> None:
    story = fleet(wish("first"))
    story.put(wish("second", 10, displaces=True))
    story.gateways["g"].in_flight = {story.instances()[0].spec.instance_id: 1}
    story.run(10)
    condition = ready(story, "second")
    assert condition.reason == ReadyReason.MAKING_ROOM
    assert condition.message == "0 of 1 replicas are ready; waits for 'first-0' to leave node 'a'"
    assert [each.metadata.name for each in story.instances()] == ["first-0"], "it still serves what is in flight"
    reasons = [note.message for note in story.notes if note.reason == EventReason.DRAIN_STARTED]
    assert reasons == ["it makes room for second of priority 10; its own is 0"]
    story.gateways["g"].in_flight = {}
    story.run(20)
    assert story.routed() == ["second-0"]
    assert ready(story, "first").reason == ReadyReason.NOT_PLACED


def test_why_says_the_priority_and_what_it_means() -> None:
    story = fleet(wish("plain"), wish("first", 10, displaces=True), wish("second", 5), nodes=("a", "b", "c"))
    told = {
        name: explain(story.observe(), story.now, wish(name).key)[0].splitlines()
        for name in ("plain", "first", "second")
    }
    assert "priority 10; where it fits nowhere, lower ones leave for it" in told["first"]
    assert "priority 5; where it fits nowhere, it waits" in told["second"]
    assert not any(line.startswith("priority") for line in told["plain"])


def test_equal_priority_never_leaves() -> None:
    story = fleet(wish("first", 10, displaces=True))
    story.put(wish("second", 10, displaces=True))
    story.run(60)
    assert story.routed() == ["first-0"]
    assert ready(story, "second").reason == ReadyReason.NOT_PLACED


def test_who_leaves_finds_another_place_while_it_drains() -> None:
    story = fleet(wish("first"), nodes=("a", "b"))
    assert story.instances()[0].spec.members[0].node == "a"
    story.put(wish("second", 10, displaces=True, nodes=NodeChoice(include=("a",))))
    story.run(30)
    nodes = {each.metadata.name.split("-")[0]: each.spec.members[0].node for each in story.instances()}
    assert nodes == {"second": "a", "first": "b"}


def test_least_important_leaves_and_nobody_who_need_not() -> None:
    story = fleet(wish("low", 1), wish("middle", 5), total_bytes=TWO_BYTES)
    assert story.routed() == ["low-0", "middle-0"]
    story.put(wish("high", 10, displaces=True))
    story.run(30)
    assert story.routed() == ["high-0", "middle-0"]


def test_nothing_leaves_where_it_would_not_be_enough() -> None:
    story = fleet(wish("first"))
    story.put(wish("second", 10, displaces=True, concurrency=64))
    story.run(30)
    assert story.routed() == ["first-0"]
    assert ready(story, "second").reason == ReadyReason.NOT_PLACED


def test_place_that_is_being_freed_is_nobody_elses() -> None:
    story = fleet(wish("first"))
    story.put(wish("high", 10, displaces=True), wish("eager", 0, concurrency=1))
    story.gateways["g"].in_flight = {story.instances()[0].spec.instance_id: 1}
    story.run(5)
    story.gateways["g"].in_flight = {}
    story.run(30)
    assert "high-0" in story.routed()
    created = [note.key.name for note in story.notes if note.reason == EventReason.CREATED]
    assert created.index("high-0") < (created.index("eager-0") if "eager-0" in created else len(created))


def views(story: Worldlet, without: frozenset[str] = frozenset()) -> list[NodeView]:
    world = story.observe()
    draft = begin_draft(world, index_objects(world.objects), story.now)
    held = reservations(each for each in draft.instances() if each.metadata.name not in without)
    return [view_node(sight, held.get(name, ())) for name, sight in draft.nodes.items()]


@st.composite
def placements(draw: st.DrawFn, name: str) -> Placement:
    return wish(
        name,
        draw(st.integers(0, 3)),
        displaces=draw(st.booleans()),
        replicas=draw(st.integers(1, 2)),
        concurrency=draw(st.sampled_from((2, 4, 8))),
    )


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from("abcde"), min_size=2, max_size=5, unique=True).flatmap(
        lambda names: st.tuples(*(placements(f"p-{name}") for name in names))
    ),
    st.sampled_from((ONE_BYTES, TWO_BYTES)),
    st.integers(1, 2),
)
def test_fleet_of_priorities_comes_to_rest_with_no_place_withheld(
    wished: tuple[Placement, ...], total_bytes: int, nodes: int
) -> None:
    story = fleet(wished[0], nodes=("a", "b")[:nodes], total_bytes=total_bytes)
    for each in wished[1:]:
        story.put(each)
        story.run(5)
    story.run(90, each=1.5)
    writes = story.writes
    story.run(40, each=4)
    assert story.writes == writes, "it must not go on for ever"
    by_name = {each.metadata.name: each for each in wished}
    running = story.instances()
    assert all(each.spec.goal is InstanceGoal.RUN for each in running)
    for view in views(story):
        assert all(pool.unreserved_bytes >= 0 for pool in view.pools)
    for note in story.notes:
        if note.reason == EventReason.DRAIN_STARTED and "it makes room for" in note.message:
            other = by_name[note.message.split()[4]]
            own = by_name[note.key.name.rpartition("-")[0]]
            assert own.spec.priority < other.spec.priority
            assert other.spec.preemption is Preemption.LOWER_PRIORITY
    for each in wished:
        assert_nothing_lower_holds_its_place(story, each, by_name, running)


def assert_nothing_lower_holds_its_place(
    story: Worldlet, placement: Placement, by_name: dict[str, Placement], running: list[Instance]
) -> None:
    own = [each for each in running if each.spec.placement == placement.metadata.name]
    if len(own) == placement.spec.replicas or placement.spec.preemption is Preemption.NEVER:
        return
    lower = [each for each in running if by_name[each.spec.placement].spec.priority < placement.spec.priority]
    asked = render_wish(placement, builders.model(), None, (), own)
    for node in (item for item in story.objects.values() if isinstance(item, Node)):
        here = {e.metadata.name for e in lower if e.spec.members[0].node == node.metadata.name}
        (view,) = [v for v in views(story, frozenset(here)) if v.name == node.metadata.name]
        assert not choose(asked, [view], 1).chosen
