"""Chat chunks as engines write them, and the order of their tool calls.

Engines differ in how they number tool calls: without an index, all with index 0, an id on the first delta only or on
each. The rule here: a new id at an index that has another is a new call; without an index a delta with an id starts a
call and one without continues the last.
"""

from typing import Any

import msgspec

from covey_gateway.wire.body import is_object

# `Raw | None` is no type to msgspec: it would take null alone.
ABSENT = msgspec.Raw(b"")


class FunctionDelta(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None


class Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same, as newer engines call it."""
    refusal: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: FunctionDelta | None = None


class Logprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None
    refusal: list[msgspec.Raw] | None = None


class ChoiceDelta(msgspec.Struct):
    index: int = 0
    delta: Delta | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    """The stop text that ended it, of engines that say so; vLLM also tells a token's number."""
    logprobs: Logprobs | None = None


class PromptProgress(msgspec.Struct):
    total: int = 0
    cache: int = 0


class Chunk(msgspec.Struct):
    choices: list[ChoiceDelta] | None = None
    id: str | None = None
    created: int | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    usage: dict[str, Any] | None = None
    timings: msgspec.Raw = ABSENT
    prompt_progress: PromptProgress | None = None
    error: Any = None


CHUNK = msgspec.json.Decoder(Chunk)
_CHUNKS = msgspec.json.Decoder(list[Chunk])
_FIRST, _NEXT, _LAST = b"data: ", b"\n\ndata: ", b"data: [DONE]\n\n"


def read_plain(events: bytes) -> list[Chunk] | None:
    """The chunks of whole events, read as one array; None: they aren't written as most are, or one has an error in it.

    No JSON text has a line's end in it that isn't between values, so what is put in its place is no part of a text.
    """
    events = events.removesuffix(_LAST)
    if not events:
        return []
    if not events.startswith(_FIRST) or not events.endswith(b"\n\n"):
        return None
    try:
        chunks = _CHUNKS.decode(b"[%b]" % events[len(_FIRST) : -2].replace(_NEXT, b","))
    except (msgspec.DecodeError, RecursionError):
        return None
    return chunks if all(chunk.error is None for chunk in chunks) else None


class _Told(msgspec.Struct):
    prompt_progress: PromptProgress | None = None


_TOLD = msgspec.json.Decoder(_Told)


def read_prompt_total(event: bytes) -> int | None:
    """The prompt's length, of an event that tells how far it is read."""
    try:
        progress = _TOLD.decode(event.strip().removeprefix(b"data:"))
    except (msgspec.DecodeError, RecursionError):
        return None
    return progress.prompt_progress.total if progress.prompt_progress is not None else None


class CallOrder:
    """Which tool call of one choice a delta belongs to."""

    __slots__ = ("_at", "ids")

    def __init__(self) -> None:
        self.ids: list[str] = []
        """In the order in which calls began."""
        self._at: dict[int, int] = {}

    def place(self, index: int | None, id_: str | None) -> tuple[int, bool]:
        """The call's ordinal, and whether it begins with this delta."""
        if index is None:
            found = len(self.ids) - 1 if self.ids and not id_ else None
        else:
            found = self._at.get(index)
            if found is not None and id_ and self.ids[found] and id_ != self.ids[found]:
                found = None
        begins = found is None
        if found is None:
            found = len(self.ids)
            self.ids.append(id_ or "")
        elif id_ and not self.ids[found]:
            self.ids[found] = id_
        if index is not None:
            self._at[index] = found
        return found, begins


def count(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) else 0


def sum_usage(usages: list[dict[str, Any]]) -> dict[str, Any]:
    """llama-server counts each of `n` choices by itself; their prompt is one."""
    if len(usages) == 1:
        return usages[0]
    completion = sum(count(usage, "completion_tokens") for usage in usages)
    prompt = count(usages[0], "prompt_tokens")
    return usages[0] | {"completion_tokens": completion, "total_tokens": prompt + completion}


def count_within(usage: dict[str, Any], group: str, name: str) -> int:
    """A number one level below: `prompt_tokens_details.cached_tokens`."""
    inner = usage.get(group)
    return count(inner, name) if is_object(inner) else 0
