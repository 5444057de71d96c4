"""Refusals of tokens made slow, and few at once: whoever guesses gets sixteen tries a second, all guessers together."""

import asyncio

from covey_controller.serving.answers import ApiError, ApiReason

# Who mistyped a token doesn't notice the wait.
REFUSAL_SECONDS = 0.5
MAX_REFUSALS_AT_ONCE = 8


class SlowRefusals:
    """One event loop, no locks."""

    def __init__(self) -> None:
        self._open = 0

    def require_room(self) -> None:
        """ApiError 429 while as many are being refused as may be."""
        if self._open >= MAX_REFUSALS_AT_ONCE:
            raise ApiError(
                429,
                ApiReason.TOO_MANY_JOINS,
                "too many tokens are being refused; try again in a second",
                headers={"retry-after": "1"},
            )

    async def delay(self) -> None:
        self._open += 1
        try:
            await asyncio.sleep(REFUSAL_SECONDS)
        finally:
            self._open -= 1
