"""What an engine's answer becomes for the client: a stream, one answer, or a refusal. No I/O.

The request's teller has the words; here is when it speaks. Streams are cut at ends of events. One that ends without the
format's own end, or with the engine's error in it, is never silence: the client gets an error event, ours, in whichever
spelling the engine wrote its own.
"""

from dataclasses import dataclass
from typing import Protocol

from covey_api.reasons import ErrorCode

from covey_gateway.fitting import Fit
from covey_gateway.limits import MAX_ANSWER_BYTES, MAX_EVENT_BYTES, MAX_REFUSAL_BYTES
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.metering import Meter, drop_usage
from covey_gateway.wire.openai.errors import engine_failed, find_event_error, translate_refusal
from covey_gateway.wire.request import STREAMED, Call, Request, Teller, has_extra_usage
from covey_gateway.wire.sse import DONE, EventBuffer, EventTooLong, may_tell_error, split_data, split_events


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer's end is an error."""

    error: ApiError


@dataclass(frozen=True, slots=True)
class Broken:
    """What is told yet, and the error that ends it."""

    told: bytes
    error: ApiError


class Reply(Protocol):
    is_stream: bool
    """Whether bytes go to the client as they come."""

    def take(self, piece: bytes) -> bytes | ApiError | Broken:
        """What the client gets now, perhaps nothing."""
        ...

    def end(self) -> bytes | Refusal:
        """The whole answer where it is no stream, else the rest of it."""
        ...


def choose_reply(
    status: int,
    content_type: bytes,
    retry_after_seconds: int | None,
    request: Request,
    teller: Teller,
    model: str,
    meter: Meter,
    engine: str = "",
    fit: Fit | None = None,
) -> Reply:
    if status != 200:
        meter.has_begun = False
        return _EngineRefusal(status, retry_after_seconds, model, request)
    if request.call not in STREAMED:
        return _Whole(model, teller, meter)
    if not content_type.lower().startswith(b"text/event-stream"):
        return _Failed(_no_stream(content_type, model))
    return _Events(model, teller, meter, request.wants_stream, drops_usage=has_extra_usage(request, engine), fit=fit)


def resume_events(
    model: str,
    teller: Teller,
    meter: Meter,
    is_stream: bool,
    *,
    drops_usage: bool,
    has_begun: bool,
    is_done: bool,
) -> Reply:
    """The reply of a stream that somebody else read so far, and counted, and that `teller` knows."""
    reply = _Events(model, teller, meter, is_stream, drops_usage=drops_usage)
    reply.resume(has_begun=has_begun, is_done=is_done)
    return reply


class NoReply:
    """Before the engine's head."""

    is_stream = False

    def take(self, piece: bytes) -> bytes | ApiError:
        return b""

    def end(self) -> bytes | Refusal:
        return Refusal(ApiError(502, ErrorCode.UPSTREAM_ENDED, "the engine ended without an answer"))


class _Events:
    """`is_stream`: what the teller says goes to the client as it comes; else all of it at the end.

    Where it isn't known yet whether all fits (`fit`), nothing is a stream until the engine has told.
    """

    def __init__(
        self,
        model: str,
        teller: Teller,
        meter: Meter,
        is_stream: bool,
        *,
        drops_usage: bool,
        fit: Fit | None = None,
    ) -> None:
        self.is_stream = is_stream and fit is None
        self._will_stream = is_stream
        self._fit = fit
        self._drops_usage = drops_usage
        self._meter = meter
        self._model = model
        self._teller = teller
        self._events = EventBuffer()
        self._has_begun = False

    def resume(self, *, has_begun: bool, is_done: bool) -> None:
        self._has_begun = has_begun
        if is_done:
            self._events.feed(b"data: [DONE]\n\n")

    def take(self, piece: bytes) -> bytes | ApiError | Broken:
        try:
            events = self._events.feed(piece)
        except EventTooLong:
            return _too_long(self._model)
        if not events:
            return b""
        self._meter.count(events)
        if self._fit is not None:
            fitting = self._fit.look(events)
            if isinstance(fitting, ApiError):
                self._meter.has_begun = False
                return fitting
            self.is_stream = self._will_stream
            if not (events := fitting):
                return b""
        if not self._has_begun:
            self._has_begun = any(data != DONE for data in split_data(events))
            if self._events.is_done and not self._has_begun:
                return engine_failed(self._model, "it ended its answer without a word of one")
        return self._take_each(events) if may_tell_error(events) else self._tell(events)

    def _tell(self, events: bytes) -> bytes | ApiError:
        if self._drops_usage and not (events := drop_usage(events)):
            return b""
        return self._teller.take(events)

    def _take_each(self, events: bytes) -> bytes | ApiError | Broken:
        """One by one: what came before an error is told before it."""
        told = bytearray()
        for event in split_events(events):
            found = find_event_error(event, self._model) or self._tell(event)
            if isinstance(found, ApiError):
                return Broken(bytes(told), found)
            told += found
        return bytes(told)

    def end(self) -> bytes | Refusal:
        if self._events.is_done:
            return self._teller.end()
        return Refusal(_ended_early(self._model))


