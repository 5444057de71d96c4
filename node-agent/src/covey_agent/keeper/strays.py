"""Processes of an engine that left its group: they made a session of their own, and maybe their parent ended.

A signal to the engine's group misses them, and they would go to the machine's first process, where nobody knows whose
they are. On Linux a keeper takes them in: the kernel gives it every descendant whose parent has ended, so that all that
an engine ever started is below its keeper, and ends with the engine. It needs no right, unlike a control group, which
does the same and holds beyond the keeper's own death.

A keeper that is killed takes only its engine with it: then what had left the group is nobody's. macOS has nothing of
the kind.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
# A killed process is gone within milliseconds, unless it hangs in the kernel: that one is left behind.
END_SECONDS = 2.0
_PAUSE_SECONDS = 0.01


def take_in() -> None:
    """From now on this process is the parent of those whose parent ended, among its descendants."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(engine: int) -> None:
    """Let those go that have ended, but for the engine itself: how that ended is somebody else's to ask."""
    if sys.platform != "linux":
        return
    for child in _children():
        if child != engine:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def end_all() -> None:
    """Every descendant, once the engine has ended and was asked how. While one runs it may start more, so again."""
    if sys.platform != "linux":
        return
    until = time.monotonic() + END_SECONDS
    while found := _descendants():
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= until:
            return
        time.sleep(_PAUSE_SECONDS)
        for child in _children():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def _children() -> list[int]:
    """Of this process, also those that ended and were not let go. It has one thread."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return [pid for pid, parent in _parents().items() if parent == os.getpid()]


def _descendants() -> list[int]:
    """Of this process, the nearest first: a parent that is gone starts no more."""
    if not _children():
        return []
    parents, found = _parents(), [os.getpid()]
    for one in found:
        found += [pid for pid, parent in parents.items() if parent == one]
    return found[1:]


def _parents() -> dict[int, int]:
    """Of every process of the machine."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return found
