"""What is in flight where, across failures and new tables."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from covey_api.messages import EndpointDemand, ModelState, Order, ServedModel
from covey_api.reasons import ErrorCode
from covey_controller.reconcile.doubts import is_silent
from covey_gateway.limits import FAILURES_ASIDE, MAX_BODIES_BYTES
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.table import Caller, RoutingTable, Target, build_table
from covey_gateway.traffic import HEARD_LATELY_SECONDS, Traffic
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.formats import HOT_PATHS
from covey_gateway.wire.ollama.request import parse_chat as parse_ollama
from covey_gateway.wire.request import Request


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Waiting:
    last_byte_at: float | None = None
    silent_since: float | None = None
    needs_slot: bool = True


MODEL = ServedModel(namespace="default", name="m", state=ModelState.READY)


def target(instance_id: str, port: int = 1) -> Target:
    return Target(
        id=f"{instance_id}@127.0.0.1:{port}",
        instance_id=instance_id,
        namespace="default",
        model="m",
        host="127.0.0.1",
        port=port,
        key="",
        slots=1,
        weight=1,
        context_tokens=None,
        confirmed=True,
    )


def table(*targets: Target) -> RoutingTable:
    return build_table(Order(term=1, serial=1), [MODEL], targets, [])


def traffic(*targets: Target) -> tuple[Traffic, Clock]:
    clock = Clock()
    made = Traffic(AccessPolicy(needs_local_origin=True, needs_key=False), clock)
    made.apply_table(table(*targets))
    return made, clock


def taken(made: Traffic) -> Target:
    found = made.take(MODEL)
    assert isinstance(found, Target), found
    return found


def test_requests_spread_over_equal_endpoints() -> None:
    made, _ = traffic(target("a"), target("b"))
    assert {taken(made).instance_id, taken(made).instance_id} == {"a", "b"}
    assert made.observe_demand() == (
        EndpointDemand(instance_id="a", in_flight=1),
        EndpointDemand(instance_id="b", in_flight=1),
    )


def asked_in_turn(made: Traffic) -> set[str]:
    """Where requests go that come one after the other."""
    found: set[str] = set()
    for _ in range(4):
        one = taken(made)
        made.release(one)
        found.add(one.instance_id)
    return found


def left_at_a() -> tuple[Traffic, Clock]:
    """Two endpoints; one reads the prompt of a client that has left."""
    made, clock = traffic(target("a"), target("b"))
    assert asked_in_turn(made) == {"a", "b"}
    while (left := taken(made)).instance_id != "a":
        made.release(left)
    made.release(left, is_read_on=True)
    return made, clock


def test_a_prompt_that_is_read_on_without_its_client_is_a_busy_slot() -> None:
    made, clock = left_at_a()
    clock.now = 59.0
    assert asked_in_turn(made) == {"b"}
    assert EndpointDemand(instance_id="a", in_flight=0) not in made.observe_demand(), "nobody waits for it"


def test_a_prompt_that_was_left_is_read_no_more_once_somebody_gets_a_byte_there() -> None:
    made, clock = left_at_a()
    behind, waiting = made.take(MODEL, excluded="b@127.0.0.1:1"), Waiting()
    assert isinstance(behind, Target)
    made.follow(behind, waiting)
    clock.now, waiting.last_byte_at = 5.0, 5.0
    made.unfollow(behind, waiting)
    made.release(behind)
    assert asked_in_turn(made) == {"a", "b"}


def test_bytes_from_before_it_was_left_say_nothing() -> None:
    made, clock = left_at_a()
    clock.now = 5.0
    before, waiting = made.take(MODEL, excluded="b@127.0.0.1:1"), Waiting(last_byte_at=-1.0)
    assert isinstance(before, Target)
    made.follow(before, waiting)
    made.unfollow(before, waiting)
    made.release(before)
    assert asked_in_turn(made) == {"b"}


def test_a_prompt_that_was_left_counts_for_a_minute_at_most() -> None:
    made, clock = left_at_a()
    clock.now = 61.0
    assert asked_in_turn(made) == {"a", "b"}


def test_an_endpoint_that_refused_is_unreachable_until_it_answers() -> None:
    made, clock = traffic(target("a"))
    made.release(taken(made), refused="it took no connection")
    assert made.observe_demand() == (EndpointDemand(instance_id="a", in_flight=0, unreachable=True),)
    found = made.take(MODEL)
    assert isinstance(found, ApiError)
    assert found.code is ErrorCode.UPSTREAM_UNAVAILABLE
    clock.now = 1.0
    probe = taken(made)
    assert isinstance(made.take(MODEL), ApiError)
    made.confirm(probe)
    assert taken(made).instance_id == "a"
    assert made.observe_demand() == (EndpointDemand(instance_id="a", in_flight=2),)


def test_an_endpoint_that_is_set_aside_is_told_at_once_and_not_at_each_further_refusal() -> None:
    made, clock = traffic(target("a"))
    told: list[bool] = []
    made.watch_news(lambda: told.append(True))
    made.release(taken(made), refused="it took no connection")
    assert told == [True]
    clock.now = 1.0
    made.release(taken(made), refused="it took no connection")
    assert told == [True]


def test_a_busy_endpoint_is_unreachable_once_it_takes_no_connection() -> None:
    made, clock = traffic(target("a"))
    told: list[bool] = []
    made.watch_news(lambda: told.append(True))
    first, second = taken(made), taken(made)
    made.release(first, refused="it answered 503", is_busy=True)
    assert not told
    made.release(second, refused="it took no connection")
    assert told == [True]
    assert [each.unreachable for each in made.observe_demand()] == [True]
    clock.now = 1.0
    made.release(taken(made), refused="it answered 503", is_busy=True)
    assert [each.unreachable for each in made.observe_demand()] == [False]


def test_a_probe_that_its_client_left_lets_the_next_one_probe() -> None:
    made, clock = traffic(target("a"))
    made.release(taken(made), refused="x")
    clock.now = 1.0
    made.release(taken(made))
    assert taken(made).instance_id == "a"


def ends_whole(made: Traffic, old: Target) -> None:
    made.release(old)


def breaks_off(made: Traffic, old: Target) -> None:
    made.fail(old, ApiError(502, ErrorCode.UPSTREAM_ENDED, "it ended early"))
    made.release(old)


def is_refused(made: Traffic, old: Target) -> None:
    made.release(old, refused="it closed the connection before it answered")


@pytest.mark.parametrize("end_old", [ends_whole, breaks_off, is_refused])
@pytest.mark.parametrize("is_failing", [False, True])
def test_while_one_request_tries_an_endpoint_no_other_does(
    end_old: Callable[[Traffic, Target], None], is_failing: bool
) -> None:
    """Whatever becomes of requests that were there before it was set aside."""
    made, clock = traffic(target("a"), target("b"))
    old = [taken(made) for _ in range(8)]
    at_a = [each for each in old if each.instance_id == "a"]
    if is_failing:
        for _ in range(FAILURES_ASIDE):
            made.fail(at_a[0], ApiError(502, ErrorCode.UPSTREAM_ERROR, "it failed"))
        made.release(at_a[0])
    else:
        made.release(at_a[0], refused="it took no connection")
    clock.now = 1.0
    tries = [found for found in (taken(made) for _ in range(8)) if found.instance_id == "a"]
    assert len(tries) == 1
    for each in at_a[1:]:
        end_old(made, each)
        clock.now += 100.0
        assert {taken(made).instance_id for _ in range(8)} == {"b"}
    made.release(tries[0], refused="it took no connection")
    assert {taken(made).instance_id for _ in range(8)} == {"b"}
    clock.now += 100.0
    again = [found for found in (taken(made) for _ in range(8)) if found.instance_id == "a"]
    assert len(again) == 1
    made.succeed(again[0])
    made.release(again[0])
    assert {taken(made).instance_id for _ in range(2)} == {"a"}, "it has less to do"


def test_a_departed_endpoint_is_reported_until_it_is_idle() -> None:
    made, _ = traffic(target("a"))
    told: list[bool] = []
    made.watch_news(lambda: told.append(True))
    first, second = taken(made), taken(made)
    assert made.apply_table(table(target("b"))) == {"a@127.0.0.1:1"}
    assert taken(made).instance_id == "b"
    made.release(first)
    assert not told
    assert EndpointDemand(instance_id="a", in_flight=1) in made.observe_demand()
    made.release(second)
    assert told == [True]
    assert [one.instance_id for one in made.observe_demand()] == ["b"]


def test_an_endpoint_that_left_idle_leaves_nothing_behind() -> None:
    made, _ = traffic(target("a"))
    made.release(taken(made), refused="x")
    made.apply_table(table())
    assert made.observe_demand() == ()
    made.apply_table(table(target("a")))
    assert taken(made).instance_id == "a"


def test_a_restarted_engine_starts_with_a_clean_record() -> None:
    made, _ = traffic(target("a", port=1))
    made.release(taken(made), refused="x")
    made.apply_table(table(target("a", port=2)))
    assert taken(made).port == 2


def test_a_model_without_endpoints_is_refused_by_its_newest_state() -> None:
    made, _ = traffic(target("a"))
    gone = MODEL.model_copy(update={"state": ModelState.UNAVAILABLE})
    made.apply_table(build_table(Order(term=1, serial=2), [gone], [], []))
    found = made.take(MODEL)
    assert isinstance(found, ApiError)
    assert found.code is ErrorCode.MODEL_UNAVAILABLE


def test_an_unknown_model_is_not_found() -> None:
    made, _ = traffic()
    found = made.resolve(Caller(), "x")
    assert isinstance(found, ApiError)
    assert found.status == 404


def test_a_tag_is_part_of_an_alias_that_has_it_and_means_nothing_else() -> None:
    made, _ = traffic()
    models = [MODEL.model_copy(update={"name": "n", "aliases": ("org/qwen:latest", "m:latest")}), MODEL]
    made.apply_table(build_table(Order(term=1, serial=2), models, [], []))
    for asked, name in (("org/qwen:latest", "n"), ("m:latest", "n"), ("n:latest", "n"), ("default/m:latest", "m")):
        request = parse_ollama(json.dumps({"model": asked, "messages": [{"role": "user", "content": "Hi"}]}).encode())
        assert isinstance(request, Request)
        model = made.find_model(Caller(), request)
        assert isinstance(model, ServedModel)
        assert model.name == name, asked
    error = made.resolve(Caller(), "x:latest")
    assert isinstance(error, ApiError)
    assert "'x:latest'" in error.message


def test_figures_tell_of_endpoints_whose_model_is_declared_no_more() -> None:
    made, _ = traffic(target("a"))
    taken(made)
    made.apply_table(build_table(Order(term=1, serial=2), [], [target("a")], []))
    assert made.observe_figures(0, 0).in_flight == {("default", "m"): 1}


def test_held_bodies_are_bounded_together() -> None:
    made, _ = traffic()
    assert made.reserve_body(MAX_BODIES_BYTES)
    assert not made.reserve_body(1)
    made.free_body(1)
    assert made.reserve_body(1)


def test_demand_tells_the_age_of_the_last_byte_and_of_the_oldest_silent_request() -> None:
    made, clock = traffic(target("a"))
    first, second = Waiting(silent_since=0.0), Waiting(silent_since=20.0)
    for waiting in (first, second):
        made.follow(taken(made), waiting)
    clock.now = 50.0
    (told,) = made.observe_demand()
    assert (told.in_flight, told.last_byte_seconds, told.oldest_silent_seconds) == (2, None, 50.0)
    first.last_byte_at = first.silent_since = 45.0
    (told,) = made.observe_demand()
    assert (told.last_byte_seconds, told.oldest_silent_seconds) == (5.0, 30.0)
    second.silent_since = None
    (told,) = made.observe_demand()
    assert told.oldest_silent_seconds == 5.0, "whose client is slow waits for nothing"


def test_endpoint_that_was_heard_lately_is_told_of_though_nothing_is_in_flight() -> None:
    made, clock = traffic(target("a"))
    waiting, at = Waiting(last_byte_at=1.0, silent_since=1.0), taken(made)
    made.follow(at, waiting)
    made.unfollow(at, waiting)
    made.release(at)
    clock.now = 11.0
    (told,) = made.observe_demand()
    assert (told.in_flight, told.last_byte_seconds, told.oldest_silent_seconds) == (0, 10.0, None)
    clock.now += HEARD_LATELY_SECONDS
    assert made.observe_demand() == ()


def test_ages_of_two_addresses_of_one_instance_are_those_that_matter_most() -> None:
    made, clock = traffic(target("a", 1), target("a", 2))
    one, other = Waiting(last_byte_at=30.0, silent_since=30.0), Waiting(silent_since=10.0)
    made.follow(taken(made), one)
    made.follow(taken(made), other)
    clock.now = 40.0
    (told,) = made.observe_demand()
    assert (told.in_flight, told.last_byte_seconds, told.oldest_silent_seconds) == (2, 10.0, 30.0)


def failed(made: Traffic, code: ErrorCode = ErrorCode.UPSTREAM_ERROR) -> str:
    found = taken(made)
    made.fail(found, ApiError(502, code, "it failed"))
    made.release(found)
    return found.instance_id


def test_failures_count_in_a_row_alone_and_of_the_endpoint_alone() -> None:
    made, _ = traffic(target("a"), target("b"))
    for number in range(10 * FAILURES_ASIDE):
        asked = {failed(made), failed(made)}  # in turns
        if number % (FAILURES_ASIDE - 1) == 0:
            for found in (taken(made), taken(made)):
                made.succeed(found)
                made.release(found)
        assert asked == {"a", "b"}
    for _ in range(2 * FAILURES_ASIDE):
        assert {failed(made, ErrorCode.CONTEXT_LENGTH_EXCEEDED) for _ in range(2)} == {"a", "b"}
    made, _ = traffic(target("a"), target("b"))
    ids = [failed(made) for _ in range(4 * FAILURES_ASIDE)]
    # One of two is set aside; the other one stays, however it fails.
    assert len(set(ids[-FAILURES_ASIDE:])) == 1


def test_a_connection_that_is_refused_is_news_also_of_one_that_failed() -> None:
    made, clock = traffic(target("a"), target("b"))
    for _ in range(2 * FAILURES_ASIDE):
        failed(made)
    assert not any(each.unreachable for each in made.observe_demand())
    clock.now = 1.0
    probe = taken(made)
    made.release(probe, refused="it took no connection")
    assert [each.instance_id for each in made.observe_demand() if each.unreachable] == [probe.instance_id]


def test_a_conversation_whose_home_is_silent_for_a_while_comes_back_to_it() -> None:
    made, clock = traffic(target("a"), target("b"))
    request = HOT_PATHS[b"/v1/chat/completions"][1](b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}')
    assert isinstance(request, Request)

    def ask() -> Target:
        found = made.take(MODEL, None, request, b"s")
        assert isinstance(found, Target)
        made.release(found)
        return found

    home = ask()
    busy = Waiting(silent_since=0.0)
    made.follow(home, busy)
    clock.now = 6.0
    made.look_for_silent()
    assert {ask().id, ask().id}.isdisjoint({home.id})
    busy.last_byte_at = busy.silent_since = 7.0
    clock.now = 7.0
    made.look_for_silent()
    assert {ask().id, ask().id} == {home.id}


def test_an_endpoint_is_silent_once_it_owes_a_byte_and_gives_nobody_one() -> None:
    made, clock = traffic(target("a"), target("b"))
    first = taken(made)
    waiting, heard = Waiting(silent_since=0.0), Waiting(last_byte_at=4.0)
    made.follow(first, waiting)
    made.follow(first, heard)
    for now, is_passed_over in ((4.9, False), (8.9, False), (9.0, True)):
        clock.now = now
        made.look_for_silent()
        found = [taken(made) for _ in range(4)]
        for each in found:
            made.release(each)
        assert ({each.id for each in found} == {"b@127.0.0.1:1"}) is is_passed_over, now


class Asked:
    """A client's request, of one that leaves after a while."""

    def __init__(self, made: Traffic, clock: Clock) -> None:
        self.target = taken(made)
        self.waiting = Waiting(silent_since=clock.now)
        made.follow(self.target, self.waiting)

    def end(self, made: Traffic) -> None:
        made.unfollow(self.target, self.waiting)
        made.release(self.target)


