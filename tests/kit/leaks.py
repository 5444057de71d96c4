"""What an agent holds: processes, ports, descriptors, files, memory. The same before and after, or something leaked."""

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from kit.processes import is_running, processes_of

# An interpreter keeps some of what it took for a while; a leak of an engine's output or of its model is far beyond.
MEMORY_BYTES = 12 * 2**20
# A member's end is told first, and its files and connections go within milliseconds.
SETTLE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Held:
    """By one agent and all that it started."""

    processes: frozenset[int]
    ports: frozenset[int]
    """On which they listen."""
    descriptors: int
    """The agent's own: files, pipes, links to keepers. Its HTTP connections come and go, and are pooled."""
    files: frozenset[str]


def observe_held(agent: int, folder: Path, ignored: Iterable[str] = ()) -> Held:
    """`folder`: all that the agent may write; `ignored`: names of files in it that come and go by themselves."""
    found = processes_of(folder)
    return Held(
        processes=frozenset(process.pid for process in found),
        ports=frozenset(port for process in found for port in _listening(process)),
        descriptors=psutil.Process(agent).num_fds() - len(psutil.Process(agent).net_connections("inet")),
        files=frozenset(_files(folder, tuple(ignored))),
    )


def _files(folder: Path, ignored: tuple[str, ...]) -> Iterator[str]:
    for at, folders, names in os.walk(folder):  # which passes over a folder that goes meanwhile
        for name in (*folders, *names):
            path = Path(at, name).relative_to(folder)
            if not any(each in path.parts for each in ignored):
                yield str(path)


def _settled(agent: int, folder: Path, ignored: tuple[str, ...]) -> Held:
    """What is there for a moment only isn't held: a program that is asked for its devices, a file before its rename."""
    deadline, before = time.monotonic() + SETTLE_SECONDS, observe_held(agent, folder, ignored)
    while True:
        time.sleep(0.5)
        held = observe_held(agent, folder, ignored)
        if held == before:
            return held
        assert time.monotonic() < deadline, f"the agent comes to no rest: {before}, then {held}"
        before = held


def _listening(process: psutil.Process) -> list[int]:
    try:
        return [each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    except psutil.Error:
        return []


def memory_bytes(pid: int) -> int:
    return psutil.Process(pid).memory_info().rss


class Leaks:
    """Begin before a story; `assert_none` after it."""

    def __init__(self, agent: int, folder: Path, ignored: Iterable[str] = ()) -> None:
        self._agent, self._folder, self._ignored = agent, folder, tuple(ignored)
        self._before, self._memory_bytes = _settled(agent, folder, self._ignored), memory_bytes(agent)

    def assert_none(self) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while (held := observe_held(self._agent, self._folder, self._ignored)) != self._before:
            assert time.monotonic() < deadline, self._explain(held)
            time.sleep(0.05)
        assert is_running(self._agent)
        grown = memory_bytes(self._agent) - self._memory_bytes
        assert grown < MEMORY_BYTES, f"the agent's memory grew by {grown} bytes"

    def _explain(self, held: Held) -> str:
        changed = [each.name for each in fields(Held) if getattr(held, each.name) != getattr(self._before, each.name)]
        return "\n".join(
            f"{name}: {getattr(self._before, name)} before, {getattr(held, name)} after" for name in changed
        )
