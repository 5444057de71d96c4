"""The official SDKs in JavaScript: installed once for all runs of the tests, and run by a script that prints JSON."""

import asyncio
import fcntl
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kit.cache import shared_cache

NODE_SDKS = ("openai@7.59.0", "@anthropic-ai/sdk@1.14.0", "ollama@0.6.4")


def install_sdks() -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("this machine has no Node")
    folder = shared_cache() / "node-sdks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "node-sdks.lock").open("w") as lock:  # test workers come at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").is_file():
            (folder / "package.json").write_text('{"private":true}')
            command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *NODE_SDKS]
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=240)
            (folder / "whole").touch()
    return folder


async def run_script(name: str, folder: Path, url: str) -> Any:
    """What it found; AssertionError with its words when it fails."""
    process = await asyncio.create_subprocess_exec(
        "node",
        str(Path(__file__).with_name(name)),
        url,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, words = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, words.decode()[-2000:]
    return json.loads(output)
