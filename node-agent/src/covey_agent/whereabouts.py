"""Where gateways of other machines reach this node: as its operator says, else as it reaches its controller.

A machine that has just booted may have no route and no names yet. It serves all the same: until the address is found
keepers listen on every one, and reports say that none is known. One that was found is looked for anew once the machine
has it no more (another network, another lease). While it has it, it stays: what runs is reached there, whichever way
leads to the controller by now.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from covey_fleet_client.machine import has_address, is_loopback, observe_address

from covey_agent.keeper.joining import FrontSettings

logger = logging.getLogger(__name__)

# A network that comes up late is noticed as soon as a person would look.
AGAIN_SECONDS = 2.0
# A lease that ended, or a laptop elsewhere: looked at this often, which is one system call.
LOOK_SECONDS = 15.0


class Whereabouts:
    """`given`: by the operator, or empty. `identity`: the folder of this node's certificate."""

    def __init__(self, given: str, controller_url: str, identity: Path) -> None:
        self._given = given
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

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Follow the machine to another address, until cancelled. Who was given one stays there."""
        await self.find()
        while not self._given:
            await asyncio.sleep(LOOK_SECONDS)
            if has_address(self.address):
                continue
            # Nothing while there is no network: what it was is as good as any, and may come back.
            found = await asyncio.to_thread(observe_address, self._controller_url)
            if found and found != self.address:
                logger.warning(
                    "this node's address is '%s' now, and was '%s'; gateways of other machines reach engines that were "
                    "started before once these are started again",
                    *(found, self.address),
                )
                self.address = found
                on_change()
