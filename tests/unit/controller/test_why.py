"""`covey why` of each kind, from the world of the last plan."""

import pytest
from covey_api.instance import MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.messages import Progress
from covey_api.placement import ContextWish
from covey_api.runtime import LlamaServerRuntime, Numa, Runtime, Switch
from covey_controller.reconcile.why import explain, observe_progress
from kit import builders, worlds
from kit.worlds import FakeGateway, Worldlet

MODEL = ObjectKey("Model", "default", "smollm2")
PLACEMENT = ObjectKey("Placement", "default", "smollm2")
INSTANCE = ObjectKey("Instance", "default", "smollm2-0")
NODE = ObjectKey("Node", "", "a")


@pytest.fixture(scope="module")
def story() -> Worldlet:
    made = Worldlet()
    made.put(builders.model(), builders.placement())
    made.add_agents("a", "b")
    made.gateways["g"] = FakeGateway()
    made.run(15)
    return made


def text_of(story: Worldlet, key: ObjectKey) -> str:
    return explain(story.observe(), story.now, key)[0]


def test_placement_says_node_lane_bytes_and_window(story: Worldlet) -> None:
    text, data = explain(story.observe(), story.now, PLACEMENT)
    assert "Ready is True: Serving: 1 of 1 replicas are ready" in text
    assert "instance/smollm2-0 on node 'a', lane LlamaServer/Cpu" in text
    assert "window 8192 tokens x 4 slots" in text
    assert "KV cache" in text
    assert data["instances"][0]["name"] == "smollm2-0"


def test_placement_says_what_the_model_asks_of_the_engine() -> None:
    runtime = Runtime(llama_server=LlamaServerRuntime(numa=Numa.ISOLATE, mlock=Switch.ON))
    variant = builders.model().spec.variants[0].model_copy(update={"runtime": runtime})
    story = Worldlet()
    story.put(builders.model(variants=(variant,)), builders.placement())
    story.add_agents("a")
    story.gateways["g"] = FakeGateway()
    story.run(15)
    text, data = explain(story.observe(), story.now, PLACEMENT)
    assert "LlamaServer runs with numa Isolate, mlock On" in text
    assert data["instances"][0]["runtime"] == {"numa": "Isolate", "mlock": "On"}


def test_placement_that_fits_nowhere_says_every_nodes_answer_in_bytes() -> None:
    story = Worldlet()
    story.put(builders.model(), builders.placement(concurrency=64, context=ContextWish(tokens=8192)))
    story.add_agents("a", "b", total_bytes=3 * builders.GIB)
    story.run(15)
    text = text_of(story, PLACEMENT)
    assert "Ready is False: NotPlaced" in text
    assert text.count("no: ContextTooSmall") == 2


def test_placement_of_an_unreadable_model_does_not_say_that_no_node_is_there() -> None:
    story = Worldlet()
    story.put(builders.model(known=False), builders.placement())
    story.add_agents("a")
    story.agents["a"].unreadable = True
    story.run(15)
    text = text_of(story, PLACEMENT)
    assert "GeometryUnavailable" in text
    assert "no node has joined" not in text
    assert "not asked: what the model needs is not known" in text


def test_model_says_what_was_read_where_it_is_and_who_asks(story: Worldlet) -> None:
    text = text_of(story, MODEL)
    assert "variant 'gguf-q4-1' (Gguf): 93.8 MiB" in text
    assert "llama, 30 layers" in text
    assert "asked for by: placement/smollm2" in text


def test_instance_says_goal_stamp_and_members(story: Worldlet) -> None:
    text = text_of(story, INSTANCE)
    assert "goal Run, attempt 1" in text
    assert "member 0 on node 'a': Ready, holds" in text


def test_draining_instance_says_what_it_waits_for() -> None:
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.add_agents("a")
    story.gateways["g"] = FakeGateway()
    story.run(15)
    story.gateways["g"].in_flight = {story.instances()[0].spec.instance_id: 1}
    story.remove(builders.placement())
    story.run(3)
    text, _ = explain(story.observe(), story.now, INSTANCE)
    assert "goal Drain" in text
    assert "drains: a gateway still routes to it or has requests on it" in text


def test_node_says_what_is_left_of_each_pool_and_what_runs(story: Worldlet) -> None:
    text = text_of(story, NODE)
    assert "pool 'Host': 8.0 GiB in total, 1.0 GiB kept back" in text
    assert "lane LlamaServer/Cpu: Installed 10434" in text
    assert "runs: smollm2-0" in text


def test_unknown_object_is_a_key_error(story: Worldlet) -> None:
    with pytest.raises(KeyError):
        explain(story.observe(), story.now, ObjectKey("Model", "default", "nope"))


def test_progress_is_the_members_own() -> None:
    instance = builders.instance()
    progress = Progress(step="model", done_bytes=1, total_bytes=4, bytes_per_second=1)
    member = worlds.member_report(instance, MemberPhase.FETCHING, progress=progress)
    agent = worlds.AgentView("a", 100.0, worlds.report([member]))
    world = worlds.world(builders.model(), builders.placement(), instance, agents=(agent,))
    for key in (INSTANCE, PLACEMENT, MODEL):
        assert observe_progress(world, 100.0, key) == progress
    assert observe_progress(world, 100.0, ObjectKey("Placement", "default", "other")) is None