def is_told_silent(made: Traffic) -> bool:
    """As the controller judges, of the endpoint 'b'."""
    return any(is_silent(each) for each in made.observe_demand() if each.instance_id == "b")


@pytest.mark.parametrize("patience_seconds", [8.0, 20.0, 60.0])
def test_a_dead_endpoint_beside_one_that_answers_is_told_of_whatever_the_patience_of_clients(
    patience_seconds: float,
) -> None:
    """A request each second: those that 'a' gets are answered at once, those of 'b' never."""
    made, clock = traffic(target("a"), target("b"))
    hanging: list[tuple[float, Asked]] = []
    told: list[bool] = []
    on_b = 0
    for second in range(300):
        clock.now = float(second)
        while hanging and clock.now - hanging[0][0] >= patience_seconds:
            hanging.pop(0)[1].end(made)
        made.look_for_silent()
        asked = Asked(made, clock)
        if asked.target.instance_id == "a":
            asked.waiting.last_byte_at = clock.now
            asked.end(made)
        else:
            on_b += 1
            hanging.append((clock.now, asked))
        told.append(is_told_silent(made))
    assert not any(told[:30])
    assert all(told[35:]), "from then on it is doubted without a break"
    assert on_b <= 6 + 300 / patience_seconds, "no more than one at a time finds out"


