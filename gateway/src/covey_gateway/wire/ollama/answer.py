"""An engine's answer in Ollama's words: one line of JSON a piece, or the last line with everything in it.

A tool call is one piece here, its arguments parsed: it is told when all of them are there, for engines may write
several by turns. Durations are the engine's;
what it doesn't measure is zero.
"""

from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from covey_gateway.limits import MAX_ANSWER_BYTES
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.ollama.errors import render_error_line
from covey_gateway.wire.openai.embeddings import check_dimensions
from covey_gateway.wire.openai.errors import engine_failed
from covey_gateway.wire.openai.texts import read_texts
from covey_gateway.wire.steps import (
    Finished,
    Gathered,
    GatheredCall,
    Said,
    Step,
    StepReader,
    Thought,
    parse_arguments,
)

_REASONS = {"length": "length"}


def render_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class ChatLines:
    """`is_stream`: a line as soon as there is something to say; else one at the end."""

    def __init__(self, model: str, is_stream: bool) -> None:
        self._model = model
        self._is_stream = is_stream
        self._reader = StepReader(model)
        self._gathered = Gathered()
        self._has_told_calls = False

    def take(self, events: bytes) -> bytes | ApiError:
        steps = self._reader.read(events)
        if isinstance(steps, ApiError):
            return steps
        self._gathered.add(steps)
        if not self._is_stream:
            return b""
        return b"".join(self._tell(step) for step in steps)

    def end(self) -> bytes:
        if self._is_stream:
            return self._tell_calls() + self._line(self._piece("", "", []), self._closing())
        gathered = self._gathered
        gathered.join()
        return self._line(self._piece(gathered.said, gathered.thought, gathered.calls), self._closing())

    def fail(self, error: ApiError) -> bytes:
        return render_error_line(error)

    def _tell(self, step: Step) -> bytes:
        match step:
            case Thought(text):
                return self._line(self._piece("", text, []))
            case Said(text):
                return self._line(self._piece(text, "", []))
            case Finished():
                return self._tell_calls()
            case _:
                return b""

    def _tell_calls(self) -> bytes:
        if self._has_told_calls or not self._gathered.calls:
            return b""
        self._has_told_calls = True
        return self._line(self._piece("", "", self._gathered.calls))

    def _piece(self, said: str, thought: str, calls: list[GatheredCall]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if thought:
            message["thinking"] = thought
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "function": {"name": call.name, "arguments": parse_arguments(call.arguments)}}
                for call in calls
            ]
        return {"message": message}

    def _line(self, piece: dict[str, Any], closing: dict[str, Any] | None = None) -> bytes:
        content = {"model": self._model, "created_at": render_time(self._reader.created), **piece}
        content |= {"done": False} if closing is None else closing
        return msgspec.json.encode(content) + b"\n"

    def _closing(self) -> dict[str, Any]:
        usage, durations = self._reader.usage, self._reader.durations
        return {
            "done": True,
            "done_reason": _REASONS.get(self._gathered.finish, "stop"),
            "total_duration": durations.prompt + durations.completion,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": durations.prompt,
            "eval_count": usage.completion,
            "eval_duration": durations.completion,
        }


class GenerateLines(ChatLines):
    def _piece(self, said: str, thought: str, calls: list[GatheredCall]) -> dict[str, Any]:
        return {"response": said} | ({"thinking": thought} if thought else {})


class TextLines(GenerateLines):
    """Of a prompt without a template: the engine writes text chunks."""

    def take(self, events: bytes) -> bytes | ApiError:
        chunks = read_texts(events, self._model)
        return chunks if isinstance(chunks, ApiError) else super().take(b"".join(map(_as_chat, chunks)))


def _as_chat(chunk: dict[str, Any]) -> bytes:
    """A text chunk as a chat chunk."""
    choices: list[Any] = [
        {
            "index": choice.get("index", 0),
            "delta": {"content": choice.get("text")},
            "finish_reason": choice.get("finish_reason"),
        }
        for choice in cast("list[dict[str, Any]]", chunk.get("choices") or [])
    ]
    return b"data: %b\n\n" % msgspec.json.encode(chunk | {"choices": choices})


class _Embedding(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]
    usage: dict[str, Any] = {}


class EmbedAnswer:
    def __init__(self, model: str, *, is_list: bool, dimensions: int | None = None) -> None:
        self._dimensions = dimensions
        self._model = model
        self._is_list = is_list
        self._found = _Embeddings([])

    def take(self, events: bytes) -> bytes | ApiError:
        try:
            self._found = msgspec.json.decode(events[:MAX_ANSWER_BYTES], type=_Embeddings)
        except (msgspec.DecodeError, RecursionError):
            return engine_failed(self._model, "it wrote no embeddings")
        return check_dimensions([one.embedding for one in self._found.data], self._dimensions, self._model) or b""

    def end(self) -> bytes:
        vectors = [one.embedding for one in sorted(self._found.data, key=lambda one: one.index)]
        if not self._is_list:
            return msgspec.json.encode({"embedding": vectors[0] if vectors else []})
        content = {"model": self._model, "embeddings": vectors, "total_duration": 0, "load_duration": 0}
        return msgspec.json.encode(content | {"prompt_eval_count": self._found.usage.get("prompt_tokens", 0)})

    def fail(self, error: ApiError) -> bytes:
        return render_error_line(error)
