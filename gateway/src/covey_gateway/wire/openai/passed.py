"""A stream of chat chunks passed on as it came: bytes untouched, but for what engines do wrongly, or each in its way.

mlx-lm calls its chunk of usage a whole `chat.completion`, which strict clients refuse. It and newer vLLM call thoughts
`reasoning`; here they are `reasoning_content`, as in whole answers. llama-server tells the usage of each of `n` choices
by itself, and clients keep the last: they get one sum.

Clients put calls together by `index` and take `id` and `name` from the first delta alone. Engines that give every call
the index 0, none at all, or repeat the id, make one call of two. What is right already passes untouched too.
"""

import re
from typing import Any, cast

import msgspec

from covey_gateway.wire.body import is_object
from covey_gateway.wire.chunks import CallOrder, sum_usage
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.errors import render_error_event
from covey_gateway.wire.sse import DONE, split_data

_CALLS = b'"tool_calls"'
_THOUGHT = b'"reasoning"'
_USAGE = b'"usage"'
# With its quotes it can't be in a text, where these are escaped.
_WHOLE = b'"chat.completion"'
_OBJECT = re.compile(rb'("object"\s*:\s*)"chat\.completion"')


def may_need_mending(events: bytes) -> bool:
    """Whether it is worth a look."""
    return _CALLS in events or _THOUGHT in events or _WHOLE in events


class PassedChat:
    """`model` is the engine's to say: it was asked for it by the Model's name."""

    __slots__ = ("_orders",)

    def __init__(self, model: str) -> None:
        self._orders: dict[int, CallOrder] = {}

    def take(self, events: bytes) -> bytes | ApiError:
        if _WHOLE in events:
            events = _OBJECT.sub(rb'\1"chat.completion.chunk"', events)
        return self._mend(events) if _CALLS in events or _THOUGHT in events else events

    def end(self) -> bytes:
        return b""

    def fail(self, error: ApiError) -> bytes:
        return render_error_event(error)

    def _mend(self, events: bytes) -> bytes:
        pieces: list[bytes] = []
        is_changed = False
        for data in split_data(events):
            try:
                chunk: Any = msgspec.json.decode(data)
            except (msgspec.DecodeError, RecursionError):
                pieces.append(data)
                continue
            if self._renumber_chunk(chunk) | _rename_thoughts(chunk):
                is_changed = True
                data = msgspec.json.encode(chunk)
            pieces.append(data)
        return b"".join(b"data: %b\n\n" % piece for piece in pieces) if is_changed else events

    def _renumber_chunk(self, chunk: Any) -> bool:
        """Whether something in it was changed."""
        is_changed = False
        for choice in _items(chunk, "choices"):
            delta = choice.get("delta")
            order = self._orders.setdefault(_whole(choice.get("index")) or 0, CallOrder())
            for call in _items(delta, "tool_calls"):
                is_changed |= _renumber_call(call, order)
        return is_changed


class PassedChoices(PassedChat):
    """Several choices, whose usage is told once, at the end."""

    __slots__ = ("_told",)

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._told: list[dict[str, Any]] = []
        """Chunks of usage and nothing else."""

    def take(self, events: bytes) -> bytes | ApiError:
        if _USAGE not in events and DONE not in events:
            return super().take(events)
        kept: list[bytes] = []
        for data in split_data(events):
            if data == DONE:
                kept += self._sum()
            elif (chunk := _read_usage(data)) is not None:
                self._told.append(chunk)
                continue
            kept.append(data)
        return super().take(b"".join(b"data: %b\n\n" % data for data in kept))

    def _sum(self) -> list[bytes]:
        if not self._told:
            return []
        usage = sum_usage([chunk["usage"] for chunk in self._told])
        return [msgspec.json.encode(self._told[-1] | {"usage": usage})]


def _read_usage(data: bytes) -> dict[str, Any] | None:
    """A chunk that tells usage and has no choices."""
    try:
        chunk: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    is_told = is_object(chunk) and is_object(chunk.get("usage")) and chunk.get("choices") == []
    return chunk if is_told else None


def _rename_thoughts(chunk: Any) -> bool:
    """Whether something in it was changed."""
    is_changed = False
    for choice in _items(chunk, "choices"):
        delta = choice.get("delta")
        if is_object(delta) and "reasoning" in delta and delta.get("reasoning_content") is None:
            delta["reasoning_content"] = delta.pop("reasoning")
            is_changed = True
    return is_changed


def _renumber_call(call: dict[str, Any], order: CallOrder) -> bool:
    before = dict(call)
    id_ = call.get("id")
    ordinal, begins = order.place(_whole(call.get("index")), id_ if isinstance(id_, str) else None)
    call["index"] = ordinal
    if begins:
        call["id"] = id_ or f"call_{ordinal}"
        call["type"] = call.get("type") or "function"
    else:
        call.pop("id", None)
        call.pop("type", None)
    return call != before


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _items(value: Any, name: str) -> list[dict[str, Any]]:
    """The objects of a list in a field, none where it is something else."""
    found = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return [one for one in cast("list[Any]", found) if isinstance(one, dict)] if isinstance(found, list) else []
