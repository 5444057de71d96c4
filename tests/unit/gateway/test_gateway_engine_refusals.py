"""What an engine's own refusal means for a client."""

import json
from typing import Any

import pytest
from covey_api.reasons import ErrorCode
from covey_gateway.reply import Refusal, choose_reply
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.metering import Meter
from covey_gateway.wire.openai.errors import render_envelope, translate_refusal
from covey_gateway.wire.openai.passed import PassedChat
from covey_gateway.wire.request import Call, Request


def translated(status: int, body: Any, retry_after_seconds: int | None = None) -> ApiError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return translate_refusal(status, content, retry_after_seconds, "m")


def test_too_long_a_prompt_has_both_numbers() -> None:
    detail = {"code": 400, "message": "…", "type": "exceed_context_size_error", "n_prompt_tokens": 3031, "n_ctx": 1024}
    error = translated(400, {"error": detail})
    assert (error.status, error.code, error.param) == (400, ErrorCode.CONTEXT_LENGTH_EXCEEDED, "messages")
    assert "3031" in error.message
    assert "1024" in error.message
    del detail["n_ctx"]
    assert translated(400, {"error": detail}).code is ErrorCode.CONTEXT_LENGTH_EXCEEDED


def test_a_text_longer_than_an_encoders_batch_is_the_requests_fault() -> None:
    words = "input (903 tokens) is too large to process. increase the physical batch size (current batch size: 512)"
    error = translated(500, {"error": {"code": 500, "message": words, "type": "server_error"}})
    assert (error.status, error.code) == (400, ErrorCode.CONTEXT_LENGTH_EXCEEDED)
    assert "at most 512 tokens" in error.message
    assert "at least 903" in error.message


@pytest.mark.parametrize(
    ("words", "window", "needed", "param"),
    [
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4500 in the "
            "messages, 500 in the completion). Please reduce the length of the messages or completion.",
            "4096",
            "4500",
            "messages",
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 4090 output tokens and your "
            "prompt contains at least 7 input tokens, for a total of at least 4097 tokens.",
            "4096",
            "7",
            "max_tokens",
        ),
        (
            "You passed 99073 input tokens and requested 32000 output tokens. However, the model's context length is "
            "only 131072 tokens, resulting in a maximum input length of 99072 tokens.",
            "131072",
            "99073",
            "messages",
        ),
        (
            "The decoder prompt (length 12324) is longer than the maximum model length of 8192. Make sure that",
            "8192",
            "12324",
            "messages",
        ),
    ],
)
def test_too_long_a_prompt_is_read_out_of_vllms_words(words: str, window: str, needed: str, param: str) -> None:
    error = translated(400, {"error": {"message": words, "type": "BadRequestError", "code": 400}})
    assert (error.status, error.code, error.param) == (400, ErrorCode.CONTEXT_LENGTH_EXCEEDED, param)
    assert f"at most {window} tokens" in error.message
    assert f"at least {needed}" in error.message


@pytest.mark.parametrize(
    ("status", "expected", "code"),
    [
        (400, 400, ErrorCode.INVALID_REQUEST),
        (413, 400, ErrorCode.INVALID_REQUEST),
        (422, 400, ErrorCode.INVALID_REQUEST),
        (501, 400, ErrorCode.INVALID_REQUEST),
        (429, 429, ErrorCode.OVERLOADED),
        (503, 503, ErrorCode.OVERLOADED),
        (401, 502, ErrorCode.UPSTREAM_ERROR),
        (403, 502, ErrorCode.UPSTREAM_ERROR),
        (404, 502, ErrorCode.UPSTREAM_ERROR),
        (500, 502, ErrorCode.UPSTREAM_ERROR),
        (302, 502, ErrorCode.UPSTREAM_ERROR),
        (204, 502, ErrorCode.UPSTREAM_ERROR),
    ],
)
def test_status_is_kept_where_it_is_the_clients_business(status: int, expected: int, code: ErrorCode) -> None:
    error = translated(status, {"error": {"message": "the engine's words", "type": "t"}})
    assert (error.status, error.code) == (expected, code)
    assert "the engine's words" in error.message


@pytest.mark.parametrize("call", [call for call in Call if call is not Call.CHAT])
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"error": {"code": 404, "type": "not_found_error", "message": "there is nothing at this path"}}),
        (404, {"detail": "Not Found"}),
        (405, {"detail": "Method Not Allowed"}),
    ],
)
def test_a_call_that_an_engine_has_not_got_is_no_failure_of_it(call: Call, status: int, body: Any) -> None:
    error = refused(call, status, body)
    assert (error.status, error.code) == (501, ErrorCode.TASK_NOT_SUPPORTED)
    assert "'m'" in error.message


@pytest.mark.parametrize(
    ("call", "body"),
    [
        (Call.CHAT, {"detail": "Not Found"}),
        (Call.COMPLETION, {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError"}}),
    ],
)
def test_an_engine_without_a_chat_or_of_another_model_has_failed(call: Call, body: Any) -> None:
    assert refused(call, 404, body).code is ErrorCode.UPSTREAM_ERROR


def refused(call: Call, status: int, body: Any) -> ApiError:
    request = Request(call, "m", {}, PassedChat)
    reply = choose_reply(status, b"application/json", None, request, PassedChat("m"), "m", Meter(call))
    assert reply.take(json.dumps(body).encode()) == b""
    ending = reply.end()
    assert isinstance(ending, Refusal)
    return ending.error


def test_a_full_engine_says_when_to_come_again() -> None:
    assert translated(503, {}).retry_after_seconds == 1
    assert translated(429, {}, 9).retry_after_seconds == 9


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": "bare"}, "bare"),
        ({"message": "on top", "object": "error"}, "on top"),
        ({"error": {"message": 3}}, "HTTP status 400"),
        ({"error": [1]}, "HTTP status 400"),
        ([], "HTTP status 400"),
        (b"<html>", "HTTP status 400"),
        (b"", "HTTP status 400"),
        (b"[" * 5000, "HTTP status 400"),
    ],
)
def test_every_shape_of_body_gives_words(body: Any, words: str) -> None:
    assert words in translated(400, body).message


def test_an_engines_message_is_cut() -> None:
    assert len(translated(500, {"error": {"message": "x" * 100_000}}).message) < 2000


def test_the_envelope_is_openais() -> None:
    error = ApiError(503, ErrorCode.MODEL_LOADING, "words", "model", loading={"step": "model"})
    assert json.loads(render_envelope(error)) == {
        "error": {
            "message": "words",
            "type": "server_error",
            "param": "model",
            "code": "model_loading",
            "loading": {"step": "model"},
        }
    }
    kinds = {
        status: json.loads(render_envelope(ApiError(status, ErrorCode.OVERLOADED, "")))["error"]["type"]
        for status in (400, 401, 403, 404, 429, 502)
    }
    assert kinds == {
        400: "invalid_request_error",
        401: "invalid_request_error",
        403: "permission_error",
        404: "invalid_request_error",
        429: "rate_limit_error",
        502: "server_error",
    }
