"""Who has what, as the leader says: asked while there is one, over the connection that reports take."""

import asyncio
import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from covey_api.messages import Wanted, WantedAnswer
from covey_fleet_client.errors import FleetError

from covey_agent.ports import Fleet

logger = logging.getLogger(__name__)

# Reports and answers go by the same few connections.
_AT_ONCE = 2
# A controller that is there and doesn't answer would cost each blob its whole deadline: it is let rest.
SLOW_SECONDS = 1.0
REST_SECONDS = 30.0


class Directory(Protocol):
    """The leader, as far as it knows who has what."""

    async def ask(self, wanted: Wanted) -> WantedAnswer | None:
        """None: there is no controller now, or none that knows. Bounded; an agent's never raises, a command's raises
        AgentError instead."""
        ...


class FleetDirectory:
    """`Directory` of the fleet that this node is in, while it is in one."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._fleet: Fleet | None = None
        self._rests_until = float("-inf")
        self._places = asyncio.Semaphore(_AT_ONCE)

    @contextmanager
    def reached_by(self, fleet: Fleet) -> Generator[None]:
        self._fleet, self._rests_until = fleet, float("-inf")
        try:
            yield
        finally:
            self._fleet = None

    async def ask(self, wanted: Wanted) -> WantedAnswer | None:
        async with self._places:
            began = time.monotonic()
            if self._fleet is None or began < self._rests_until:
                return None
            try:
                return await self._fleet.post(f"nodes/{self._node}/wanted", wanted, WantedAnswer)
            except FleetError as error:
                logger.debug("nobody says who has %s: %s", wanted.sha256, error.message)
                if (now := time.monotonic()) - began >= SLOW_SECONDS:
                    self._rests_until = now + REST_SECONDS
                return None
