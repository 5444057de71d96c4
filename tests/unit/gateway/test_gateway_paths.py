"""Which way a gateway goes to an endpoint, and when it says that there is none."""

import ssl

import pytest
from covey_api.messages import Endpoint
from covey_gateway.fronts import NoWay, explain_dial
from covey_gateway.paths import AGAIN_SECONDS, BAD_SECONDS, GOOD_SECONDS, TRIES, Path, judge_try, observe_failures
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.table import Front, Target, choose_way, parse_endpoint
from covey_gateway.traffic import Traffic

ID = "00000000000000aa"
FRONT = Front("192.0.2.7", 52500, f"a3.{ID}.covey.invalid", "a")


def endpoint(machine: str = "there", front_port: int = 52500, address: str = "192.0.2.7") -> Endpoint:
    return Endpoint(
        instance_id=ID,
        instance="default/m-0",
        namespace="default",
        model="m",
        node="a",
        host="127.0.0.1",
        port=40_000,
        key="k",
        engine="LlamaServer",
        slots=2,
        context_tokens=9,
        machine=machine,
        attempt=3,
        address=address,
        front_port=front_port,
    )


@pytest.mark.parametrize(
    ("there", "here", "way"),
    [
        (endpoint("here"), "here", None),
        (endpoint("here", front_port=0), "here", None),
        (endpoint(), "here", FRONT),
        (endpoint(), None, FRONT),
        (endpoint("here"), None, FRONT),
        # This gateway can't tell which machine it is on: nobody is taken to be here.
        (endpoint(""), "", FRONT),
        # Of a version that has no fronts, or recalled: as ever, straight.
        (endpoint("", front_port=0), "here", None),
        (endpoint("", front_port=0), "", None),
    ],
)
def test_the_same_machine_goes_straight_and_any_other_by_the_front(
    there: Endpoint, here: str | None, way: Front | None
) -> None:
    assert choose_way(there, here) == (way, "")


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (endpoint(front_port=0), "here"),
        (endpoint(front_port=0), None),
        (endpoint("", front_port=0), None),
        (endpoint(address=""), "here"),
    ],
)
def test_an_engine_elsewhere_without_a_front_is_no_way_and_never_this_machines_port(
    there: Endpoint, here: str | None
) -> None:
    front, words = choose_way(there, here)
    assert front is None
    assert words == "it is on another machine, and its node 'a' opened no front for it"


def test_an_endpoint_keeps_its_id_whatever_the_way() -> None:
    assert parse_endpoint(endpoint(), "here").id == parse_endpoint(endpoint("here"), "here").id


def remote(no_way: str = "") -> dict[str, Target]:
    made = parse_endpoint(endpoint(front_port=0 if no_way else 52500), "here")
    return {made.id: made}


def test_a_failure_is_told_with_the_third_in_a_row_and_taken_back_with_the_first_success() -> None:
    targets = remote()
    (id_,) = targets
    path, now, told = Path(), 100.0, {}
    for count in range(1, TRIES + 2):
        path = judge_try(path, "it took no connection: Connection refused", now)
        told = observe_failures(targets, {id_: path})
        assert bool(told) == (count >= TRIES)
        assert path.due == now + (AGAIN_SECONDS if count < TRIES else BAD_SECONDS)
    assert told == {ID: "it took no connection: Connection refused"}
    path = judge_try(path, "", now)
    assert path == Path(due=now + GOOD_SECONDS)
    assert observe_failures(targets, {id_: path}) == {}


def test_no_front_is_told_at_once() -> None:
    targets = remote("none")
    (id_,) = targets
    assert observe_failures(targets, {id_: judge_try(Path(), "no front", 0)}) == {ID: "no front"}


def test_demand_names_what_has_no_way_also_when_no_request_was_there() -> None:
    told: list[bool] = []
    traffic = Traffic(AccessPolicy(needs_local_origin=True, needs_key=False), lambda: 0.0)
    traffic.watch_news(lambda: told.append(True))
    for _ in range(2):
        traffic.set_path_failures({ID: "closed"})
    (one,) = traffic.observe_demand()
    assert (one.instance_id, one.in_flight, one.unreachable, one.path_failure) == (ID, 0, True, "closed")
    traffic.set_path_failures({})
    assert traffic.observe_demand() == ()
    assert told == [True, True]


def verification_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed (_ssl.c:1006)")
    error.verify_message = "unsuitable certificate purpose"
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoWay("no front"), "no front"),
        (ConnectionRefusedError(111, "Connect call failed ('192.0.2.7', 52500)"), "Connection refused"),
        (verification_error(), "its certificate is not of this fleet: unsuitable certificate purpose"),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol (_ssl.c:2580)"), "it was cut off"),
        (OSError("Multiple exceptions: a, b"), "it took no connection: Multiple exceptions: a, b"),
    ],
)
def test_words_of_a_failed_dial_are_the_same_each_time(error: OSError, words: str) -> None:
    assert words in explain_dial(error)
