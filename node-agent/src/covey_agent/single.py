"""One agent for one state folder: a lock that lives as long as the process."""

import fcntl
import os
from pathlib import Path


class AlreadyRunning(Exception):
    """Another agent has the folder; the words say which."""


def take_folder(folder: Path) -> int:
    """The descriptor of the lock, to be kept open. AlreadyRunning when another process has it.

    The lock is the kernel's and ends with its holder, however that ends; the process id in the file is for people.
    """
    path = folder / "agent.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise AlreadyRunning(
            f"the folder '{folder}' must have one agent; the one with process id {holder} runs. "
            "End it first, or name another folder with `--state`."
        ) from None
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock
