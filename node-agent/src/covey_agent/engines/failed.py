"""Engines that could not be started when they were wanted: remembered until one starts, or the Node's spec is another.

Most who wanted it are placed elsewhere by then, so nobody tries it again: it is tried now and then, beside everything
else, where that costs a question to a program and fetches nothing.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from covey_api.engines import EngineName
from covey_api.node import EngineOverride
from covey_api.reasons import FailureCause

from covey_agent.ports import AgentError

# A person who installed what was missing sees it within that; an engine in Python takes seconds of a core to answer.
AGAIN_SECONDS = 60.0
# What lasts until a person does something; a source that can't be reached, or a full disk, are not the engine's.
_LASTING = frozenset({FailureCause.NO_USABLE_ENGINE, FailureCause.MISSING_LIBRARY})


@dataclass(frozen=True, slots=True)
class _Failed:
    error: AgentError
    override: EngineOverride | None
    """What the Node's spec said of it then."""
    at_seconds: float


class FailedEngines:
    """By engine. `observe_now`: seconds that only grow."""

    def __init__(self, observe_now: Callable[[], float] = time.monotonic) -> None:
        self._observe_now = observe_now
        self._failed: dict[EngineName, _Failed] = {}
        self._trials: dict[EngineName, asyncio.Task[None]] = {}

    def find(self, engine: EngineName, override: EngineOverride | None) -> AgentError | None:
        failed = self._failed.get(engine)
        return failed.error if failed is not None and failed.override == override else None

    def fail(self, engine: EngineName, override: EngineOverride | None, error: AgentError) -> None:
        if error.cause in _LASTING:
            self._failed[engine] = _Failed(error, override, self._observe_now())

    def succeed(self, engine: EngineName) -> None:
        self._failed.pop(engine, None)

    def try_again(self, engine: EngineName, start: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """One trial at a time, once the last one is old; `start` says here how it ended."""
        failed, trial = self._failed.get(engine), self._trials.get(engine)
        if failed is None or (trial is not None and not trial.done()):
            return
        if self._observe_now() - failed.at_seconds >= AGAIN_SECONDS:
            self._trials[engine] = asyncio.create_task(_settle(start()))


async def _settle(trial: Coroutine[Any, Any, object]) -> None:
    try:
        await trial
    except AgentError:
        return  # it was remembered where it was raised
