"""What is at rest is not looked at again: that saves work, and never changes a plan."""

from dataclasses import dataclass, field, replace

from covey_api.meta import ObjectMeta
from covey_api.node import Node, NodeSpec
from covey_api.placement import ContextWish
from covey_api.reasons import FailureCause
from covey_controller.reconcile.outcomes import Plan
from covey_controller.reconcile.plan import plan
from covey_controller.reconcile.sights import AgentView
from covey_controller.reconcile.world import Memory, World
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import builders, worlds
from kit.worlds import FakeGateway, Worldlet

NODES = ("a", "b", "c")


def forget(memory: Memory) -> Memory:
    return replace(memory, resting_nodes={}, resting_placements={}, resting_models={}, indexed=None, fleet=None)


def comparable(made: Plan) -> tuple[object, ...]:
    """All of a plan but what it remembers of rest."""
    memory = forget(made.memory)
    return (
        made.actions,
        made.assignments,
        made.endpoints,
        made.endpoints_unacted,
        made.statuses,
        sorted(made.notes, key=str),
        memory,
        made.used_answers,
        made.wake_at,
    )


@dataclass(slots=True)
class TwiceLooked(Worldlet):
    """Each plan is made twice: with and without what the last one remembered of rest. Agents speak every third second
    where they have nothing new to say."""

    rested: int = 0
    seen_again: int = 0
    """Nodes that were as the last plan had seen them."""
    heard: dict[str, AgentView] = field(default_factory=dict[str, AgentView])

    def observe(self) -> World:
        world = Worldlet.observe(self)
        world = replace(world, agents=tuple(map(self._keep_quiet, world.agents)))
        forgotten = replace(world, memory=forget(world.memory))
        made = plan(world, self.now)
        assert comparable(made) == comparable(plan(forgotten, self.now))
        self.rested += len(world.memory.resting_placements)
        if (before := world.memory.fleet) is not None and (after := made.memory.fleet) is not None:
            self.seen_again += sum(before.nodes.get(name) is node for name, node in after.nodes.items())
        return world

    def _keep_quiet(self, agent: AgentView) -> AgentView:
        before = self.heard.get(agent.node)
        if before is not None and before.report == agent.report and agent.seen < before.seen + 3:
            return before
        self.heard[agent.node] = agent
        return agent


def begin() -> TwiceLooked:
    story = TwiceLooked()
    story.put(builders.model("one"), builders.placement("one", replicas=2))
    story.put(builders.model("two", aliases=("second",)), builders.placement("two", model="two"))
    story.put(builders.placement("huge", model="one", replicas=2, concurrency=64, context=ContextWish(tokens=8192)))
    story.add_agents(*NODES)
    story.gateways["g"] = FakeGateway()
    story.run(15)
    return story


def change(story: TwiceLooked, event: str, node: str) -> None:
    """One thing that happens to a fleet."""
    agent, gateway = story.agents[node], story.gateways["g"]
    here = [each for each in story.instances() if each.spec.members[0].node == node]
    match event:
        case "pause":
            agent.paused = not agent.paused
        case "move":
            agent.address = "10.0.0.9"
        case "front":
            agent.front_port = 52_500
        case "grow":
            agent.total_bytes *= 2
        case "lanes":
            agent.lanes = ()
        case "fail":
            agent.fail = lambda _: FailureCause.OUT_OF_MEMORY
            agent.members.clear()
        case "unreachable":
            gateway.unreachable = {each.spec.instance_id for each in here}
        case "path":
            gateway.path_failures = {each.spec.instance_id: "refused" for each in here}
        case "reached":
            gateway.unreachable, gateway.path_failures = set(), {}
        case "scale":
            story.put(builders.placement("one", replicas=len(here) + 1))
        case "revise":
            story.put(builders.placement("two", model="two", concurrency=2 + len(here)))
        case "hurry":
            story.put(builders.placement("two", model="two", timeouts={"firstTokenSeconds": 7 + len(here)}))
        case "retry":
            again = builders.placement("two", model="two")
            annotated = again.metadata.model_copy(update={"annotations": {"covey.dev/retry": node}})
            story.put(again.model_copy(update={"metadata": annotated}))
        case "alias":
            story.put(builders.model("three", aliases=("second", "third")))
        case "remodel":
            story.put(builders.model("two", known=node != "a"))
        case "cordon":
            known = story.objects[Node(metadata=ObjectMeta(name=node)).key]
            story.put(known.model_copy(update={"spec": NodeSpec(unschedulable=True)}))
        case "offline":
            known = story.objects[Node(metadata=ObjectMeta(name=node)).key]
            story.put(known.model_copy(update={"spec": NodeSpec(offline=True)}))
        case "blobs":
            agent.blobs = (builders.artifact().digest,)
        case "delete":
            for each in here[:1]:
                gone = each.metadata.model_copy(update={"deletion_timestamp": "2026-01-01T00:00:00Z"})
                story.put(each.model_copy(update={"metadata": gone}))
        case "stray":
            stray = builders.instance(f"other-{node}", node=node, instance_id="f" * 15 + node)
            agent.members[stray.spec.instance_id] = worlds.member_report(stray)
        case "leader":
            story.restart_leader()
        case _:
            story.lose_store()


