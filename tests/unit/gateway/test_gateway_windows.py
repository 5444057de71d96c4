"""What doesn't fit a window is said of the field that the client sent, in its format's words."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from covey_api.messages import ModelState, ServedModel
from covey_api.reasons import ErrorCode
from covey_gateway.reply import Refusal, choose_reply
from covey_gateway.routing.refusals import refuse_window
from covey_gateway.wire.anthropic.errors import render_envelope as render_anthropic
from covey_gateway.wire.anthropic.request import parse_messages
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.metering import Meter
from covey_gateway.wire.ollama import request as ollama
from covey_gateway.wire.openai.chat import parse_chat
from covey_gateway.wire.openai.texts import parse_completion
from covey_gateway.wire.request import Parsed, Request
from covey_gateway.wire.responses.request import parse_response

MODEL = ServedModel(namespace="default", name="m", tasks=("Chat",), state=ModelState.READY)
HI: Any = {"messages": [{"role": "user", "content": "Hi"}]}
WINDOW = 16384
Parse = Callable[[bytes], Parsed]


def parsed(parse: Parse, **fields: Any) -> Request:
    found = parse(json.dumps({"model": "m"} | fields).encode())
    assert isinstance(found, Request), found
    return found


@pytest.mark.parametrize(
    ("parse", "fields", "param"),
    [
        (parse_chat, HI | {"max_tokens": 32000}, "max_tokens"),
        (parse_chat, HI | {"max_completion_tokens": 32000}, "max_completion_tokens"),
        (parse_completion, {"prompt": "Hi", "max_tokens": 32000}, "max_tokens"),
        (parse_response, {"input": "Hi", "max_output_tokens": 32000}, "max_output_tokens"),
        (parse_messages, HI | {"max_tokens": 32000}, "max_tokens"),
        (ollama.parse_chat, HI | {"options": {"num_predict": 32000}}, "options.num_predict"),
        (ollama.parse_chat, HI | {"options": {"num_ctx": 32000}}, "options.num_ctx"),
        (ollama.parse_generate, {"prompt": "Hi", "raw": True, "options": {"num_ctx": 32000}}, "options.num_ctx"),
    ],
)
def test_more_than_the_window_is_said_of_the_clients_own_field(parse: Parse, fields: Any, param: str) -> None:
    error = refuse_window(MODEL, parsed(parse, **fields), WINDOW)
    assert error is not None
    assert (error.code, error.param) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, param)
    assert f"`{param}` must be " in error.message
    assert "16384" in error.message
    assert "32000" in error.message


def test_agents_are_told_to_compact_their_history_only_where_that_would_help() -> None:
    most = refuse_window(MODEL, parsed(parse_messages, **HI, max_tokens=32000), WINDOW)
    assert most is not None
    assert not told_to_agents(most).startswith("prompt is too long")
    assert told_to_agents(refused_by_engine(parsed(parse_messages, **HI, max_tokens=9))).startswith(
        "prompt is too long"
    )


def told_to_agents(error: ApiError) -> str:
    return msgspec.json.decode(render_anthropic(error))["error"]["message"]


def refused_by_engine(request: Request) -> ApiError:
    detail = {"type": "exceed_context_size_error", "n_prompt_tokens": 3031, "n_ctx": 1024}
    reply = choose_reply(400, b"", None, request, request.make_teller("m"), "m", Meter(request.call))
    reply.take(json.dumps({"error": detail}).encode())
    ending = reply.end()
    assert isinstance(ending, Refusal)
    return ending.error


@pytest.mark.parametrize(
    ("parse", "fields", "param"),
    [
        (parse_chat, HI, "messages"),
        (parse_completion, {"prompt": "Hi"}, "prompt"),
        (parse_response, {"input": "Hi"}, "input"),
        (parse_messages, HI | {"max_tokens": 1}, "messages"),
        (ollama.parse_chat, HI, "messages"),
        (ollama.parse_generate, {"prompt": "Hi"}, "prompt"),
        (ollama.parse_generate, {"prompt": "Hi", "raw": True}, "prompt"),
    ],
)
def test_too_long_a_prompt_is_said_of_the_clients_own_field(parse: Parse, fields: Any, param: str) -> None:
    error = refused_by_engine(parsed(parse, **fields))
    assert (error.code, error.param) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, param)
