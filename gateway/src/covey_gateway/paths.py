"""Whether this gateway has a way to the fronts of other machines. Looked at all the time: a fleet without requests
should hear of a closed port too, and before the first request does.

| what is tried | what follows |
|---|---|
| a handshake succeeds, and holds for `SETTLE_SECONDS` | no failure; looked at again after `GOOD_SECONDS` |
| it fails | tried again after `AGAIN_SECONDS`; with the third in a row it is a failure that the controller hears of |
| it fails on | looked at again after `BAD_SECONDS`; the first success takes the failure back |
| there is nothing to try: no front, on another machine | a failure at once |

One failure alone says nothing: a keeper is restarted, a packet is lost. Routing doesn't hear of any of this: a request
that finds no connection sets its endpoint aside by itself.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from covey_gateway.routing.table import RoutingTable, Target
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import Engines

# Between two looks at least: tables may follow each other closely.
LOOK_SECONDS = 0.5
AGAIN_SECONDS = 1.0
GOOD_SECONDS = 10.0
BAD_SECONDS = 5.0
# In a row, before the controller hears of it.
TRIES = 3
# A front that refuses a certificate says so after TLS 1.3's handshake is over for this side.
SETTLE_SECONDS = 0.25
# Handshakes at a time: one that is dropped by a firewall waits for `connectSeconds`, others shouldn't for it.
MAX_AT_ONCE = 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Path:
    """What the last tries to one endpoint met."""

    failures: int = 0
    words: str = ""
    due: float = 0.0


class Paths:
    """`clock` is monotonic."""

    def __init__(self, engines: Engines, traffic: Traffic, clock: Callable[[], float]) -> None:
        self._engines = engines
        self._traffic = traffic
        self._clock = clock
        self._changed = asyncio.Event()
        self._paths: dict[str, Path] = {}
        """By the target's id."""

    def look_again(self) -> None:
        """The table is another one."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled. Where no endpoint is on another machine, it sleeps until one is."""
        while True:
            self._changed.clear()
            await self._look()
            due = min((path.due for path in self._paths.values()), default=math.inf)
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if due == math.inf else due - self._clock()):
                    await self._changed.wait()

    async def _look(self) -> None:
        """Try what is due, to its end, and tell what is known then."""
        targets = {target.id: target for target in remote_targets(self._traffic.table)}
        self._paths = {id_: self._paths.get(id_, Path()) for id_ in targets}
        room = asyncio.Semaphore(MAX_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for target in targets.values():
                if self._clock() >= self._paths[target.id].due:
                    group.create_task(self._try(target, room))
        self._traffic.set_path_failures(observe_failures(targets, self._paths))

    async def _try(self, target: Target, room: asyncio.Semaphore) -> None:
        async with room:
            try:
                words = await self._engines.probe(target, SETTLE_SECONDS)
            except Exception:
                # This task shares the process's TaskGroup: a bug met here must not end what serves.
                _log.exception("endpoint %s could not be looked at", target.id)
                return
        before = self._paths[target.id]
        self._paths[target.id] = judge_try(before, words, self._clock())
        if words and before.failures + 1 == TRIES:
            _log.warning("endpoint %s of model '%s' can't be reached: %s", target.id, target.model, words)
        elif not words and before.failures >= TRIES:
            _log.info("endpoint %s of model '%s' is reached again", target.id, target.model)


def remote_targets(table: RoutingTable) -> list[Target]:
    """Endpoints of other machines."""
    return [one for targets in table.targets.values() for one in targets if one.front is not None or one.no_way]


def judge_try(before: Path, words: str, now: float) -> Path:
    """The path after one more try; no words: it succeeded."""
    if not words:
        return Path(due=now + GOOD_SECONDS)
    failures = before.failures + 1
    return Path(failures, words, now + (AGAIN_SECONDS if failures < TRIES else BAD_SECONDS))


def observe_failures(targets: Mapping[str, Target], paths: Mapping[str, Path]) -> dict[str, str]:
    """By instance, what is worth telling."""
    return {
        targets[id_].instance_id: path.words
        for id_, path in sorted(paths.items())
        if path.failures >= TRIES or (path.words and targets[id_].no_way)
    }
