"""How fast bytes may come, over all downloads of a process together: each waits after what it took for the next.

Waiting to read is what slows a server down; nothing is buffered meanwhile. Turns are given in the order of asking, so
that several downloads share what there is by how much each asks.
"""

import asyncio
import time

# Slower than this, a connection would be taken for a dead one.
LEAST_BYTES_PER_SECOND = 64 * 1024
_PIECE_BYTES = 1024 * 1024


class Pace:
    """Without a limit until it is given one."""

    def __init__(self) -> None:
        self._bytes_per_second: int | None = None
        self._free_at = 0.0

    def limit(self, bytes_per_second: int | None) -> None:
        """From the next piece on; None: no limit."""
        wanted = None if bytes_per_second is None else max(bytes_per_second, LEAST_BYTES_PER_SECOND)
        if wanted != self._bytes_per_second:
            self._bytes_per_second, self._free_at = wanted, 0.0

    @property
    def piece_bytes(self) -> int:
        """How much to read at a time, so that no server is kept waiting for long."""
        return _PIECE_BYTES if self._bytes_per_second is None else LEAST_BYTES_PER_SECOND

    async def wait(self, count: int) -> None:
        """So many bytes came: come back when the next may."""
        if self._bytes_per_second is None:
            return
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + count / self._bytes_per_second
        await asyncio.sleep(self._free_at - now)
