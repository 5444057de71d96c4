"""Whether a prompt and the `max_tokens` that its client set fit a window together, told by the engine's own count.

1. By the bytes of what is sent they fit: nothing more is done. Most requests end here.
2. An engine that refuses by itself what doesn't fit (LlamaCpp, Mlx and vLLM) is left to it.
3. llama-server would answer until its window is full and call that `length`. It is asked to tell how far it has read,
   and tells the prompt's length before it reads: the answer ends there, or goes on, and nothing of this is passed on
   to a client that didn't ask for it.

Rejected: asking the endpoint to count first. The prompt would be tokenized twice, and wait in line twice.
"""

from collections.abc import Iterable

from covey_api.engines import EngineName

from covey_gateway.routing.reservation import TOOLS_TOKENS
from covey_gateway.routing.table import Target
from covey_gateway.wire.chunks import read_prompt_total
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.errors import refuse_both
from covey_gateway.wire.request import STREAMED, TEMPLATE_TOKENS, Request
from covey_gateway.wire.sse import split_events

_PROGRESS = b'"prompt_progress"'


class Fit:
    """What is to be looked at in one answer."""

    def __init__(self, request: Request, model: str, window: int, max_tokens: int) -> None:
        self._model = model
        self._window = window
        self._max_tokens = max_tokens
        self._limit_field = request.limit_field
        self._is_wanted = request.wants_progress

    def look(self, events: bytes) -> bytes | ApiError:
        """What of whole events is told on."""
        if _PROGRESS not in events:
            return events
        kept: list[bytes] = []
        for event in split_events(events):
            total = read_prompt_total(event) if _PROGRESS in event else None
            if total is not None and total + self._max_tokens > self._window:
                return refuse_both(self._model, self._window, total, self._max_tokens, self._limit_field)
            if total is None or self._is_wanted:
                kept.append(event)
        return b"".join(kept)


def plan_fit(request: Request, sent_bytes: int, target: Target, model: str) -> Fit | None:
    """`request`: as its client asked; `sent_bytes`: of the body for the engine. None: there is nothing to look at."""
    most, window = request.max_tokens, target.context_tokens
    if most is None or not window or target.engine != EngineName.LLAMA_SERVER or request.call not in STREAMED:
        return None
    if not request.media and _fits(most, sent_bytes, window):
        return None
    return Fit(request, model, window, most)


def fits_all(most: int, sent_bytes: int, targets: Iterable[Target]) -> bool:
    """Whether no endpoint would have to be looked at."""
    windows = [each.context_tokens for each in targets if each.engine == EngineName.LLAMA_SERVER]
    return all(not window or _fits(most, sent_bytes, window) for window in windows)


def _fits(most: int, sent_bytes: int, window: int) -> bool:
    return sent_bytes + TEMPLATE_TOKENS + TOOLS_TOKENS + most <= window
