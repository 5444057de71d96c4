"""Who has what, as the leader says: asked while there is one, over the connection that reports take."""

import asyncio
import logging
import ssl
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from covey_api.messages import Wanted, WantedAnswer
from covey_fleet_client.errors import FleetError

from covey_agent.keeper.credentials import observe_stamp
from covey_agent.ports import Fleet

logger = logging.getLogger(__name__)

# Reports and answers go by the same few connections.
_AT_ONCE = 2
# A controller that is there and doesn't answer would cost each blob its whole deadline: it is let rest.
SLOW_SECONDS = 1.0
REST_SECONDS = 30.0


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


class PeerCredentials:
    """TLS to other nodes: this node's certificate, and the authority that theirs must be of. `identity`: its folder.

    Looked at with each dial, so a renewed certificate is shown by the next connection.
    """

    def __init__(self, identity: Path) -> None:
        self._certificate, self._key = str(identity / "certificate.pem"), str(identity / "key.pem")
        self._authorities = str(identity / "authorities.pem")
        self._context: ssl.SSLContext | None = None
        self._read_at: object = None

    def observe_context(self) -> ssl.SSLContext | None:
        """None while there has never been a whole identity; a torn one leaves the one before in force."""
        stamp = observe_stamp(self._certificate, self._key, self._authorities)
        if stamp != self._read_at:
            self._read_at = stamp
            try:
                self._context = self._make_context()
            except (OSError, ValueError) as error:
                logger.error("the node's identity can't be read, the one before is used: %s", error)
        return self._context

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Nodes are reached by addresses that come and go: what counts is the name that the authority wrote.
        context.check_hostname = False
        context.load_verify_locations(self._authorities)
        context.load_cert_chain(self._certificate, self._key)
        return context
