"""One agent for one state folder: a lock that lives as long as the process."""

import contextlib
import os
from pathlib import Path

import psutil

from covey_agent.keeper.observed import take_lock


class AlreadyRunning(Exception):
    """Another agent has the folder; the words say which."""


def take_folder(folder: Path) -> int:
    """The descriptor of the lock, to be kept open. AlreadyRunning when another process has it; OSError: no lock file.

    The lock is the kernel's and ends with its holder, however that ends; the process id in the file is for people.
    """
    path = folder / "agent.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if not take_lock(lock):
        holder = os.read(lock, 32).decode(errors="replace").strip()
        os.close(lock)
        raise AlreadyRunning(
            f"the folder '{folder}' must have one agent; the one with process id {holder or 'unknown'} "
            f"{_describe_life(holder)} End it first, or name another folder with `--state`."
        )
    # A full disk costs people the id, and nobody the agent.
    with contextlib.suppress(OSError):
        words = f"{os.getpid()}\n".encode()
        os.pwrite(lock, words, 0)
        os.ftruncate(lock, len(words))
    return lock


def _describe_life(holder: str) -> str:
    with contextlib.suppress(psutil.Error, ValueError):
        if psutil.Process(int(holder)).status() == psutil.STATUS_STOPPED:
            return f"is paused (SIGSTOP): `kill -CONT {holder}` lets it go on."
    return "runs."
