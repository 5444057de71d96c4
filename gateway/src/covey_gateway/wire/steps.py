"""An engine's chat stream as the steps of an answer, for formats that are told otherwise than in chat chunks.

| step | told when |
|---|---|
| `Thought`, `Said` | a piece of reasoning, of text |
| `CallBegun`, `CallGrew` | a tool call's id and name; a piece of its arguments |
| `Finished` | the engine's finish reason |

One answer has one choice here: no format but OpenAI's own has several.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from covey_gateway.wire.body import is_object
from covey_gateway.wire.chunks import CallOrder, Chunk, ToolCallDelta, count, count_within
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.chunk_reader import ChunkReader


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


@dataclass(frozen=True, slots=True)
class Said:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    ordinal: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallGrew:
    ordinal: int
    arguments: str


@dataclass(frozen=True, slots=True)
class Finished:
    reason: str
    stop: str = ""
    """The stop text that was met, where the engine tells it."""


Step = Thought | Said | CallBegun | CallGrew | Finished


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens; what is cached is among the prompt's."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Durations:
    """As the engine measured them, in nanoseconds."""

    prompt: int = 0
    completion: int = 0


class StepReader:
    """Takes whole events of one answer."""

    def __init__(self, model: str) -> None:
        self.id = ""
        """What the engine calls the answer, without its prefix; `0` if it doesn't. Empty: it has told nothing."""
        self.created = 0
        """Seconds since the epoch."""
        self.usage = Usage()
        self.durations = Durations()
        self._chunks = ChunkReader(model)
        self._order = CallOrder()

    def read(self, events: bytes) -> list[Step] | ApiError:
        """ApiError when the engine wrote one, or wrote something that is no chunk."""
        chunks = self._chunks.read(events)
        if isinstance(chunks, ApiError):
            return chunks
        steps: list[Step] = []
        for chunk in chunks:
            self._note(chunk)
            steps += self._steps(chunk)
        return steps

    def _note(self, chunk: Chunk) -> None:
        self.id = self.id or (chunk.id or "").removeprefix("chatcmpl-") or "0"
        self.created = self.created or chunk.created or 0
        if chunk.prompt_progress is not None:
            self.usage = Usage(chunk.prompt_progress.total, 0, chunk.prompt_progress.cache)
        if (usage := chunk.usage) is not None:
            self.usage = Usage(
                count(usage, "prompt_tokens"),
                count(usage, "completion_tokens"),
                count_within(usage, "prompt_tokens_details", "cached_tokens"),
                count_within(usage, "completion_tokens_details", "reasoning_tokens"),
            )
        if memoryview(chunk.timings).nbytes:
            self.durations = _read_durations(chunk.timings)

    def _steps(self, chunk: Chunk) -> Iterator[Step]:
        for choice in chunk.choices or ():
            if choice.index:
                continue
            if (delta := choice.delta) is not None:
                if thought := delta.reasoning_content or delta.reasoning:
                    yield Thought(thought)
                if said := delta.content or delta.refusal:
                    yield Said(said)
                for call in delta.tool_calls or ():
                    yield from self._call_steps(call)
            if choice.finish_reason is not None:
                stop = choice.stop_reason
                yield Finished(choice.finish_reason, stop if isinstance(stop, str) else "")

    def _call_steps(self, call: ToolCallDelta) -> Iterator[Step]:
        ordinal, begins = self._order.place(call.index, call.id)
        if begins:
            name = (call.function.name if call.function else None) or ""
            yield CallBegun(ordinal, call.id or f"call_{self.id}_{ordinal}", name)
        if call.function is not None and call.function.arguments:
            yield CallGrew(ordinal, call.function.arguments)


class _Timings(msgspec.Struct):
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0


def _read_durations(raw: msgspec.Raw) -> Durations:
    try:
        timings = msgspec.json.decode(raw, type=_Timings)
    except msgspec.DecodeError:
        return Durations()
    return Durations(int(timings.prompt_ms * 1_000_000), int(timings.predicted_ms * 1_000_000))


@dataclass(slots=True)
class GatheredCall:
    id: str
    name: str
    arguments: str = ""


class Gathered:
    """A whole answer from its steps."""

    def __init__(self) -> None:
        self.thought = ""
        self.said = ""
        self.calls: list[GatheredCall] = []
        self.finish = self.stop = ""
        self._pieces: tuple[list[str], list[str]] = ([], [])

    def add(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case Thought(text):
                    self._pieces[0].append(text)
                case Said(text):
                    self._pieces[1].append(text)
                case CallBegun(_, id_, name):
                    self.calls.append(GatheredCall(id_, name))
                case CallGrew(ordinal, arguments):
                    self.calls[ordinal].arguments += arguments
                case Finished(reason, stop):
                    self.finish, self.stop = reason, stop

    def join(self) -> None:
        """Put the pieces together."""
        self.thought, self.said = ("".join(pieces) for pieces in self._pieces)


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments of a tool call as an object; what isn't one (cut off at the limit, say) as the text it is."""
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {"_text": text}
    return value if is_object(value) else {"_text": text}
