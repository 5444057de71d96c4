"""How fast bytes may leave, over all connections together: threads wait here after what they sent for the next."""

import threading
import time

from covey_agent.artifacts.pace import LEAST_BYTES_PER_SECOND

# One read of a disk and one call into OpenSSL: the hop between both costs nothing beside it.
PIECE_BYTES = 1024 * 1024
# One TLS record.
LEAST_PIECE_BYTES = 16 * 1024


class ThreadPace:
    """Without a limit until it is given one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes_per_second: int | None = None
        self._free_at = 0.0

    def limit(self, bytes_per_second: int | None) -> None:
        """From the next piece on; None: no limit."""
        wanted = None if bytes_per_second is None else max(bytes_per_second, LEAST_BYTES_PER_SECOND)
        with self._lock:
            if wanted != self._bytes_per_second:
                self._bytes_per_second, self._free_at = wanted, 0.0

    @property
    def piece_bytes(self) -> int:
        """How much to send at a time, so that nobody is silent for long."""
        limit = self._bytes_per_second
        return PIECE_BYTES if limit is None else max(LEAST_PIECE_BYTES, min(PIECE_BYTES, limit // 8))

    def wait(self, count: int) -> None:
        """So many bytes went: return when the next may."""
        with self._lock:
            if self._bytes_per_second is None:
                return
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + count / self._bytes_per_second
            pause_seconds = self._free_at - now
        time.sleep(pause_seconds)
