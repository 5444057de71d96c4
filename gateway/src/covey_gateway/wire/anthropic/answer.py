"""An answer as an Anthropic message: its events, or the whole of it.

    message_start ─▶ (block_start ─▶ deltas ─▶ block_stop)* ─▶ message_delta ─▶ message_stop

Blocks follow one another: a piece that belongs to another block than the open one closes that. Input tokens come first
in `message_start`: counted where the engine says so before it computes, else a bound, the prompt's bytes and what a
template may add to them; `message_delta` has the true number in any case.
"""

from typing import Any

import msgspec

from covey_gateway.limits import MAX_ANSWER_BYTES
from covey_gateway.wire.anthropic.errors import render_error_event
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.errors import engine_failed
from covey_gateway.wire.steps import (
    CallBegun,
    CallGrew,
    Finished,
    Gathered,
    Said,
    Step,
    StepReader,
    Thought,
    Usage,
    parse_arguments,
)
from covey_gateway.wire.turns import Turns

# Nothing here has these; Anthropic's document requires them all the same, and strict clients do.
_NEVER: dict[str, Any] = {"stop_details": None, "container": None}
_NEVER_COUNTED: dict[str, Any] = {"cache_creation": None, "inference_geo": None, "service_tier": None}

PING = b'event: ping\ndata: {"type":"ping"}\n\n'

_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


def _event(name: str, **content: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"type": name} | content))


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": None}


def _tool_use(id_: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": arguments, "caller": {"type": "direct"}}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        # Engines that don't count their thoughts tell nothing, not nought.
        "output_tokens_details": {"thinking_tokens": usage.reasoning} if usage.reasoning else None,
        "server_tool_use": None,
    }


def _message(id_: str, model: str, content: list[Any], ending: dict[str, str | None], usage: Usage) -> dict[str, Any]:
    return {
        "id": f"msg_{id_}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **ending,
        "usage": _usage(usage) | _NEVER_COUNTED,
        **_NEVER,
    }


_NO_END: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}


def _end(finish: str, stop: str, has_calls: bool) -> dict[str, str | None]:
    """`stop`: the sequence that ended it, empty where the engine doesn't tell."""
    if stop and finish == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    reason = "tool_use" if has_calls and finish == "stop" else _REASONS.get(finish, "end_turn")
    return {"stop_reason": reason, "stop_sequence": None}


class StreamedMessage:
    """`bound_tokens`: more than the prompt can have."""

    def __init__(self, model: str, bound_tokens: int) -> None:
        self._model = model
        self._bound = bound_tokens
        self._reader = StepReader(model)
        self._turns = Turns()
        self._has_begun = False
        self._block = -1
        self._open = ""
        """Kind of the open block; empty: none is."""
        self._call = -1
        self._finish = self._stop = ""

    def take(self, events: bytes) -> bytes | ApiError:
        steps = self._reader.read(events)
        if isinstance(steps, ApiError):
            return steps
        pieces = [self._begin()] if not self._has_begun and self._reader.id else []
        for step in self._turns.order(steps):
            told = self._tell(step)
            if isinstance(told, ApiError):
                return told
            pieces.append(told)
        return b"".join(pieces)

    def end(self) -> bytes:
        begin = b"" if self._has_begun else self._begin()
        rest = [told for step in self._turns.end() if isinstance(told := self._tell(step), bytes)]
        delta = {**_end(self._finish, self._stop, self._call >= 0), **_NEVER}
        return b"".join(
            (
                begin,
                *rest,
                self._close(),
                _event("message_delta", delta=delta, usage=_usage(self._reader.usage)),
                _event("message_stop"),
            )
        )

    def fail(self, error: ApiError) -> bytes:
        return render_error_event(error)

    def _begin(self) -> bytes:
        self._has_begun = True
        usage = self._reader.usage if self._reader.usage.prompt else Usage(self._bound)
        message = _message(self._reader.id, self._model, [], _NO_END, Usage(usage.prompt, 0, usage.cached))
        return _event("message_start", message=message)

    def _tell(self, step: Step) -> bytes | ApiError:
        match step:
            case Thought(text):
                return self._switch("thinking", {"type": "thinking", "thinking": "", "signature": ""}) + self._delta(
                    {"type": "thinking_delta", "thinking": text}
                )
            case Said(text):
                return self._switch("text", _text("")) + self._delta({"type": "text_delta", "text": text})
            case CallBegun(ordinal, id_, name):
                self._call = ordinal
                return self._start("tool_use", _tool_use(id_, name, {}))
            case CallGrew(ordinal, arguments):
                if ordinal != self._call or self._open != "tool_use":
                    return engine_failed(self._model, "it went on with a tool call that was whole")
                return self._delta({"type": "input_json_delta", "partial_json": arguments})
            case Finished(reason, stop):
                self._finish, self._stop = reason, stop
                return b""

    def _switch(self, kind: str, block: dict[str, Any]) -> bytes:
        return b"" if self._open == kind else self._start(kind, block)

    def _start(self, kind: str, block: dict[str, Any]) -> bytes:
        closing = self._close()
        self._block += 1
        self._open = kind
        return closing + _event("content_block_start", index=self._block, content_block=block)

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open = ""
        return _event("content_block_stop", index=self._block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._block, delta=delta)


class WholeMessage:
    def __init__(self, model: str) -> None:
        self._model = model
        self._reader = StepReader(model)
        self._gathered = Gathered()

    def take(self, events: bytes) -> bytes | ApiError:
        steps = self._reader.read(events)
        if isinstance(steps, ApiError):
            return steps
        self._gathered.add(steps)
        return b""

    def end(self) -> bytes:
        gathered = self._gathered
        gathered.join()
        content: list[dict[str, Any]] = []
        if gathered.thought:
            content.append({"type": "thinking", "thinking": gathered.thought, "signature": ""})
        if gathered.said:
            content.append(_text(gathered.said))
        content += [_tool_use(call.id, call.name, parse_arguments(call.arguments)) for call in gathered.calls]
        ending = _end(gathered.finish, gathered.stop, bool(gathered.calls))
        return msgspec.json.encode(_message(self._reader.id, self._model, content, ending, self._reader.usage))

    def fail(self, error: ApiError) -> bytes:
        return render_error_event(error)


class _Count(msgspec.Struct):
    input_tokens: int


class WholeCount:
    """The answer to `count_tokens`."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._tokens = 0

    def take(self, events: bytes) -> bytes | ApiError:
        try:
            self._tokens = msgspec.json.decode(events[:MAX_ANSWER_BYTES], type=_Count).input_tokens
        except (msgspec.DecodeError, RecursionError):
            return engine_failed(self._model, "it wrote no count of tokens")
        return b""

    def end(self) -> bytes:
        return msgspec.json.encode({"input_tokens": self._tokens})

    def fail(self, error: ApiError) -> bytes:
        return render_error_event(error)
