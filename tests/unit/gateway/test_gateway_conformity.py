"""What holds answers against the published documents must notice it when one differs: each key, each value.

Streams here are told of a chat stream in `llama-server`'s shape, with a thought, text, and two calls.
"""

import copy
import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from covey_api.reasons import ErrorCode
from covey_gateway.wire.anthropic.answer import StreamedMessage, WholeMessage
from covey_gateway.wire.anthropic.errors import render_envelope as render_anthropic
from covey_gateway.wire.body import is_array, is_object
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.errors import render_envelope as render_openai
from covey_gateway.wire.openai.passed import PassedChat
from covey_gateway.wire.request import Request
from covey_gateway.wire.responses.request import parse_response
from integration.conformity import explain
from kit.wiretap import Exchange, read_events

HEADS = {"anthropic": {"anthropic-version": "2023-06-01"}, "openai": {}}


def piece(delta: Any, finish: str | None = None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices} | more
    return b"data: %b\n\n" % json.dumps(chunk).encode()


def call(index: int, **more: Any) -> bytes:
    return piece({"tool_calls": [{"index": index} | more]})


USAGE = {
    "prompt_tokens": 30,
    "completion_tokens": 20,
    "total_tokens": 50,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 4},
}
ENGINE = [
    piece({"role": "assistant", "content": None}),
    piece({"reasoning_content": "Hm."}),
    piece({"content": "Yes."}),
    call(0, id="call_a", type="function", function={"name": "get_weather", "arguments": ""}),
    call(0, function={"arguments": '{"city":"Paris"}'}),
    call(1, id="call_b", type="function", function={"name": "get_time", "arguments": "{}"}),
    piece({}, "tool_calls"),
    b"data: %b\n\n"
    % json.dumps(
        {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": USAGE}
    ).encode(),
]
DONE = b"data: [DONE]\n\n"


def respond(**fields: Any) -> Any:
    asked = parse_response(json.dumps({"model": "m", "input": "Hi"} | fields).encode())
    assert isinstance(asked, Request)
    return asked.make_teller("m")


def tell(teller: Any) -> bytes:
    told = [teller.take(each) for each in ENGINE]
    assert not [each for each in told if isinstance(each, ApiError)], told
    return b"".join(told) + teller.end()


STREAMS = {
    "/v1/chat/completions": b"".join(ENGINE) + DONE,
    "/v1/responses": tell(respond(stream=True)),
    "/v1/messages": tell(StreamedMessage("m", 99)),
}
WHOLES = {"/v1/responses": tell(respond()), "/v1/messages": tell(WholeMessage("m"))}
# Free as the documents have it: what a tool is called with.
FREE = {"input"}


def exchange(path: str, body: bytes, kind: str = "text/event-stream", status: int = 200) -> Exchange:
    return Exchange("POST", path, HEADS["anthropic" if "messages" in path else "openai"], status, kind, body)


def explain_events(path: str, events: list[Any]) -> list[str]:
    data = [each if each == "[DONE]" else json.dumps(each) for each in events]
    try:
        return explain(exchange(path, "".join(f"data: {each}\n\n" for each in data).encode()))
    except (AssertionError, KeyError) as error:  # it has no such event at all
        return [str(error)]


def damage(content: Any, *, is_key: bool) -> Iterator[tuple[str, Any]]:
    """Each copy of it with one key, or one value, that can't be."""
    for place, name in list(walk(content, ())):
        damaged = copy.deepcopy(content)
        inner = damaged
        for step in place:
            inner = inner[step]
        if is_key:
            inner[f"{name}_"] = inner.pop(name)
        else:
            inner[name] = [{"never": 1}]
        yield ".".join(map(str, (*place, name))), damaged


def walk(content: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for name, inner in content.items() if is_object(content) else enumerate(content):
        if is_object(content):
            yield place, name
        if (is_object(inner) or is_array(inner)) and name not in FREE:
            yield from walk(inner, (*place, name))


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_as_published_is_taken(path: str) -> None:
    assert explain(exchange(path, STREAMS[path])) == []


@pytest.mark.parametrize("path", WHOLES)
def test_a_whole_answer_as_published_is_taken(path: str) -> None:
    assert explain(exchange(path, WHOLES[path], "application/json")) == []


@pytest.mark.parametrize("path", STREAMS)
def test_every_other_key_and_value_in_every_event_is_noticed(path: str) -> None:
    events = read_events(STREAMS[path])
    missed: set[str] = set()
    for index, event in enumerate(events):
        if event == "[DONE]":
            continue
        for is_key in (True, False):
            for place, damaged in damage(event, is_key=is_key):
                if not explain_events(path, [*events[:index], damaged, *events[index + 1 :]]):
                    missed.add(f"{event.get('type', '')} {place} {'key' if is_key else 'value'}")
    assert not missed


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_without_its_end_or_with_two_is_noticed(path: str) -> None:
    events = read_events(STREAMS[path])
    assert explain_events(path, events[:-1])
    assert explain_events(path, [*events, events[-1]])


def test_a_chunk_that_calls_itself_a_whole_answer_is_called_a_chunk() -> None:
    text = 'It says {"object": "chat.completion"}.'
    told = PassedChat("m").take(piece({"content": text}) + piece({}, "stop", object="chat.completion"))
    assert isinstance(told, bytes)
    said, end = read_events(told)
    assert said["choices"][0]["delta"]["content"] == text
    assert end["object"] == "chat.completion.chunk"


ERRORS = [
    ApiError(HTTPStatus(status), code, "words", param)
    for status in (400, 401, 404, 405, 410, 429, 500, 501, 502, 503, 504)
    for code in (ErrorCode.MODEL_NOT_FOUND, ErrorCode.CONTEXT_LENGTH_EXCEEDED)
    for param in (None, "messages")
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{error.status}-{error.code}-{error.param}")
def test_errors_of_every_status_are_as_published(error: ApiError) -> None:
    for path, body in (("/v1/chat/completions", render_openai(error)), ("/v1/messages", render_anthropic(error))):
        assert explain(exchange(path, body, "application/json", error.status)) == []
