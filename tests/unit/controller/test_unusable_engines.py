"""`UnusableEngines` of a Node: what can't be started there, as people read it."""

from covey_api.engines import EngineName, UnusableEngine
from covey_api.meta import Condition
from covey_api.node import Node
from covey_api.placement import Placement
from covey_api.reasons import EventReason, FailureCause, NodeReason
from kit import builders
from kit.worlds import FakeAgent, Worldlet

WORDS = "/opt/llama-server needs the shared library 'libgomp.so.1', which is not on this machine."
MISSING = UnusableEngine(engine=EngineName.LLAMA_SERVER, cause=FailureCause.MISSING_LIBRARY, message=WORDS)


def begin(*unusable: UnusableEngine) -> Worldlet:
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.agents["a"] = FakeAgent("a", unusable=unusable)
    story.run(20)
    return story


def node_of(story: Worldlet) -> Node:
    return next(item for item in story.objects.values() if isinstance(item, Node))


def condition_of(story: Worldlet) -> Condition | None:
    return next((each for each in node_of(story).status.conditions if each.type == "UnusableEngines"), None)


def test_the_condition_says_which_engine_why_and_what_to_do_and_the_column_names_it() -> None:
    story = begin(MISSING)
    found = condition_of(story)
    assert found is not None
    assert (found.reason, found.message) == (NodeReason.ENGINE_UNUSABLE, f"LlamaServer: MissingLibrary: {WORDS}")
    assert node_of(story).status.unusable_names == "LlamaServer"
    assert [note.message for note in story.notes if note.reason == EventReason.ENGINE_UNUSABLE] == [found.message]
    writes = story.writes
    story.run(60)
    assert story.writes == writes, "it is said once"


def test_a_node_whose_engines_start_has_no_such_condition() -> None:
    assert condition_of(begin()) is None


def test_it_leaves_when_the_engine_starts_and_what_a_silent_node_said_stands() -> None:
    story = begin(MISSING)
    story.agents["a"].paused = True
    story.run(30)
    assert condition_of(story) is not None
    story.agents["a"].paused = False
    story.agents["a"].unusable = ()
    story.run(20)
    assert condition_of(story) is None
    assert node_of(story).status.unusable_names == ""


def test_a_placement_that_finds_no_engine_has_the_nodes_own_words() -> None:
    story = begin(MISSING)
    story.agents["a"].lanes = ()
    story.remove(builders.placement())
    story.put(builders.placement("other", model="smollm2"))
    story.run(30)
    placed = next(item for item in story.objects.values() if isinstance(item, Placement))
    assert f"node 'a' says of LlamaServer: {WORDS}" in placed.status.conditions[0].message
