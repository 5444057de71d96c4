"""Refusals of tokens made slow, and few at once: whoever guesses gets sixteen tries a second.

Counted by address, so that one who guesses keeps nobody else from joining; and in all, since each try may cost a call
of the API server. Connections that another replica passes on have its address: those share its sixteen. Rejected: to
look at a token first and refuse only wrong ones by number. Each look is what it costs.
"""

import asyncio
from collections import Counter

from covey_controller.serving.answers import ApiError, ApiReason
from covey_controller.serving.guests import network_of

# Who mistyped a token doesn't notice the wait.
REFUSAL_SECONDS = 0.5
MAX_REFUSALS_OF_ONE = 8
MAX_REFUSALS_AT_ONCE = 64


class SlowRefusals:
    """One event loop, no locks."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def require_room(self, host: str) -> None:
        """ApiError 429 while as many are being refused as may be."""
        if self._open[network_of(host)] >= MAX_REFUSALS_OF_ONE or self._open.total() >= MAX_REFUSALS_AT_ONCE:
            raise ApiError(
                429,
                ApiReason.TOO_MANY_JOINS,
                "too many tokens are being refused; try again in a second",
                headers={"retry-after": "1"},
            )

    async def delay(self, host: str) -> None:
        network = network_of(host)
        self._open[network] += 1
        try:
            await asyncio.sleep(REFUSAL_SECONDS)
        finally:
            self._open[network] -= 1
            self._open += Counter()  # forgets the zeros
