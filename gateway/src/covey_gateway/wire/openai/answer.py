"""One chat completion put together from the chunks of a stream, for clients that asked for no stream.

Engines differ in how they number tool calls: without an index, all with index 0, an id on the first delta only. The
rule here: a new id at an index that has another is a new call; without an index a delta with an id starts a call and
one without continues the last.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from covey_gateway.limits import MAX_ANSWER_BYTES
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.errors import engine_failed, translate_event_error
from covey_gateway.wire.sse import DONE, split_data

# `Raw | None` is no type to msgspec: it would take null alone.
_ABSENT = msgspec.Raw(b"")


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Logprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None
    refusal: list[msgspec.Raw] | None = None


class _ChoiceDelta(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Chunk(msgspec.Struct):
    choices: list[_ChoiceDelta] | None = None
    id: str | None = None
    created: int | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    usage: dict[str, Any] | None = None
    timings: msgspec.Raw = _ABSENT
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


@dataclass(slots=True)
class _Call:
    id: str
    type: str
    name: list[str] = field(default_factory=list[str])
    arguments: list[str] = field(default_factory=list[str])

    def render(self, ordinal: int) -> dict[str, object]:
        function = {"name": "".join(self.name), "arguments": "".join(self.arguments)}
        return {"id": self.id or f"call_{ordinal}", "type": self.type, "function": function}


@dataclass(slots=True)
class _Choice:
    text: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Pieces of `content`, `reasoning_content`, `refusal`."""
    calls: list[_Call] = field(default_factory=list[_Call])
    call_at: dict[int, _Call] = field(default_factory=dict[int, _Call])
    function: _Call | None = None
    logprobs: dict[str, list[msgspec.Raw]] = field(default_factory=dict[str, list[msgspec.Raw]])
    finish_reason: str | None = None

    def add(self, change: _ChoiceDelta) -> None:
        if change.finish_reason is not None:
            self.finish_reason = change.finish_reason
        if change.logprobs is not None:
            for name in ("content", "refusal"):
                self.logprobs.setdefault(name, []).extend(getattr(change.logprobs, name) or ())
        if (delta := change.delta) is None:
            return
        for name in ("content", "reasoning_content", "refusal"):
            piece = getattr(delta, name)
            if piece:
                self.text.setdefault(name, []).append(piece)
        for call in delta.tool_calls or ():
            self._add_function(self._find_call(call), call.function)
        if delta.function_call is not None:
            self.function = self.function or _Call("", "function")
            self._add_function(self.function, delta.function_call)

    def _find_call(self, call: _ToolCall) -> _Call:
        if call.index is None:
            found = self.calls[-1] if self.calls and not call.id else None
        else:
            found = self.call_at.get(call.index)
            if found is not None and call.id and found.id and call.id != found.id:
                found = None
        if found is None:
            found = _Call(call.id or "", call.type or "function")
            self.calls.append(found)
        found.id = found.id or call.id or ""
        if call.index is not None:
            self.call_at[call.index] = found
        return found

    @staticmethod
    def _add_function(call: _Call, change: _Function | None) -> None:
        if change is not None:
            call.name.append(change.name or "")
            call.arguments.append(change.arguments or "")

    def render(self, index: int) -> dict[str, object]:
        text = {name: "".join(pieces) for name, pieces in self.text.items()}
        has_calls = bool(self.calls) or self.function is not None
        message: dict[str, object] = {
            "role": "assistant",
            "content": text.get("content", None if has_calls or "refusal" in text else ""),
            "refusal": text.get("refusal"),
        }
        if "reasoning_content" in text:
            message["reasoning_content"] = text["reasoning_content"]
        if self.calls:
            message["tool_calls"] = [call.render(ordinal) for ordinal, call in enumerate(self.calls)]
        if self.function is not None:
            message["function_call"] = self.function.render(0)["function"]
        logprobs = {name: self.logprobs.get(name) or None for name in ("content", "refusal")} if self.logprobs else None
        reason = self.finish_reason or ("tool_calls" if self.calls else "stop")
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}


class ChatAnswer:
    """Takes whole events, gives one completion whose `model` is the Model's name."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._head = _Chunk()
        self._choices: dict[int, _Choice] = {}
        self._usages: list[dict[str, Any]] = []
        self._timings = _ABSENT
        self._total_bytes = 0

    def add(self, events: bytes) -> ApiError | None:
        """ApiError when the engine wrote one, or wrote something that is no chunk."""
        self._total_bytes += len(events)
        if self._total_bytes > MAX_ANSWER_BYTES:
            return engine_failed(self._model, f"its answer is longer than {MAX_ANSWER_BYTES} bytes; ask for a stream")
        for data in split_data(events):
            if data == DONE:
                continue
            try:
                chunk = _CHUNK.decode(data)
            except (msgspec.DecodeError, RecursionError):
                return translate_event_error(data, self._model) or engine_failed(self._model, "it wrote no chat chunk")
            if chunk.error is not None:
                return translate_event_error(data, self._model)
            self._add_chunk(chunk)
        return None

    def _add_chunk(self, chunk: _Chunk) -> None:
        if self._head.id is None:
            self._head = chunk
        for change in chunk.choices or ():
            self._choices.setdefault(change.index, _Choice()).add(change)
        if chunk.usage is not None:
            self._usages.append(chunk.usage)
        if chunk.timings != _ABSENT:
            self._timings = chunk.timings

    def render(self) -> bytes:
        content: dict[str, object] = {
            "id": self._head.id or "chatcmpl-0",
            "object": "chat.completion",
            "created": self._head.created or 0,
            "model": self._model,
            "choices": [self._choices[index].render(index) for index in sorted(self._choices)],
        }
        if self._usages:
            content["usage"] = self._sum_usage()
        if self._head.system_fingerprint is not None:
            content["system_fingerprint"] = self._head.system_fingerprint
        if self._head.service_tier is not None:
            content["service_tier"] = self._head.service_tier
        if self._timings != _ABSENT:
            content["timings"] = self._timings
        return msgspec.json.encode(content)

    def _sum_usage(self) -> dict[str, Any]:
        """llama-server counts each of `n` choices by itself; their prompt is one."""
        if len(self._usages) == 1:
            return self._usages[0]
        completion = sum(_count(usage, "completion_tokens") for usage in self._usages)
        prompt = _count(self._usages[0], "prompt_tokens")
        return self._usages[0] | {"completion_tokens": completion, "total_tokens": prompt + completion}


def _count(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) else 0
