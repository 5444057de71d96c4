"""What an answer cost, out of the engine's own bytes: its figures where it tells them, else the events that came.

Figures end a stream, so of one with a single choice its last pieces are kept and read when it is over; looking
through each would cost a tenth of what a chunk costs. llama-server ends each choice with `timings`, and tells them of a
choice so far in each chunk where `timings_per_token` asks for it: these count only until the choice ends. Others tell
`usage`, once or again and again, the last one whole. An answer that broke off, also before its first byte, has neither:
its prompt is as long as prompts of as many bytes were, its output as many tokens as events, and it is an estimate.
"""

from collections import deque
from typing import Annotated, Any

import msgspec

from covey_gateway.wire.request import Call
from covey_gateway.wire.sse import split_data

_PROGRESS = b'"prompt_progress"'
_MARKS = (b'"prompt_tokens"', b'"predicted_n"', _PROGRESS)
# Finish reason, usage, `[DONE]`, and as many again for engines that say more.
_LAST_PIECES = 6
# Where an engine says how long the prompt is.
_FIRST_LINES = 4
# Choices of one request that are told of before they end: an engine has a few hundred slots at most.
_MAX_RUNNING = 1024
# More than any window a thousand times over: an engine that tells more, or less than nothing, told no figures.
MAX_FIGURE = 10**9
_Figure = Annotated[int, msgspec.Meta(ge=0, le=MAX_FIGURE)]


class _Timings(msgspec.Struct):
    cache_n: _Figure = 0
    prompt_n: _Figure = 0
    predicted_n: _Figure = 0


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Figure = 0
    completion_tokens: _Figure = 0
    prompt_tokens_details: _Cached | None = None


class _Progress(msgspec.Struct):
    total: _Figure = 0
    cache: _Figure = 0


class _Choice(msgspec.Struct):
    index: int = 0
    finish_reason: Any = None


class _Figures(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None


_FIGURES = msgspec.json.Decoder(_Figures)


class Cost(msgspec.Struct, frozen=True):
    """Tokens of one request; cached ones are among the prompt's."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    is_estimated: bool = False

    @property
    def total(self) -> int:
        return self.prompt + self.completion


NO_COST = Cost()


class Meter:
    """Of one request to an engine. `n`: answers to each of its prompts."""

    __slots__ = (
        "_call",
        "_counted",
        "_ended",
        "_is_single",
        "_last",
        "_lines",
        "_n",
        "_running",
        "_usage",
        "_window_tokens",
        "has_begun",
        "has_reached",
    )

    def __init__(self, call: Call, n: int = 1, *, is_single: bool = True) -> None:
        """`is_single`: one prompt, one answer; else figures may come anywhere in a stream."""
        self.has_begun = False
        """Whether an engine reads its prompt, or did."""
        self.has_reached = False
        """Whether an engine has it, or refused it."""
        self._window_tokens: int | None = None
        self._call = call
        self._n = max(1, n)
        self._is_single = is_single
        self._lines = 0
        self._last: deque[bytes] = deque(maxlen=_LAST_PIECES)
        self._ended: list[_Timings] = []
        self._running: dict[int, _Timings] = {}
        """Of choices that haven't ended, as far as they were told last."""
        self._usage: _Usage | None = None
        self._counted: _Progress | None = None

    def begin(self, window_tokens: int | None) -> None:
        """An engine with this window was sent it: who leaves before a byte of the answer has kept it busy as well."""
        self.has_begun = self.has_reached = True
        self._window_tokens = window_tokens

    def count(self, events: bytes) -> None:
        """Whole events, as the engine wrote them."""
        self._lines += events.count(b"\n")
        self._last.append(events)
        if not self._is_single or (self._lines <= _FIRST_LINES and _PROGRESS in events):
            self._read_events(events)

    def _read_events(self, events: bytes) -> None:
        for data in split_data(events):
            self.read(data)

    def read(self, content: bytes) -> None:
        """One event's data, or a whole answer."""
        if not any(mark in content for mark in _MARKS):
            return
        try:
            found = _FIGURES.decode(content)
        except (msgspec.DecodeError, RecursionError):
            return  # whoever tells the answer says what is wrong with it; figures out of bounds count as none
        if found.timings is not None:
            self._take_timings(found.timings, found.choices)
        elif found.usage is not None:
            self._usage = found.usage
        elif found.prompt_progress is not None:
            self._counted = found.prompt_progress

    def _take_timings(self, timings: _Timings, choices: list[_Choice] | None) -> None:
        """Without a choice (beside `usage`) they end one that has come as far."""
        if choices and choices[0].finish_reason is None:
            if choices[0].index in self._running or len(self._running) < _MAX_RUNNING:
                self._running[choices[0].index] = timings
            return
        self._ended.append(timings)
        if choices:
            self._running.pop(choices[0].index, None)
        elif self._running:
            far = timings.predicted_n
            del self._running[min(self._running, key=lambda index: abs(self._running[index].predicted_n - far))]

    def cost(self, estimated_prompt: int) -> Cost:
        """`estimated_prompt`: what the prompt has, where the engine didn't tell."""
        if self._call is Call.COUNT:
            return NO_COST  # nothing is read or generated: a tokenizer answers
        if self._is_single:
            for events in self._last:
                if b'"prompt_tokens"' in events or b'"predicted_n"' in events or _PROGRESS in events:
                    self._read_events(events)
            self._last.clear()
        if self._ended or self._running:
            return self._sum_timings([*self._ended, *self._running.values()], is_estimated=bool(self._running))
        if (usage := self._usage) is not None:
            cached = (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0
            return Cost(usage.prompt_tokens, max(0, min(cached, usage.prompt_tokens)), usage.completion_tokens)
        if not self.has_begun:
            return NO_COST
        # The first event of a chat has the role alone.
        output = max(0, self._lines // 2 - (1 if self._call is Call.CHAT else 0))
        if self._counted is not None:
            return Cost(self._counted.total, self._counted.cache, output, is_estimated=True)
        if self._call is Call.CHAT and self._window_tokens:  # an image's bytes are no tokens
            estimated_prompt = min(estimated_prompt, self._window_tokens)
        return Cost(estimated_prompt, 0, output, is_estimated=True)

    def _sum_timings(self, timings: list[_Timings], *, is_estimated: bool) -> Cost:
        """Each choice tells its own, with its prompt: one for all in a chat, one for `n` in texts."""
        prompts, cached = [each.prompt_n + each.cache_n for each in timings], [each.cache_n for each in timings]
        completion = sum(each.predicted_n for each in timings)
        if self._call is Call.CHAT:
            return Cost(max(prompts), min(cached), completion, is_estimated)
        return Cost(sum(prompts) // self._n, sum(cached) // self._n, completion, is_estimated)


def drop_usage(events: bytes) -> bytes:
    """Without chunks that tell usage and nothing else, for a client that didn't ask for them."""
    if b'"usage"' not in events:
        return events
    kept: list[bytes] = []
    for data in split_data(events):
        try:
            chunk = msgspec.json.decode(data, type=_UsageChunk)
        except (msgspec.DecodeError, RecursionError):
            chunk = None
        if chunk is None or chunk.usage is None or chunk.choices != []:
            kept.append(data)
    return b"".join(b"data: %b\n\n" % data for data in kept)


class _UsageChunk(msgspec.Struct):
    choices: list[Any] | None = None
    usage: dict[str, Any] | None = None
