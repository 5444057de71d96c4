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

from covey_agent.engines.source import is_lasting
from covey_agent.ports import AgentError

# A person who installed what was missing sees it within that; an engine in Python takes seconds of a core to answer.
AGAIN_SECONDS = 60.0
# A version that no Instance asked for so long isn't pinned any more, for all that an agent can know.
UNASKED_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Failed:
    error: AgentError
    override: EngineOverride | None
    """What the Node's spec said of it then."""
    at_seconds: float
    asked_seconds: float
    """When an Instance wanted it last."""


_Key = tuple[EngineName, str | None]


class FailedEngines:
    """By engine, and the version that was asked for. `observe_now`: seconds that only grow."""

    def __init__(self, observe_now: Callable[[], float] = time.monotonic) -> None:
        self._observe_now = observe_now
        self._failed: dict[_Key, _Failed] = {}
        self._trials: dict[_Key, asyncio.Task[None]] = {}

    def find(self, engine: EngineName, override: EngineOverride | None) -> AgentError | None:
        self._forget(engine, override)
        return next((failed.error for (name, _), failed in self._failed.items() if name is engine), None)

    def fail(
        self,
        engine: EngineName,
        version: str | None,
        override: EngineOverride | None,
        error: AgentError,
        *,
        is_trial: bool = False,
    ) -> None:
        """`is_trial`: no Instance wanted it now; then what was forgotten meanwhile stays so."""
        known, now = self._failed.get((engine, version)), self._observe_now()
        if is_lasting(error) and (known is not None or not is_trial):
            asked = known.asked_seconds if known is not None and is_trial else now
            self._failed[engine, version] = _Failed(error, override, now, asked)

    def succeed(self, engine: EngineName, version: str | None) -> None:
        self._failed.pop((engine, version), None)

    def try_again(
        self,
        engine: EngineName,
        override: EngineOverride | None,
        is_here: Callable[[str | None], bool],
        start: Callable[[str | None], Coroutine[Any, Any, None]],
    ) -> None:
        """One trial at a time of each version that is on the machine, once the last one is old; `start` says here how
        it ended. A version that isn't here would be fetched and installed each time."""
        self._forget(engine, override)
        self._trials = {key: trial for key, trial in self._trials.items() if not trial.done()}
        for key, failed in self._failed.items():
            is_due = key not in self._trials and self._observe_now() - failed.at_seconds >= AGAIN_SECONDS
            if key[0] is engine and is_due and is_here(key[1]):
                self._trials[key] = asyncio.create_task(start(key[1]))

    def _forget(self, engine: EngineName, override: EngineOverride | None) -> None:
        """What failed under another spec, and versions that nobody asks for any more."""
        now = self._observe_now()
        for key, failed in list(self._failed.items()):
            is_unasked = key[1] is not None and now - failed.asked_seconds >= UNASKED_SECONDS
            if key[0] is engine and (failed.override != override or is_unasked):
                del self._failed[key]
