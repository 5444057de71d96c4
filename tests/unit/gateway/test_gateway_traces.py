"""Trace Context as clients send it: what passes to an engine, and what is left out."""

import sys

import pytest
from covey_gateway.failures import StartError
from covey_gateway.main import parse_options
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.seeing import trace_requests
from covey_gateway.traffic import Traffic
from covey_gateway.wire.tracing import MAX_STATE_BYTES, parse_trace, render_trace

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def told(*headers: tuple[str, str]) -> str:
    """What an engine hears of it."""
    trace = parse_trace([(name.encode(), value.encode()) for name, value in headers])
    return "" if trace is None else render_trace(trace)


def test_a_trace_passes_as_it_came() -> None:
    assert told(("traceparent", PARENT)) == f"traceparent: {PARENT}\r\n"
    unsampled = f"00-{TRACE}-{SPAN}-00"
    assert told(("traceparent", unsampled)) == f"traceparent: {unsampled}\r\n"


def test_states_in_several_headers_are_one_list_in_their_order() -> None:
    found = told(("tracestate", "a=1"), ("traceparent", PARENT), ("tracestate", "b=2,c=3"))
    assert found == f"traceparent: {PARENT}\r\ntracestate: a=1,b=2,c=3\r\n"


def test_a_later_version_is_told_as_the_one_that_is_known() -> None:
    assert told(("traceparent", f"cc-{TRACE}-{SPAN}-01-what-comes")) == f"traceparent: {PARENT}\r\n"


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "nonsense",
        PARENT.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"{PARENT}\r\nx: y",
    ],
)
def test_what_is_no_trace_is_left_out_and_its_state_with_it(parent: str) -> None:
    assert told(("traceparent", parent), ("tracestate", "a=1")) == ""


def test_two_parents_are_none() -> None:
    assert told(("traceparent", PARENT), ("traceparent", PARENT)) == ""


@pytest.mark.parametrize("state", ["a=" + "x" * MAX_STATE_BYTES, "a=\x01", "ä=1"])
def test_a_state_that_cannot_pass_is_left_out_alone(state: str) -> None:
    assert told(("traceparent", PARENT), ("tracestate", state)) == f"traceparent: {PARENT}\r\n"


@pytest.mark.parametrize(
    "url",
    [
        "localhost:4318",
        "ftp://h",
        "http://",
        "http://user:secret@h:4318",
        "http://h/?key=x",
        "http://[::1:4318",
        "http://h:abc",
        "http://h:99999",
    ],
)
def test_what_is_no_address_of_a_receiver_is_refused_and_not_repeated(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(["--table", "t", "--otlp-endpoint", url])
    assert ended.value.code == 2
    words = capsys.readouterr().err
    assert "`--otlp-endpoint` must be" in words
    assert "secret" not in words


def test_a_receiver_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_options(["--table", "t"]).otlp_endpoint == ""
    monkeypatch.setenv("COVEY_OTLP_ENDPOINT", "http://127.0.0.1:4318/")
    assert parse_options(["--table", "t"]).otlp_endpoint == "http://127.0.0.1:4318"


@pytest.mark.anyio
async def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "covey_gateway.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    traffic = Traffic(AccessPolicy(needs_local_origin=True, needs_key=False), lambda: 0.0)
    with pytest.raises(StartError, match=r"covey-gateway\[otlp\]"):
        await trace_requests("http://127.0.0.1:1", traffic)
