"""When an engine is doubted: what gateways see of silence, in virtual time through the whole plan."""

import pytest
from covey_api.messages import EndpointDemand
from covey_api.reasons import EventReason
from covey_controller.reconcile.doubts import IDLE_SECONDS, RENEW_SECONDS, SILENT_SECONDS, is_silent
from kit import builders
from kit.worlds import FakeGateway, Worldlet


def fleet(*gateways: str) -> tuple[Worldlet, str]:
    """One Instance that serves, and its id."""
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.add_agents("a")
    for name in gateways or ("g",):
        story.gateways[name] = FakeGateway(name)
    story.run(15)
    assert story.routed() == ["smollm2-0"]
    return story, story.instances()[0].spec.instance_id


def suspicion(story: Worldlet) -> str:
    (member,) = story.published.assignments["a"].members
    return member.suspect_since


def noted(story: Worldlet) -> int:
    return sum(note.reason == EventReason.DOUBTED for note in story.notes)


@pytest.mark.parametrize(
    ("waited", "heard", "silent"),
    [
        (None, None, False),
        (None, 1000.0, False),
        (29.9, None, False),
        (30.0, None, True),
        (30.0, 29.0, False),
        (600.0, 2.0, False),
        (600.0, 600.0, True),
    ],
)
def test_silence_is_a_request_that_waits_at_an_endpoint_that_gives_nobody_a_byte(
    waited: float | None, heard: float | None, silent: bool
) -> None:
    told = EndpointDemand(instance_id="a", in_flight=1, last_byte_seconds=heard, oldest_silent_seconds=waited)
    assert is_silent(told) is silent


def test_silent_request_begins_a_doubt_that_its_agent_is_told_of_and_a_byte_ends_it() -> None:
    story, each = fleet()
    gateway = story.gateways["g"]
    gateway.silent, gateway.heard = {each: SILENT_SECONDS - 1}, {each: SILENT_SECONDS + 20}
    story.step()
    assert suspicion(story) == ""
    gateway.silent = {each: SILENT_SECONDS}
    story.step()
    first = suspicion(story)
    assert first.endswith("Z")
    assert noted(story) == 1
    story.run(20)
    assert suspicion(story) == first, "a doubt stays the same one"
    assert (story.routed(), noted(story)) == (["smollm2-0"], 1)
    gateway.heard = {each: 0.1}
    story.step()
    assert suspicion(story) == ""


def test_gateways_are_told_while_requests_wait_in_vain_and_not_of_idle_engines() -> None:
    story, each = fleet()

    def doubted() -> list[bool]:
        assert story.published.endpoints is not None
        return [endpoint.doubted for endpoint in story.published.endpoints.endpoints]

    assert doubted() == [False]
    story.gateways["g"].silent = {each: SILENT_SECONDS}
    story.step()
    assert doubted() == [True]
    writes = story.writes
    story.run(20)
    assert (doubted(), story.writes) == ([True], writes)
    story.gateways["g"].heard = {each: 0.1}
    story.step()
    assert doubted() == [False]
    story.gateways["g"].silent, story.gateways["g"].heard = {}, {}
    story.run(IDLE_SECONDS + 20)
    assert suspicion(story)
    assert doubted() == [False]


def test_doubt_that_lasts_is_renewed_so_that_its_agent_looks_again() -> None:
    story, each = fleet()
    story.gateways["g"].silent = {each: SILENT_SECONDS}
    story.step()
    seen = {suspicion(story)}
    for _ in range(int(3 * RENEW_SECONDS)):
        story.step()
        seen.add(suspicion(story))
    assert len(seen) == 4
    assert noted(story) == 1


def test_byte_that_any_gateway_had_keeps_the_doubt_away() -> None:
    story, each = fleet("g", "h")
    story.gateways["g"].silent = {each: 100.0}
    story.gateways["h"].heard = {each: 3.0}
    story.run(5)
    assert suspicion(story) == ""


def test_word_of_a_gateway_that_is_gone_begins_no_doubt() -> None:
    story, each = fleet("g", "h")
    story.gateways["h"].dead = True
    story.run(30)
    story.gateways["h"].silent = {each: 100.0}
    story.run(5)
    assert suspicion(story) == ""


def test_engine_that_nobody_heard_for_ten_minutes_is_doubted_once_in_ten_minutes_without_an_event() -> None:
    story, each = fleet()
    story.gateways["g"].heard = {each: 0.0}
    story.step()
    story.gateways["g"].heard = {}
    story.run(IDLE_SECONDS - 5)
    assert suspicion(story) == ""
    story.run(10)
    first = suspicion(story)
    assert first
    writes = story.writes
    story.run(IDLE_SECONDS - 20)
    assert suspicion(story) == first
    story.run(40)
    assert suspicion(story) not in ("", first)
    assert (story.writes, noted(story)) == (writes, 0)
    story.gateways["g"].heard = {each: 0.0}
    story.step()
    assert suspicion(story) == ""


def test_request_that_waits_at_an_idle_engine_begins_a_doubt_of_its_own() -> None:
    story, each = fleet()
    story.run(IDLE_SECONDS + 5)
    first = suspicion(story)
    assert first
    story.gateways["g"].silent = {each: SILENT_SECONDS}
    story.step()
    assert suspicion(story) not in ("", first)
    assert noted(story) == 1


def test_without_a_gateway_nobody_says_that_an_engine_is_idle() -> None:
    story, _ = fleet()
    story.gateways["g"].dead = True
    story.run(2 * IDLE_SECONDS)
    assert suspicion(story) == ""


def test_what_does_not_serve_is_not_doubted() -> None:
    story, each = fleet()
    story.gateways["g"].silent = {each: SILENT_SECONDS}
    story.gateways["g"].in_flight = {each: 1}
    story.put(builders.placement(suspend=True))
    story.run(3)
    (member,) = story.published.assignments["a"].members
    assert (member.goal, member.suspect_since) == ("Drain", "")


def test_new_leader_doubts_anew() -> None:
    story, each = fleet()
    story.gateways["g"].silent = {each: SILENT_SECONDS}
    story.step()
    first = suspicion(story)
    story.restart_leader()
    story.run(15)
    assert suspicion(story) not in ("", first)
