"""What one engine took of the host's memory, at most, with its keeper and its own children.

Linux tells a process's peak (`VmHWM`), pages of its libraries included. Of keeper and children their present share is
added, in which pages that several of them use are divided: their peaks would count those again and again. Elsewhere
nothing is said: an engine on Apple's GPU holds memory that no process shows.

A report is made every few seconds, and an engine at rest has had its peak: then one file tells that nothing changed,
and the forty of its threads, children and keeper are read now and then.
"""

import time
from dataclasses import dataclass
from pathlib import Path

# Processes of one engine that are looked at: one, or one a device.
_MAX_PROCESSES = 64
# How often all of an engine whose peak stays as it is are looked at: a child may have come.
LOOK_SECONDS = 60.0
# Engines that are remembered; one more, and all are looked at anew.
_MAX_ENGINES = 256


@dataclass(frozen=True, slots=True)
class _Look:
    peak_kib: int
    used_bytes: int
    looked_at: float


class Usage:
    """What each engine took when all of it was last looked at."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._looks: dict[int, _Look] = {}

    def observe_used_bytes(self, pid: int) -> int:
        """As `observe_used_bytes`; the shares of keeper and children may be a minute old."""
        peak_kib, now = _fields(self._root / f"proc/{pid}/status").get("VmHWM", 0), time.monotonic()
        known = self._looks.get(pid)
        if known is not None and known.peak_kib == peak_kib and now - known.looked_at < LOOK_SECONDS:
            return known.used_bytes
        if len(self._looks) >= _MAX_ENGINES:
            self._looks.clear()
        look = _Look(peak_kib, observe_used_bytes(self._root, pid), now)
        self._looks[pid] = look
        return look.used_bytes


def observe_used_bytes(root: Path, pid: int) -> int:
    """0 where it isn't known: no such process, another system, or no right to look."""
    status = _fields(root / f"proc/{pid}/status")
    peak_kib, parent = status.get("VmHWM", 0), status.get("PPid", 0)
    if not peak_kib:
        return 0
    others = [parent, *_descendants(root, pid)] if parent > 1 else _descendants(root, pid)
    shares_kib = sum(_fields(root / f"proc/{each}/smaps_rollup").get("Pss", 0) for each in others)
    return (peak_kib + shares_kib) * 1024


def observe_taken_bytes(root: Path, pid: int) -> int:
    """What an engine and its children have of memory now, without pages of files, which the kernel counts as free."""
    every = (_fields(root / f"proc/{each}/status") for each in (pid, *_descendants(root, pid)))
    return sum(each.get("RssAnon", 0) + each.get("RssShmem", 0) for each in every) * 1024


def _descendants(root: Path, pid: int) -> list[int]:
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < _MAX_PROCESSES:
        current = waiting.pop()
        for file in sorted((root / f"proc/{current}/task").glob("*/children"))[:_MAX_PROCESSES]:
            children = [int(word) for word in _text(file).split() if word.isdecimal()]
            found += children
            waiting += children
    return found[:_MAX_PROCESSES]


def _fields(path: Path) -> dict[str, int]:
    """Lines of `Name:  123 kB` by name; what has no number is left out."""
    found: dict[str, int] = {}
    for line in _text(path).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0])
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
