"""One leader per store: a lock file in the state folder, held with `flock` for as long as the process leads.

The kernel lets go of it when the process dies, however it dies. The file is never removed: a deleted one would let a
second process lock another file of the same name, so the holder compares inodes and steps down when it is gone.
Rejected: SQLite's own exclusive lock (a second process couldn't even say who holds it).
"""

import asyncio
import contextlib
import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

# A standby takes over this soon after a leader's death; looking costs one system call.
LOOK_SECONDS = 0.25
# Who holds it: a process id and a random name.
MAX_HOLDER_BYTES = 256


class LeaderLock:
    """The lock file, held by at most one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._inode = (0, 0)
        """Of the file that is open: its device's number and its own."""

    async def acquire(self, holder: str) -> None:
        """Wait until this process holds the lock; say once for whom it waits."""
        waited_for = ""
        while not self._try_acquire(holder):
            present = self._read_holder()
            if present != waited_for:
                waited_for = present
                log.info("waiting to lead: '%s' is held by %s", self._path, present or "another process")
            await asyncio.sleep(LOOK_SECONDS)

    def is_held(self) -> bool:
        """True while the file that is locked is still the one with this name."""
        if self._descriptor is None:
            return False
        try:
            named = os.stat(self._path)
        except OSError:
            return False
        return (named.st_dev, named.st_ino) == self._inode

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _try_acquire(self, holder: str) -> bool:
        self.release()
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            return False
        opened = os.fstat(self._descriptor)
        self._inode = (opened.st_dev, opened.st_ino)
        if not self.is_held():
            self.release()
            return False
        # For people who read it, and for the words of whoever waits; a full disk mustn't cost the leadership.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"process {os.getpid()} ({holder})\n".encode(), 0)
        return True

    def _read_holder(self) -> str:
        try:
            with open(self._path, "rb") as file:
                return file.read(MAX_HOLDER_BYTES).decode(errors="replace").strip()
        except OSError:
            return ""
