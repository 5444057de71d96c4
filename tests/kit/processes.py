"""Processes that tests start: which are there, whether they are gone, what they take."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

DOUBLE = Path(__file__).parent / "engine_double.py"


def engine_double(folder: Path, **knobs: str) -> Path:
    """The engine double as one executable file, as an `EngineProgram` wants it; its knobs are set in it."""
    program = folder / "engine-double"
    exports = "".join(f"export DOUBLE_{name.upper()}='{value}'\n" for name, value in knobs.items())
    program.write_text(f'#!/bin/sh\n{exports}exec "{sys.executable}" -I -S "{DOUBLE}" "$@"\n')
    program.chmod(0o700)
    return program


def processes_of(folder: Path) -> list[psutil.Process]:
    """Living processes whose working directory or arguments are inside this folder."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            words = [process.cwd(), *process.cmdline()]
            is_alive = process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if is_alive and process.pid != psutil.Process().pid and any(str(folder) in word for word in words):
            found.append(process)
    return found


def wait_for(is_so: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def assert_none_left(folder: Path) -> None:
    wait_for(lambda: not processes_of(folder), f"every process of {folder} ends; {processes_of(folder)}")


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def observe_pss_bytes(pid: int) -> int:
    """Memory of one process with its share of what it shares; on macOS, which tells none, what it alone has."""
    info = psutil.Process(pid).memory_full_info()
    return getattr(info, "pss", info.uss)
