"""One chat completion put together from the chunks of a stream, for clients that asked for no stream.

Tool calls are told apart by `CallOrder`, reasoning has one name whatever the engine calls it.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from covey_gateway.wire.chunks import ABSENT, CallOrder, ChoiceDelta, Chunk, FunctionDelta, read_plain, sum_usage
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.chunk_reader import ChunkReader
from covey_gateway.wire.openai.errors import render_error_event


@dataclass(slots=True)
class _Call:
    type: str
    name: list[str] = field(default_factory=list[str])
    arguments: list[str] = field(default_factory=list[str])

    def render(self, id_: str) -> dict[str, object]:
        function = {"name": "".join(self.name), "arguments": "".join(self.arguments)}
        return {"id": id_, "type": self.type, "function": function}


@dataclass(slots=True)
class _Choice:
    text: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Pieces of `content`, `reasoning_content`, `refusal`."""
    calls: list[_Call] = field(default_factory=list[_Call])
    order: CallOrder = field(default_factory=CallOrder)
    function: _Call | None = None
    logprobs: dict[str, list[msgspec.Raw]] = field(default_factory=dict[str, list[msgspec.Raw]])
    finish_reason: str | None = None

    def add(self, change: ChoiceDelta) -> None:
        if change.finish_reason is not None:
            self.finish_reason = change.finish_reason
        if change.logprobs is not None:
            for name in ("content", "refusal"):
                self.logprobs.setdefault(name, []).extend(getattr(change.logprobs, name) or ())
        if (delta := change.delta) is None:
            return
        if delta.content:
            self._say("content", delta.content)
        if thought := delta.reasoning_content or delta.reasoning:
            self._say("reasoning_content", thought)
        if delta.refusal:
            self._say("refusal", delta.refusal)
        for call in delta.tool_calls or ():
            ordinal, begins = self.order.place(call.index, call.id)
            if begins:
                self.calls.append(_Call(call.type or "function"))
            self._add_function(self.calls[ordinal], call.function)
        if delta.function_call is not None:
            self.function = self.function or _Call("function")
            self._add_function(self.function, delta.function_call)

    def _say(self, name: str, piece: str) -> None:
        pieces = self.text.get(name)
        if pieces is None:
            pieces = self.text[name] = []
        pieces.append(piece)

    @staticmethod
    def _add_function(call: _Call, change: FunctionDelta | None) -> None:
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
            message["tool_calls"] = [
                call.render(self.order.ids[ordinal] or f"call_{ordinal}") for ordinal, call in enumerate(self.calls)
            ]
        if self.function is not None:
            message["function_call"] = self.function.render("")["function"]
        logprobs = {name: self.logprobs.get(name) or None for name in ("content", "refusal")} if self.logprobs else None
        reason = self.finish_reason or ("tool_calls" if self.calls else "stop")
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}


class ChatAnswer:
    """Takes whole events, gives one completion whose `model` is the Model's name."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._head = Chunk()
        self._choices: dict[int, _Choice] = {}
        self._usages: list[dict[str, Any]] = []
        self._timings = ABSENT
        self._chunks = ChunkReader(model, hint="; ask for a stream")

    def take(self, events: bytes) -> bytes | ApiError:
        """ApiError when the engine wrote one, or wrote something that is no chunk."""
        chunks = self._chunks.read(events)
        if isinstance(chunks, ApiError):
            return chunks
        for chunk in chunks:
            self._add_chunk(chunk)
        return b""

    def take_plain(self, events: bytes) -> bytes | ApiError:
        """The same, at once where they are written as nearly all are."""
        chunks = read_plain(events)
        if chunks is None:
            return self.take(events)
        for chunk in chunks:
            self._add_chunk(chunk)
        return b""

    def _add_chunk(self, chunk: Chunk) -> None:
        if self._head.id is None:
            self._head = chunk
        for change in chunk.choices or ():
            choice = self._choices.get(change.index)
            if choice is None:
                choice = self._choices[change.index] = _Choice()
            choice.add(change)
        if chunk.usage is not None:
            self._usages.append(chunk.usage)
        if chunk.timings != ABSENT:
            self._timings = chunk.timings

    def end(self) -> bytes:
        content: dict[str, object] = {
            "id": self._head.id or "chatcmpl-0",
            "object": "chat.completion",
            "created": self._head.created or 0,
            "model": self._model,
            "choices": [self._choices[index].render(index) for index in sorted(self._choices)],
        }
        if self._usages:
            content["usage"] = sum_usage(self._usages)
        if self._head.system_fingerprint is not None:
            content["system_fingerprint"] = self._head.system_fingerprint
        if self._head.service_tier is not None:
            content["service_tier"] = self._head.service_tier
        if self._timings != ABSENT:
            content["timings"] = self._timings
        return msgspec.json.encode(content)

    def fail(self, error: ApiError) -> bytes:
        return render_error_event(error)
