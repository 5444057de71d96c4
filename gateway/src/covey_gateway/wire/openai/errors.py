"""OpenAI's error envelope, and what an engine's own refusal means in it."""

import re
from typing import Any

import msgspec
from covey_api.reasons import ErrorCode

from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.sse import ERROR_FIELD

# An engine's message is passed on, but not a page of it.
_MAX_MESSAGE = 1024

_TYPES = {403: "permission_error", 429: "rate_limit_error"}


def render_envelope(error: ApiError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`, with `loading` where a model is on its way."""
    kind = "server_error" if error.status >= 500 else _TYPES.get(error.status, "invalid_request_error")
    content: dict[str, object] = {
        "message": error.message,
        "type": kind,
        "param": error.param,
        "code": error.code.value,
    }
    if error.loading is not None:
        content["loading"] = error.loading
    return msgspec.json.encode({"error": content})


def render_error_event(error: ApiError) -> bytes:
    """The same inside a stream that has begun."""
    return b"data: %b\n\n" % render_envelope(error)


# What llama-server answers 500 to, though the request is to blame: whatever its parsing threw.
_REQUESTS_FAULT = re.compile(
    r"\[json\.exception|^Failed to parse (messages|tools|grammar)|input is not supported|^Unknown reasoning format"
    r"|^Unsupported |^Invalid |^Cannot |^Only one|[Jj]inja|template"
)


# vLLM has words alone, and others in each version. It tells no more of a long prompt than that it is longer.
_WINDOW = re.compile(r"(?:context length is(?: only)?|maximum model length of) (\d{1,9})\b")
_NEEDED = re.compile(r"\b(\d{1,9}) (?:input tokens|in the (?:messages|prompt))|\(length (\d{1,9})\)")
_ASKED = re.compile(r"\b(\d{1,9}) (?:output tokens|in the completion)")


# llama-server's 500 for a text that an encoder must read in one piece.
_TOO_LARGE = re.compile(r"^input \((\d{1,9}) tokens\) is too large to process\..*current batch size: (\d{1,9})\)")


class _Detail(msgspec.Struct):
    message: Any = None
    type: Any = None
    n_prompt_tokens: Any = None
    n_ctx: Any = None
    n_max_tokens: Any = None
    """Of our own engines: what was asked for beside the prompt, where only both together are too much."""


class _Refusal(msgspec.Struct):
    object: Any = None
    error: _Detail | str | int | float | bool | list[Any] | None = None
    message: Any = None


def translate_refusal(
    status: int,
    body: bytes,
    retry_after_seconds: int | None,
    model: str,
    prompt_field: str = "messages",
    limit_field: str = "max_tokens",
) -> ApiError:
    """What an engine's answer other than 200 means for the client.

    1. Too long a prompt: 400 with both numbers.
    2. The client's request is wrong (400, 413, 415, 422, 501, or a 500 whose words say so): 400 with the words.
    3. The engine has no room or still loads (429, 503): the same status, with Retry-After.
    4. Anything else is the gateway's or the engine's fault (401, 404, 5xx): 502.
    """
    detail = _parse_detail(body)
    words = detail.message if isinstance(detail.message, str) and detail.message else f"HTTP status {status}"
    words = words[:_MAX_MESSAGE]
    if detail.type == "exceed_context_size_error":
        counts = (detail.n_ctx, detail.n_prompt_tokens, detail.n_max_tokens)
        if all(isinstance(each, int) for each in counts):
            return refuse_both(model, *counts, limit_field)
        return _context_exceeded(detail, words, model, prompt_field)
    if status == 400 and (window := _WINDOW.search(words)) and (needed := _NEEDED.search(words)):
        found, wished = int(needed[1] or needed[2]), int(asked[1]) if (asked := _ASKED.search(words)) else 0
        return _both_exceeded(int(window[1]), found, wished, model, prompt_field if found >= wished else limit_field)
    if (large := _TOO_LARGE.search(words)) is not None:
        return _both_exceeded(int(large[2]), int(large[1]), 0, model, prompt_field)
    if status in (400, 413, 415, 422, 501) or (status == 500 and _REQUESTS_FAULT.search(words)):
        return invalid_request(words)
    if status in (429, 503):
        wait_seconds = 1 if retry_after_seconds is None else retry_after_seconds
        message = f"the engine of model '{model}' takes no request now: {words}"
        return ApiError(status, ErrorCode.OVERLOADED, message, retry_after_seconds=wait_seconds, quotes_engine=True)
    return engine_failed(model, f"it answered with {words}", quotes_engine=True)


def engine_failed(model: str, what: str, *, quotes_engine: bool = False) -> ApiError:
    message = f"the engine of model '{model}' failed: {what}"
    return ApiError(502, ErrorCode.UPSTREAM_ERROR, message, quotes_engine=quotes_engine)


def translate_event_error(data: bytes, model: str) -> ApiError | None:
    """The error that an engine wrote as an event of its stream; None if the event is none."""
    try:
        refusal = msgspec.json.decode(data, type=_Refusal)
    except (msgspec.DecodeError, RecursionError):
        return None
    if refusal.error is None and refusal.object != "error":
        return None
    return _event_failed(data, model)


def find_event_error(event: bytes, model: str) -> ApiError | None:
    """The same of a whole event, also where the error is a field of its own."""
    for line in event.splitlines():
        if line.startswith(ERROR_FIELD):
            return _event_failed(line.removeprefix(ERROR_FIELD), model)
        if line.startswith(b"data:") and (error := translate_event_error(line[5:], model)) is not None:
            return error
    return None


def _event_failed(data: bytes, model: str) -> ApiError:
    words = str(_parse_detail(data).message or "an error without words")[:_MAX_MESSAGE]
    return engine_failed(model, words, quotes_engine=True)


def _parse_detail(body: bytes) -> _Detail:
    """Engines nest the error, or put a bare string, or put the message on top."""
    try:
        refusal = msgspec.json.decode(body, type=_Refusal)
        if isinstance(refusal.error, _Detail):
            return refusal.error
    except (msgspec.DecodeError, RecursionError):
        return _Detail()
    return _Detail(message=refusal.error if isinstance(refusal.error, str) else refusal.message)


def _both_exceeded(window: int, needed: int, wished: int, model: str, param: str) -> ApiError:
    """`param`: the larger part, which is the one to make smaller."""
    words = (
        f"model '{model}' takes at most {window} tokens here, prompt and answer; the request's prompt has at least "
        f"{needed}" + (f", and it asks for {wished}" if wished else "")
    )
    return ApiError(400, ErrorCode.CONTEXT_LENGTH_EXCEEDED, words, param)


def refuse_both(model: str, window: int, prompt: int, wished: int, limit_field: str) -> ApiError:
    """A prompt that fits, as the engine counted it, and more of an answer than fits beside it. Its first words are
    Anthropic's, by which agents ask again for less."""
    words = (
        f"input length and `{limit_field}` exceed context limit: {prompt} + {wished} > {window}, decrease input length "
        f"or `{limit_field}` and try again (model '{model}')"
    )
    return ApiError(400, ErrorCode.CONTEXT_LENGTH_EXCEEDED, words, limit_field)


def _context_exceeded(detail: _Detail, words: str, model: str, prompt_field: str) -> ApiError:
    needed, window = detail.n_prompt_tokens, detail.n_ctx
    if isinstance(needed, int) and isinstance(window, int):
        words = (
            f"model '{model}' takes at most {window} tokens here; the request's messages have {needed}. "
            "Shorten them, or give the Placement a larger `spec.context.tokens`."
        )
    return ApiError(400, ErrorCode.CONTEXT_LENGTH_EXCEEDED, words, prompt_field)
