"""Room on the cache's disk: what is left for an artifact beside those that are on their way, and who can't be removed.

Reservations are this process's own; another process that fills the disk is met by the write that fails.
"""

import asyncio
import errno
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from covey_api.reasons import FailureCause
from covey_api.units import format_bytes

from covey_agent.ports import AgentError

# Left free beside every artifact: a file system filled to the last byte breaks the state folder and the logs.
SPARE_BYTES = 128 * 1024 * 1024
# What was chosen for removal may be needed by the time, or the disk may give back less: so often it is chosen anew.
_ROUNDS = 8


def _observe_free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


@dataclass(slots=True)
class _Claim:
    """Bytes that are yet to be written for one key, and how many wait for them: a set, and its file's download."""

    left_bytes: int
    claimants: int = 0


class Room:
    """`make_room`: is asked for bytes that a named artifact lacks; False when it can't do anything for it."""

    def __init__(
        self,
        folder: Path,
        make_room: Callable[[int, str], Awaitable[bool]],
        observe_free_bytes: Callable[[Path], int] = _observe_free_bytes,
    ) -> None:
        self._folder = folder
        self._observe_free_bytes = observe_free_bytes
        self._make_room = make_room
        self._held: Counter[str] = Counter()
        self._reserved: dict[str, _Claim] = {}
        self._turn = asyncio.Lock()
        """Who makes room keeps it: others look when it is reserved, and never choose what is being removed."""

    @contextmanager
    def hold(self, digests: Iterable[str]) -> Generator[None]:
        """Nothing of this is removed to make room meanwhile."""
        held = tuple(digests)
        self._held.update(held)
        try:
            yield
        finally:
            self._held.subtract(held)
            self._held += Counter()  # forget zeros

    def held(self) -> frozenset[str]:
        return frozenset(self._held)

    async def require(self, needed_bytes: int, name: str) -> None:
        """AgentError(DiskFull) unless this many bytes fit beside what is reserved, and some to spare."""
        async with self._turn:
            await self._ensure(needed_bytes, name)

    @asynccontextmanager
    async def reserve(self, key: str, needed_bytes: int, name: str) -> AsyncGenerator[Callable[[int], None]]:
        """Room for bytes that are yet to be written; call it with how many are left to come. DiskFull as above."""
        async with self.reserve_all({key: needed_bytes}, name):
            claim = self._reserved[key]

            def tell_left(left_bytes: int) -> None:
                claim.left_bytes = left_bytes

            # Whoever writes it knows how much that is.
            tell_left(needed_bytes)
            yield tell_left

    @asynccontextmanager
    async def reserve_all(self, needs: Mapping[str, int], name: str) -> AsyncGenerator[None]:
        """Room for all of them, by key, while others reserve for some of them: what is reserved counts once."""
        async with self._turn:
            claimed_bytes = sum(self._reserved[key].left_bytes for key in needs if key in self._reserved)
            if (more_bytes := sum(needs.values()) - claimed_bytes) > 0:
                await self._ensure(more_bytes, name)
            for key, needed_bytes in needs.items():
                self._reserved.setdefault(key, _Claim(needed_bytes)).claimants += 1
        try:
            yield
        finally:
            for key in needs:
                self._reserved[key].claimants -= 1
                if not self._reserved[key].claimants:
                    del self._reserved[key]

    async def _ensure(self, needed_bytes: int, name: str) -> None:
        for _ in range(_ROUNDS):
            short_bytes = self._short_bytes(needed_bytes)
            if short_bytes <= 0 or not await self._make_room(short_bytes, name):
                break
        if self._short_bytes(needed_bytes) > 0:
            raise self._disk_full(name, needed_bytes)

    def explain(self, error: OSError, name: str, needed_bytes: int) -> AgentError:
        """In words, what the disk said while an artifact was written."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return self._disk_full(name, needed_bytes)
        return AgentError(
            FailureCause.ARTIFACT_UNAVAILABLE,
            f"'{name}' can't be written to {self._folder}: {error.strerror or error}.",
        )

    def _free_bytes(self) -> int:
        return max(
            0, self._observe_free_bytes(self._folder) - sum(claim.left_bytes for claim in self._reserved.values())
        )

    def _short_bytes(self, needed_bytes: int) -> int:
        return needed_bytes + SPARE_BYTES - self._free_bytes()

    def _disk_full(self, name: str, needed_bytes: int) -> AgentError:
        free_bytes = self._free_bytes()
        return AgentError(
            FailureCause.DISK_FULL,
            f"'{name}' needs {format_bytes(needed_bytes)} ({needed_bytes} bytes) and {format_bytes(SPARE_BYTES)} to "
            f"spare; {format_bytes(free_bytes)} ({free_bytes} bytes) are free in {self._folder}, and nothing else can "
            "be removed there. Free some (`covey cache ls`, `covey cache prune`), or give another `--cache`.",
        )