EVENTS = (
    *(
        "pause",
        "move",
        "front",
        "grow",
        "lanes",
        "fail",
        "unreachable",
        "path",
        "reached",
        "scale",
        "revise",
        "hurry",
        "retry",
        "alias",
    ),
    *("remodel", "cordon", "offline", "blobs", "delete", "stray", "leader", "store"),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from(NODES), st.sampled_from((1, 3, 20))), max_size=4))
def test_plan_is_the_same_whatever_is_remembered_of_rest(events: list[tuple[str, str, int]]) -> None:
    story = begin()
    for event, node, seconds in events:
        change(story, event, node)
        story.run(seconds)
    assert story.rested > 0
    assert story.seen_again > 0


def test_every_placement_that_serves_or_fits_nowhere_comes_to_rest_and_every_node_too() -> None:
    story = begin()
    story.run(2)
    assert {key.name for key in story.memory.resting_placements} == {"one", "two", "huge"}
    assert sorted(story.memory.resting_nodes) == list(NODES)
    refused = [key.name for key, each in story.memory.resting_placements.items() if each.decision is not None]
    assert refused == ["huge"]


def test_deadlines_of_a_placement_reach_its_endpoints_and_move_nothing() -> None:
    story = begin()
    before = story.instances()
    story.put(builders.placement("two", model="two", timeouts={"firstTokenSeconds": 7}))
    story.run(5)
    table = story.published.endpoints
    assert table is not None
    assert {each.model: each.timeouts.first_token_seconds for each in table.endpoints} == {"one": 600, "two": 7}
    assert story.instances() == before


def test_unknown_fields_pass_where_every_placement_of_the_model_says_so() -> None:
    story = begin()
    passing = {"unknown_fields": "Pass"}
    for changed, passes in (
        (builders.placement("one", replicas=2, **passing), False),  # `huge` is of the same Model
        (builders.placement("huge", model="one", **passing), True),
    ):
        story.put(changed)
        story.run(5)
        table = story.published.endpoints
        assert table is not None
        assert {each.name: each.passes_unknown_fields for each in table.models} == {"one": passes, "two": False}


def test_an_offline_node_takes_a_model_once_another_node_has_its_files() -> None:
    story = TwiceLooked()
    story.put(builders.model("one"), builders.placement("one"))
    story.put(Node(metadata=ObjectMeta(name="a"), spec=NodeSpec(offline=True)))
    story.put(Node(metadata=ObjectMeta(name="b"), spec=NodeSpec(unschedulable=True)))
    story.add_agents("a", "b")
    story.run(15)
    assert story.instances() == []
    assert {key.name for key in story.memory.resting_placements} == {"one"}
    story.agents["b"].blobs = (builders.artifact().digest,)
    story.run(2)
    assert [each.spec.members[0].node for each in story.instances()] == ["a"]
