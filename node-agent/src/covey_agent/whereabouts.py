"""Where gateways of other machines reach this node: as its operator says, else as it reaches its controller.

A machine that has just booted may have no route and no names yet. It serves all the same: until the address is found
keepers listen on every one, and reports say that none is known.
"""

import asyncio
import logging
from pathlib import Path

from covey_fleet_client.machine import is_loopback, observe_address

from covey_agent.keeper.joining import FrontSettings

logger = logging.getLogger(__name__)

# A network that comes up late is noticed as soon as a person would look.
AGAIN_SECONDS = 2.0


class Whereabouts:
    """`given`: by the operator, or empty. `identity`: the folder of this node's certificate."""

    def __init__(self, given: str, controller_url: str, identity: Path) -> None:
        self.address = given
        """Empty while it isn't known."""
        self._controller_url = controller_url
        self._identity = identity

    @property
    def front(self) -> FrontSettings | None:
        """How a keeper that starts now listens; None where every gateway is on this machine."""
        return None if is_loopback(self.address) else FrontSettings(self.address, self._identity)

    async def find(self) -> None:
        """Return once the address is known."""
        while not self.address:
            self.address = await asyncio.to_thread(observe_address, self._controller_url)
            if self.address:
                logger.info("this node's address is '%s'", self.address)
            else:
                await asyncio.sleep(AGAIN_SECONDS)
