"""A blob read where it is, at other nodes of the fleet: ranges of it, for who wants its start alone.

What comes is no more than a node's word until the whole has its digest. So a header that was read so may be a lie: that
costs a plan that fails when the file is fetched, and no engine gets anything of it.
"""

import asyncio
import logging

from covey_api.messages import MAX_TRIED, Wanted
from covey_api.units import format_bytes

from covey_agent.artifacts.web import unavailable
from covey_agent.peers.directory import Directory
from covey_agent.peers.taking import Dialler, PeerBusy, PeerFailed, PeerShut
from covey_agent.ports import AgentError

logger = logging.getLogger(__name__)

# The leader is asked so often who has it; with a pause between where those give to as many as they can.
TRIES = 5
BUSY_SECONDS = 2.0


class FarBlob:
    """`size_bytes` is 0 until the first range came."""

    def __init__(self, directory: Directory, dialler: Dialler, sha256: str, name: str) -> None:
        self._directory = directory
        self._dialler = dialler
        self._sha256 = sha256
        self._name = name
        self._tried: set[str] = set()
        self.size_bytes = 0

    async def read_at(self, offset: int, length: int) -> bytes:
        """So many bytes, or fewer at its end. AgentError when no node gives them."""
        is_busy = False
        for attempt in range(TRIES):
            wanted = Wanted(sha256=self._sha256, tried=tuple(sorted(self._tried))[:MAX_TRIED], only_holders=True)
            answer = await self._directory.ask(wanted)
            if answer is None:
                raise unavailable(f"{self._name}: the controller that knows which nodes have it can't be asked now.")
            is_busy = bool(answer.fetcher)
            for holder in answer.holders:
                try:
                    piece, total = await self._dialler.read_range(holder, self._sha256, offset, length)
                except (PeerBusy, PeerShut):
                    is_busy = True
                except PeerFailed as failure:
                    self._tried.add(holder.node)
                    logger.warning("node '%s' did not give a part of %s: %s", holder.node, self._name, failure)
                else:
                    return self._check(holder.node, piece, total)
            if not answer.holders and not is_busy:
                raise self._missing()
            # An answer names a few: where those failed others may be named next.
            if is_busy and attempt + 1 < TRIES:
                await asyncio.sleep(BUSY_SECONDS)
        if not is_busy:
            raise self._missing()
        raise unavailable(f"{self._name}: the nodes that have it are busy giving others what they need.")

    def _check(self, node: str, piece: bytes, total: int) -> bytes:
        if self.size_bytes not in (0, total):
            raise unavailable(
                f"{self._name} has {format_bytes(self.size_bytes)} at one node, and {format_bytes(total)} at '{node}'."
            )
        self.size_bytes = total
        return piece

    def _missing(self) -> AgentError:
        tried = ", ".join(f"'{each}'" for each in sorted(self._tried))
        asked = f" (asked in vain: {tried})" if tried else ""
        return unavailable(
            f"{self._name} is in the cache of no node of this fleet that can be reached{asked}. Put it into one with "
            "`covey cache add FILE` there, or change the source."
        )
