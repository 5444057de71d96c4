"""`DataPathReachable`: what gateways can't reach, as people read it."""

import pytest
from covey_api.meta import Condition, ConditionStatus
from covey_api.node import Node
from covey_api.reasons import EventReason
from kit import builders
from kit.worlds import FakeAgent, FakeGateway, Worldlet

FAILURE = "it took no connection within 5 s"


def serving(front_port: int = 52500) -> Worldlet:
    """One model on node 'a', reached by gateway 'g' from elsewhere."""
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.agents["a"] = FakeAgent("a", address="192.0.2.7", front_port=front_port)
    story.gateways["g"] = FakeGateway()
    story.run(20)
    assert story.routed() == ["smollm2-0"]
    return story


def condition_of(story: Worldlet) -> Condition | None:
    node = next(item for item in story.objects.values() if isinstance(item, Node))
    return next((each for each in node.status.conditions if each.type == "DataPathReachable"), None)


def status_of(story: Worldlet) -> ConditionStatus | None:
    found = condition_of(story)
    return found.status if found else None


def fail(story: Worldlet, gateway: str = "g") -> None:
    story.gateways[gateway].path_failures = {story.instances()[0].spec.instance_id: FAILURE}


def test_a_front_that_no_gateway_misses_is_reachable_and_none_says_nothing() -> None:
    assert status_of(serving()) is ConditionStatus.TRUE
    assert condition_of(serving(front_port=0)) is None


def test_the_message_names_gateway_node_address_port_and_what_to_open() -> None:
    story = serving()
    fail(story)
    story.run(3)
    found = condition_of(story)
    assert found is not None
    assert found.status is ConditionStatus.FALSE
    assert found.message == (
        "gateway 'g' can't reach 'smollm2-0' at address 192.0.2.7, port 52500: it took no connection within 5 s. Its "
        "agent is there and the engine is ready: open TCP ports 52500-52599 of node 'a' to the gateway (firewall, "
        "security group), or start the agent with an `--address` that the gateway reaches"
    )


def test_a_lasting_failure_is_written_and_noted_once() -> None:
    story = serving()
    fail(story)
    story.run(3)
    notes, before = len(story.notes), condition_of(story)
    story.run(60)
    assert condition_of(story) == before
    assert len(story.notes) == notes
    assert [note.reason for note in story.notes].count(EventReason.DATA_PATH_CLOSED) == 1


def test_a_gateway_that_died_with_its_failure_is_not_believed_for_ever() -> None:
    story = serving()
    story.gateways["h"] = FakeGateway("h")
    fail(story, "h")
    story.run(3)
    assert status_of(story) is ConditionStatus.FALSE
    story.gateways["h"].dead = True
    story.run(30)
    assert status_of(story) is ConditionStatus.TRUE


def test_a_silent_node_keeps_the_word_that_was_said() -> None:
    story = serving()
    fail(story)
    story.run(3)
    story.agents["a"].paused = True
    story.run(12)
    story.gateways["g"].path_failures = {}
    story.run(20)
    assert status_of(story) is ConditionStatus.FALSE


@pytest.mark.parametrize("seconds", [1, 5])
def test_a_new_leader_neither_clears_nor_repeats_what_it_has_not_heard(seconds: int) -> None:
    story = serving()
    fail(story)
    story.run(3)
    before, failures = condition_of(story), story.gateways["g"].path_failures
    story.gateways["g"].path_failures = {}
    story.restart_leader()
    story.run(seconds)
    assert condition_of(story) == before
    story.gateways["g"].path_failures = failures
    story.run(20)
    assert condition_of(story) == before
    assert [note.reason for note in story.notes].count(EventReason.DATA_PATH_CLOSED) <= 1
