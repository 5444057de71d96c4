"""What went wrong last while a header is waited for: a deadline that ends it says why, and not only how long.

By context, so that nothing between whoever waits and whoever tries again has to pass it on.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from covey_api.reasons import FailureCause

from covey_agent.ports import AgentError


@dataclass(slots=True)
class _Trouble:
    words: str = ""
    """Empty: nothing went wrong."""


_TROUBLE: ContextVar[_Trouble | None] = ContextVar("trouble", default=None)


@asynccontextmanager
async def header_within(seconds: float, what: str) -> AsyncGenerator[None]:
    """AgentError after that time, with what went wrong last in here, also in tasks that begin in here."""
    trouble = _Trouble()
    token = _TROUBLE.set(trouble)
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        reason = f" Last: {trouble.words}." if trouble.words else ""
        words = f"'{what}' gave no header within {seconds:.0f} s.{reason}"
        raise AgentError(FailureCause.ARTIFACT_UNAVAILABLE, words) from error
    finally:
        _TROUBLE.reset(token)


def note_trouble(words: str) -> None:
    if (trouble := _TROUBLE.get()) is not None:
        trouble.words = words
