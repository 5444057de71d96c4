"""The window of an Instance: the same from every leader, whatever is observed; and a refusal that ends in no loop."""

from covey_api.engines import KvLayout
from covey_api.instance import EngineOptions
from covey_api.messages import Endpoint
from covey_api.placement import ContextWish
from covey_api.reasons import FailureCause
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import builders
from kit.worlds import FakeGateway, Worldlet

STORIES = settings(max_examples=8, deadline=None)


def begun(total_bytes: int, slots: int = 4, context: ContextWish | None = None, replicas: int = 1) -> Worldlet:
    story = Worldlet()
    wished = builders.placement(concurrency=slots, replicas=replicas, context=context or ContextWish())
    story.put(builders.model(), wished)
    story.add_agents("a", "b", total_bytes=total_bytes)
    story.gateways["g"] = FakeGateway()
    story.run(15)
    return story


def stamped(story: Worldlet) -> list[tuple[str, EngineOptions]]:
    return [(each.spec.members[0].node, each.spec.options) for each in story.instances()]


def endpoints(story: Worldlet) -> tuple[Endpoint, ...]:
    table = story.published.endpoints
    return table.endpoints if table else ()


@STORIES
@given(st.integers(2 * builders.GIB, 16 * builders.GIB), st.integers(1, 8), st.integers(1, 3))
def test_every_leader_says_the_same(total_bytes: int, slots: int, replicas: int) -> None:
    story = begun(total_bytes, slots, replicas=replicas)
    first = stamped(story)
    story.restart_leader()
    story.run(15)
    assert stamped(story) == first
    story.lose_store()
    story.run(15)
    assert stamped(story) == first
    again = begun(total_bytes, slots, replicas=replicas)
    assert stamped(again) == first


@STORIES
@given(st.integers(2 * builders.GIB, 16 * builders.GIB), st.integers(1, 8))
def test_gateways_are_told_the_window_of_one_slot_and_how_many_there_are(total_bytes: int, slots: int) -> None:
    story = begun(total_bytes, slots)
    told = [(each.context_tokens, each.slots) for each in endpoints(story)]
    assert told == [(each.context_tokens, each.slots) for _, each in stamped(story)]


def test_gateways_are_told_of_a_cache_that_slots_share_and_among_whom_it_is() -> None:
    story = begun(8 * builders.GIB)
    table = story.published.endpoints
    assert table is not None
    assert (table.endpoints[0].kv_tokens, table.gateways) == (0, ())
    (instance,) = story.instances()
    options = instance.spec.options.model_copy(update={"kv_layout": KvLayout.UNIFIED})
    story.put(instance.model_copy(update={"spec": instance.spec.model_copy(update={"options": options})}))
    story.run(15)
    table = story.published.endpoints
    assert table is not None
    assert (table.endpoints[0].kv_tokens, table.gateways) == (options.context_tokens, ("g",))


@STORIES
@given(st.integers(1, 8192), st.integers(1, 8))
def test_exact_window_is_had_exactly_or_not_at_all(tokens: int, slots: int) -> None:
    story = begun(2 * builders.GIB, slots, ContextWish(tokens=max(256, tokens)))
    assert all(each.context_tokens == max(256, tokens) for _, each in stamped(story))


@STORIES
@given(st.integers(256, 8192), st.integers(1, 16))
def test_window_is_never_below_the_least_that_was_asked_for(least: int, slots: int) -> None:
    story = begun(2 * builders.GIB, slots, ContextWish(min_tokens=least))
    assert all(each.context_tokens >= least for _, each in stamped(story))


def test_refusal_by_every_agent_is_tried_again_ever_less_often() -> None:
    story = begun(8 * builders.GIB)
    for agent in story.agents.values():
        agent.fail = lambda _: FailureCause.INSUFFICIENT_MEMORY
    story.put(builders.placement(suspend=True))
    story.run(30)
    for agent in story.agents.values():
        agent.started.clear()
    story.put(builders.placement())
    story.run(600)
    starts = sum(len(agent.started) for agent in story.agents.values())
    assert 2 <= starts <= 12
    assert {agent.name for agent in story.agents.values() if agent.started} == {"a", "b"}
    assert len(story.instances()) == 1
    for agent in story.agents.values():
        agent.fail = lambda _: None
    story.run(310)
    assert len(story.routed()) == 1
