"""A prompt and `max_tokens` together, one token below a window, at it and above: told by the engine's count alone."""

import json
from dataclasses import replace
from typing import Any

import pytest
from covey_api.reasons import ErrorCode
from covey_gateway.fitting import Fit, plan_fit
from covey_gateway.reply import Reply, choose_reply
from covey_gateway.routing.table import Target
from covey_gateway.wire.anthropic.request import parse_messages
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.metering import Meter
from covey_gateway.wire.ollama.request import parse_chat as parse_ollama
from covey_gateway.wire.openai.chat import parse_chat
from covey_gateway.wire.openai.errors import translate_refusal
from covey_gateway.wire.request import Parsed, Request, render_request
from covey_gateway.wire.responses.request import parse_response
from kit.wiretap import read_events

WINDOW, PROMPT = 8192, 900
TARGET = Target("i", "i", "default", "m", "127.0.0.1", 1, "", 1, 1, WINDOW, confirmed=True, engine="LlamaServer")
HI: Any = {"messages": [{"role": "user", "content": "Hi"}]}


def asked(found: Parsed) -> Request:
    assert isinstance(found, Request), found
    return found


def chat(**fields: Any) -> Request:
    return asked(parse_chat(json.dumps({"model": "m"} | HI | fields).encode()))


def planned(request: Request, target: Target = TARGET) -> Fit | None:
    return plan_fit(request, len(render_request(request, "m", target.engine)), target, "m")


def replied(request: Request, fit: Fit | None) -> tuple[Reply, Meter]:
    meter = Meter(request.call)
    meter.begin(WINDOW)
    teller = request.make_teller("m")
    return choose_reply(200, b"text/event-stream", None, request, teller, "m", meter, "LlamaServer", fit), meter


def event(delta: Any, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": None}]
    return b"data: %b\n\n" % json.dumps({"id": "chatcmpl-a", "created": 1, "choices": choices} | more).encode()


def told(total: int) -> bytes:
    return event({"role": "assistant", "content": None}, prompt_progress={"total": total, "cache": 0, "processed": 0})


def test_only_what_may_not_fit_by_its_bytes_is_looked_at() -> None:
    assert planned(chat(max_tokens=500)) is None
    assert planned(chat()) is None
    assert planned(chat(max_tokens=WINDOW - 100)) is not None
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    assert planned(chat(max_tokens=500, messages=[{"role": "user", "content": [picture]}])) is not None
    for other in (replace(TARGET, engine="Vllm"), replace(TARGET, context_tokens=None)):
        assert planned(chat(max_tokens=WINDOW - 100), other) is None


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("above", [-1, 0, 1])
def test_the_engines_count_decides_and_nothing_else(above: int, is_stream: bool) -> None:
    most = WINDOW - PROMPT + above
    request = chat(max_tokens=most, stream=is_stream)
    fit = planned(request)
    assert fit is not None
    reply, meter = replied(request, fit)
    assert not reply.is_stream
    found = reply.take(told(PROMPT)[:40])
    assert (found, reply.is_stream) == (b"", False)
    found = reply.take(told(PROMPT)[40:])
    if above > 0:
        assert isinstance(found, ApiError)
        assert (found.status, found.code, found.param) == (400, ErrorCode.CONTEXT_LENGTH_EXCEEDED, "max_tokens")
        assert f"{PROMPT} + {most} > {WINDOW}" in found.message
        assert not meter.has_begun
        return
    assert (found, reply.is_stream) == (b"", is_stream)
    said = event({"content": 'A "prompt_progress" of words.'})
    found = reply.take(told(PROMPT) + said)
    assert found == (said if is_stream else b"")
    assert isinstance(reply.take(event({}, choices=[]) + b"data: [DONE]\n\n"), bytes)
    whole = reply.end()
    assert isinstance(whole, bytes)
    assert b"prompt_progress" not in whole or b"of words" in whole


def test_an_engine_that_tells_no_count_is_believed() -> None:
    request = chat(max_tokens=WINDOW - 1, stream=True)
    reply, _ = replied(request, planned(request))
    said = event({"content": "Hi"})
    assert (reply.take(said), reply.is_stream) == (said, True)


def test_who_asked_for_the_count_is_told_it() -> None:
    request = asked(parse_messages(json.dumps({"model": "m", "max_tokens": 7000, "stream": True} | HI).encode()))
    reply, _ = replied(request, Fit(request, "m", WINDOW, 7000))
    begun = reply.take(told(PROMPT))
    assert isinstance(begun, bytes)
    assert read_events(begun)[0]["message"]["usage"]["input_tokens"] == PROMPT


@pytest.mark.parametrize(
    ("parse", "fields", "field"),
    [
        (parse_chat, HI | {"max_completion_tokens": 8000}, "max_completion_tokens"),
        (parse_messages, HI | {"max_tokens": 8000}, "max_tokens"),
        (parse_response, {"input": "Hi", "max_output_tokens": 8000}, "max_output_tokens"),
        (parse_ollama, HI | {"options": {"num_predict": 8000}}, "options.num_predict"),
    ],
)
def test_each_formats_own_field_is_named(parse: Any, fields: Any, field: str) -> None:
    request = asked(parse(json.dumps({"model": "m"} | fields).encode()))
    fit = planned(request)
    assert fit is not None
    found = fit.look(told(PROMPT))
    assert isinstance(found, ApiError)
    assert found.param == field
    # By these words agents ask again for less.
    assert found.message.startswith(f"input length and `{field}` exceed context limit: 900 + 8000 > 8192,")


def test_engines_of_ours_refuse_it_themselves() -> None:
    detail = {"type": "exceed_context_size_error", "n_prompt_tokens": PROMPT, "n_ctx": 1000, "n_max_tokens": 101}
    found = translate_refusal(400, json.dumps({"error": detail}).encode(), None, "m", "input", "max_output_tokens")
    assert (found.status, found.code, found.param) == (400, ErrorCode.CONTEXT_LENGTH_EXCEEDED, "max_output_tokens")
    assert "900 + 101 > 1000" in found.message