class _Whole:
    """An answer that is no stream, to a call that has none."""

    is_stream = False

    def __init__(self, model: str, teller: Teller, meter: Meter) -> None:
        self._model = model
        self._teller = teller
        self._meter = meter
        self._body = bytearray()

    def take(self, piece: bytes) -> bytes | ApiError:
        self._body += piece
        if len(self._body) > MAX_ANSWER_BYTES:
            return engine_failed(self._model, f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
        return b""

    def end(self) -> bytes | Refusal:
        self._meter.read(bytes(self._body))
        told = self._teller.take(bytes(self._body))
        return Refusal(told) if isinstance(told, ApiError) else self._teller.end()


class _EngineRefusal:
    is_stream = False

    def __init__(self, status: int, retry_after_seconds: int | None, model: str, request: Request) -> None:
        self._call = request.call
        self._fields = (request.prompt_field, request.limit_field)
        self._status = status
        self._retry_after_seconds = retry_after_seconds
        self._model = model
        self._body = bytearray()

    def take(self, piece: bytes) -> bytes | ApiError:
        self._body += piece[: MAX_REFUSAL_BYTES - len(self._body)]
        return b""

    def end(self) -> bytes | Refusal:
        body = bytes(self._body)
        # All chat. Of other calls an engine that hasn't got one says 404, as it may of a model that it doesn't know.
        if self._status in (404, 405) and self._call is not Call.CHAT and b"model" not in body.lower():
            return Refusal(_no_call(self._call, self._model))
        seconds = self._retry_after_seconds
        return Refusal(translate_refusal(self._status, body, seconds, self._model, *self._fields))


class _Failed:
    """What its head alone tells."""

    is_stream = False

    def __init__(self, error: ApiError) -> None:
        self._error = error

    def take(self, piece: bytes) -> bytes | ApiError:
        return self._error

    def end(self) -> bytes | Refusal:
        return Refusal(self._error)


def _no_stream(content_type: bytes, model: str) -> ApiError:
    shown = content_type.decode("latin-1")[:100]
    return engine_failed(model, f"it was asked for 'text/event-stream' and answered with '{shown}'")


_INSTEAD = {
    Call.COUNT: "doesn't count tokens; `usage` of each answer has them",
    Call.COMPLETION: "takes no prompt without a template; send `messages`, to /v1/chat/completions for instance",
    Call.EMBEDDING: "makes no embeddings",
    Call.RERANK: "ranks no documents",
}


def _no_call(call: Call, model: str) -> ApiError:
    return ApiError(501, ErrorCode.TASK_NOT_SUPPORTED, f"the engine of model '{model}' {_INSTEAD[call]}")


def _ended_early(model: str) -> ApiError:
    message = f"the engine of model '{model}' ended the answer early: its stream has no end mark"
    return ApiError(502, ErrorCode.UPSTREAM_ENDED, message)


def _too_long(model: str) -> ApiError:
    return engine_failed(model, f"one event of its stream is longer than {MAX_EVENT_BYTES} bytes")
