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

from covey_agent.engines.source import UnknownVersion
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


_Key = tuple[EngineName, str | None]


class FailedEngines:
    """By engine, and the version that was asked for. `observe_now`: seconds that only grow."""

    def __init__(self, observe_now: Callable[[], float] = time.monotonic) -> None:
        self._observe_now = observe_now
        self._failed: dict[_Key, _Failed] = {}
        self._trials: dict[_Key, asyncio.Task[None]] = {}

    def find(self, engine: EngineName, override: EngineOverride | None) -> AgentError | None:
        found = (failed for (name, _), failed in self._failed.items() if name is engine)
        return next((failed.error for failed in found if failed.override == override), None)

    def fail(self, engine: EngineName, version: str | None, override: EngineOverride | None, error: AgentError) -> None:
        if error.cause in _LASTING and not isinstance(error, UnknownVersion):
            self._failed[engine, version] = _Failed(error, override, self._observe_now())

    def succeed(self, engine: EngineName, version: str | None) -> None:
        self._failed.pop((engine, version), None)

    def try_again(self, engine: EngineName, start: Callable[[str | None], Coroutine[Any, Any, object]]) -> None:
        """One trial at a time of each version, once the last one is old; `start` says here how it ended."""
        for key, failed in self._failed.items():
            trial = self._trials.get(key)
            is_under_way = trial is not None and not trial.done()
            if key[0] is engine and not is_under_way and self._observe_now() - failed.at_seconds >= AGAIN_SECONDS:
                self._trials[key] = asyncio.create_task(_settle(start(key[1])))


async def _settle(trial: Coroutine[Any, Any, object]) -> None:
    try:
        await trial
    except AgentError:
        return  # it was remembered where it was raised
