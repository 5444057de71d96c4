"""Anthropic's answers out of what engines tell: how it ended, what it is said to have cost before it is known."""

import json
from typing import Any

import pytest
from covey_gateway.wire.anthropic.request import parse_messages
from covey_gateway.wire.request import Request, Teller
from covey_gateway.wire.sse import split_data


def teller(*, is_stream: bool, **fields: Any) -> Teller:
    asked = {"model": "m", "max_tokens": 9, "stream": is_stream, "messages": [{"role": "user", "content": "Hi"}]}
    found = parse_messages(json.dumps(asked | fields).encode())
    assert isinstance(found, Request)
    return found.make_teller("m")


def piece(delta: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None} | more
    return b"data: %b\n\n" % json.dumps({"id": "chatcmpl-1", "created": 1, "choices": [choice]}).encode()


def told(teller: Teller, *pieces: bytes) -> list[Any]:
    taken = [teller.take(piece) for piece in pieces]
    stream = b"".join(each for each in taken if isinstance(each, bytes)) + teller.end()
    return [json.loads(data) for data in split_data(stream)] if b"event: " in stream else [json.loads(stream)]


@pytest.mark.parametrize(
    ("ending", "reason", "sequence"),
    [
        ({"finish_reason": "stop", "stop_reason": "END"}, "stop_sequence", "END"),
        ({"finish_reason": "stop", "stop_reason": 128009}, "end_turn", None),
        ({"finish_reason": "stop", "stop_reason": None}, "end_turn", None),
        ({"finish_reason": "stop"}, "end_turn", None),
        ({"finish_reason": "length"}, "max_tokens", None),
    ],
)
def test_the_stop_sequence_that_ended_it_is_told_where_the_engine_tells_it(
    ending: dict[str, Any], reason: str, sequence: str | None
) -> None:
    pieces = piece({"content": "Hello"}), piece({}, **ending)
    (whole,) = told(teller(is_stream=False), *pieces)
    delta = told(teller(is_stream=True), *pieces)[-2]["delta"]
    for found in (whole, delta):
        assert (found["stop_reason"], found["stop_sequence"]) == (reason, sequence)


def test_the_bound_of_the_input_is_above_what_a_template_makes_of_the_shortest_prompt() -> None:
    """SmolLM2 makes 31 tokens of "Hi", which has 36 bytes here; others' default system prompts are longer."""
    begun = told(teller(is_stream=True), piece({"role": "assistant"}))[0]
    assert begun["type"] == "message_start"
    assert begun["message"]["usage"]["input_tokens"] >= 1024