def test_an_endpoint_that_was_passed_over_is_tried_by_one_and_gets_its_share_again_with_a_byte() -> None:
    made, clock = traffic(target("a"), target("b"))
    hanging = [Asked(made, clock), Asked(made, clock)]
    dead = next(each for each in hanging if each.target.instance_id == "b")
    alive = next(each for each in hanging if each is not dead)
    alive.waiting.last_byte_at = 0.0
    alive.end(made)
    clock.now = 10.0
    made.look_for_silent()
    assert {each.target.instance_id for each in (Asked(made, clock), Asked(made, clock))} == {"a"}
    dead.end(made)
    made.look_for_silent()
    tried = Asked(made, clock)
    assert tried.target.instance_id == "b"
    assert {Asked(made, clock).target.instance_id for _ in range(4)} == {"a"}
    clock.now = tried.waiting.last_byte_at = tried.waiting.silent_since = 11.0
    made.look_for_silent()
    assert Asked(made, clock).target.instance_id == "b"
    clock.now = 15.0
    (told,) = (each for each in made.observe_demand() if each.instance_id == "b")
    assert told.oldest_silent_seconds == 4.0


def test_what_nobody_waits_for_any_more_is_not_told_and_counts_for_the_next_one_a_minute_long() -> None:
    made, clock = traffic(target("a"))
    first = Asked(made, clock)
    clock.now = 20.0
    first.end(made)
    assert made.observe_demand() == ()
    clock.now = 50.0
    second = Asked(made, clock)
    assert [each.oldest_silent_seconds for each in made.observe_demand()] == [20.0]
    second.end(made)
    clock.now = 120.0
    Asked(made, clock)
    assert [each.oldest_silent_seconds for each in made.observe_demand()] == [0.0]
