"""llama-server with a real model, started once for the tests of a module."""

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
from covey_gateway.routing.table import Target
from integration.gateway_rig import target
from kit.ports import free_port
from kit.real import provide_real_parts

KEY = "engine-key-of-this-test"


@contextmanager
def started_engine(folder: Path, *arguments: str, slots: int = 2) -> Generator[Target]:
    parts = provide_real_parts()
    (folder / "key").write_text(KEY)
    port = free_port()
    argv = [str(parts.program.path), "-m", str(parts.model), "--alias", "m", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "-np", str(slots), "-ngl", "0", "-t", "1", "--cache-ram", "0", "--no-webui"]
    argv += ["--no-context-shift", "--slots", "--api-key-file", str(folder / "key"), *arguments]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=os.environ | parts.program.environment, stdout=log, stderr=log)
    try:
        wait_ready(f"http://127.0.0.1:{port}", process, folder / "log")
        yield target(port, key=KEY, slots=slots, engine="LlamaServer")
    finally:
        process.kill()
        process.wait(10)


def wait_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    with httpx.Client(transport=httpx.HTTPTransport(retries=5)) as client:
        for _ in range(300):
            assert process.poll() is None, log.read_text()[-2000:]
            try:
                if client.get(f"{url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
    raise AssertionError("the engine did not become ready within a minute")
