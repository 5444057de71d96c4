"""Keeps a git command that outlived its controller out of the clone.

A controller that is killed leaves the git it had started. Every such child inherits the descriptor of one locked file
and its process group is written into that file: while the lock is held by somebody else, that group lives, and can be
ended without mistaking another process for it.
"""

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

# A group that was sent SIGKILL is gone in milliseconds, unless a disk holds it.
END_SECONDS = 5.0
_POLL_SECONDS = 0.02


class CloneBusy(OSError):
    """Another process works on the clone and can't be ended."""


def take_clone_lock(path: Path) -> int:
    """The descriptor that holds the lock; whoever had it is ended. Blocks up to `END_SECONDS`. CloneBusy after that."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + END_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise CloneBusy(f"'{path}' is held by another process; end the git that runs on it") from None
            _end_holder(descriptor)
            time.sleep(_POLL_SECONDS)
        else:
            return descriptor


def _end_holder(descriptor: int) -> None:
    written = os.pread(descriptor, 20, 0).strip()
    # Below 2 it would mean our own group, or every process there is.
    if written.isdigit() and int(written) > 1:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(written), signal.SIGKILL)
