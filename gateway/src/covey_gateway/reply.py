"""What an engine's answer becomes for the client: a stream passed on, one completion, or a refusal. No I/O.

A stream's bytes pass untouched, cut at ends of events. One that ends without the format's own end, or with the engine's
error in it, is never silence: the client gets an error event, unless the engine's own was just that.
"""

from dataclasses import dataclass
from typing import Protocol

from covey_api.reasons import ErrorCode

from covey_gateway.limits import MAX_EVENT_BYTES, MAX_REFUSAL_BYTES
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.answer import ChatAnswer
from covey_gateway.wire.openai.errors import engine_failed, translate_event_error, translate_refusal
from covey_gateway.wire.sse import EventBuffer, EventTooLong, split_data


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer's end is an error."""

    error: ApiError


class Reply(Protocol):
    is_stream: bool
    """Whether bytes go to the client as they come."""

    def take(self, piece: bytes) -> bytes | ApiError:
        """What the client gets now, perhaps nothing."""
        ...

    def end(self) -> bytes | Refusal:
        """The whole answer where it is no stream; a stream has got its bytes already."""
        ...


def choose_reply(
    status: int, content_type: bytes, retry_after_seconds: int | None, model: str, wants_stream: bool
) -> Reply:
    if status != 200:
        return _EngineRefusal(status, retry_after_seconds, model)
    if not content_type.lower().startswith(b"text/event-stream"):
        return _NoStream(content_type, model)
    return _Passed(model) if wants_stream else _Assembled(model)


class NoReply:
    """Before the engine's head."""

    is_stream = False

    def take(self, piece: bytes) -> bytes | ApiError:
        return b""

    def end(self) -> bytes | Refusal:
        return Refusal(ApiError(502, ErrorCode.UPSTREAM_ENDED, "the engine ended without an answer"))


class _Passed:
    is_stream = True

    def __init__(self, model: str) -> None:
        self._model = model
        self._events = EventBuffer()

    def take(self, piece: bytes) -> bytes | ApiError:
        try:
            return self._events.feed(piece)
        except EventTooLong:
            return _too_long(self._model)

    def end(self) -> bytes | Refusal:
        if self._events.is_done:
            return b""
        errors = (translate_event_error(data, self._model) for data in split_data(self._events.last))
        if any(error is not None for error in errors):
            return b""
        return Refusal(_ended_early(self._model))


class _Assembled:
    is_stream = False

    def __init__(self, model: str) -> None:
        self._model = model
        self._events = EventBuffer()
        self._answer = ChatAnswer(model)

    def take(self, piece: bytes) -> bytes | ApiError:
        try:
            events = self._events.feed(piece)
        except EventTooLong:
            return _too_long(self._model)
        return self._answer.add(events) or b""

    def end(self) -> bytes | Refusal:
        return self._answer.render() if self._events.is_done else Refusal(_ended_early(self._model))


class _EngineRefusal:
    is_stream = False

    def __init__(self, status: int, retry_after_seconds: int | None, model: str) -> None:
        self._status = status
        self._retry_after_seconds = retry_after_seconds
        self._model = model
        self._body = bytearray()

    def take(self, piece: bytes) -> bytes | ApiError:
        self._body += piece[: MAX_REFUSAL_BYTES - len(self._body)]
        return b""

    def end(self) -> bytes | Refusal:
        body = bytes(self._body)
        return Refusal(translate_refusal(self._status, body, self._retry_after_seconds, self._model))


class _NoStream:
    is_stream = False

    def __init__(self, content_type: bytes, model: str) -> None:
        shown = content_type.decode("latin-1")[:100]
        self._error = engine_failed(model, f"it was asked for 'text/event-stream' and answered with '{shown}'")

    def take(self, piece: bytes) -> bytes | ApiError:
        return self._error

    def end(self) -> bytes | Refusal:
        return Refusal(self._error)


def _ended_early(model: str) -> ApiError:
    message = f"the engine of model '{model}' ended the answer early: its stream has no end mark"
    return ApiError(502, ErrorCode.UPSTREAM_ENDED, message)


def _too_long(model: str) -> ApiError:
    return engine_failed(model, f"one event of its stream is longer than {MAX_EVENT_BYTES} bytes")
