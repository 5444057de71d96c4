"""Processes in words: an engine with its keeper and children, and what each thread waits in, where the system tells."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

# An engine has as many threads as the machine has processors, and a few more.
MAX_THREADS = 64
MAX_PROCESSES = 32


def describe_processes(pid: int) -> str:
    """The keeper (its parent), the engine, and the engine's children; empty when it is gone."""
    try:
        engine = psutil.Process(pid)
        keeper = engine.parent()
        family = [*([keeper] if keeper else []), engine, *engine.children(recursive=True)]
    except psutil.Error:
        return ""
    return "\n".join(line for process in family[:MAX_PROCESSES] for line in _describe(process))


def _describe(process: psutil.Process) -> Iterator[str]:
    try:
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
            yield (
                f"process {process.pid} (parent {process.ppid()}): {process.status()}, "
                f"{times.user + times.system:.1f} s of CPU, {memory.rss} bytes resident, "
                f"{process.num_threads()} threads: {' '.join(process.cmdline())}"
            )
    except psutil.Error as error:
        yield f"process {process.pid}: {type(error).__name__}"
        return
    yield from _describe_threads(process.pid)


def _describe_threads(pid: int) -> Iterator[str]:
    """By /proc: what the kernel calls each thread's place, and its kernel stack where this user may see it."""
    with suppress(OSError):
        for thread in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda each: int(each.name))[:MAX_THREADS]:
            state = _read(thread / "stat").rpartition(")")[2].split()[:1]
            place = _read(thread / "wchan").strip("0") or "running"
            name = _read(thread / "comm").strip()
            yield f"  thread {thread.name} '{name}': {''.join(state)} in {place}"
            yield from (f"    {line}" for line in _read(thread / "stack").splitlines())


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
