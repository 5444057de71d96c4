"""Ollama's own client in Go, as a program that prints what it read (`go_ollama/main.go`).

To build it takes most of a minute, so it is built where that is asked for (`COVEY_TEST_GO=1`) and kept for all runs.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kit.cache import shared_cache

_SOURCE = Path(__file__).with_name("go_ollama")


def build_client() -> Path:
    content = b"".join(path.read_bytes() for path in sorted(_SOURCE.iterdir()))
    program = shared_cache() / "go-ollama" / hashlib.sha256(content).hexdigest()[:16]
    if program.exists():
        return program
    if shutil.which("go") is None:
        pytest.skip("this machine has no Go")
    if os.environ.get("COVEY_TEST_GO") != "1":
        pytest.skip("not built yet, which takes most of a minute: COVEY_TEST_GO=1")
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / "lock").open("w") as lock:  # test workers come at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            built = program.with_suffix(".new")
            subprocess.run(["go", "build", "-o", str(built), "."], cwd=_SOURCE, check=True, timeout=540)
            built.rename(program)
    return program


async def run_client(program: Path, *urls: str) -> Any:
    """What it found; AssertionError with its words when it fails."""
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(str(program), *urls, **pipes)
    output, words = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, words.decode()[-2000:]
    return json.loads(output)
