"""What a controller with nothing to do costs, by its parts' CPU: 100 agents and a gateway that report every 4 s.

One JSON line a figure. The controller is a process of its own on a folder of YAML, so there is no API server in it; the
simulated agents are another process, start no engine, and say how much memory is free, as agents do. CPU holds where
wall times don't: it is what the kernel counted for the controller's process.

Usage: `rest.py [PLACEMENTS [NODES]]`.
"""

import asyncio
import json
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from covey.control import Control
from covey_api.messages import REPORT_SECONDS
from kit.documents import model_yaml, placement_yaml

PLACEMENTS, NODES = 500, 100
SETTLED_SECONDS = 240.0
# A controller's first half minute has moments that are due.
QUIET_SECONDS = 45.0
REST_SECONDS = 60.0
LOOK_SECONDS = 2.0
MIB = 2**20


def say(name: str, **figures: float | str) -> None:
    print(json.dumps({"bench": f"rest.{name}", "load": round(os.getloadavg()[0], 1), **figures}), flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def count_turns(port: int) -> int:
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    found = re.findall(r"^covey_controller_reconcile_turns_total\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(int(float(number)) for number in found)


@asynccontextmanager
async def running(log: Path, *command: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=written)
        try:
            yield process
        finally:
            process.terminate()
            await process.wait()


async def wait_started(*paths: Path) -> None:
    deadline = time.monotonic() + SETTLED_SECONDS
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, "it must start"
        await asyncio.sleep(LOOK_SECONDS / 10)


async def wait_ready(state: Path, placements: int) -> None:
    """Every Placement is Ready, as the control API tells."""
    deadline = time.monotonic() + SETTLED_SECONDS
    while await asyncio.to_thread(count_ready, state) < placements:
        assert time.monotonic() < deadline, "it must settle"
        await asyncio.sleep(LOOK_SECONDS)


def count_ready(state: Path) -> int:
    with Control(state) as control:
        items = control.list_objects("placements")
    conditions = (item["status"].get("conditions", ()) for item in items)
    return sum(any(c["type"] == "Ready" and c["status"] == "True" for c in each) for each in conditions)


def write_source(folder: Path, placements: int) -> None:
    folder.mkdir()
    models = [model_yaml(), *(model_yaml(f"m{number:03d}") for number in range(1, placements))]
    (folder / "models.yaml").write_text("---\n".join(models))
    wishes = [placement_yaml(f"p{number:03d}") for number in range(placements)]
    (folder / "placements.yaml").write_text("---\n".join(wishes))


def write_tokens(state: Path, folder: Path, names: list[str]) -> None:
    folder.mkdir()
    with Control(state) as control:
        for role, holders in (("agent", names), ("gateway", ["gateway"])):
            wish = {"role": role, "uses": len(holders), "ttlSeconds": 3600}
            token = control.call("POST", "/api/v1/tokens", wish)["token"]
            for name in holders:
                (folder / f"{name}.token").write_text(token)


async def run(home: Path, placements: int, nodes: int) -> None:
    source, state, folder, port = home / "source", home / "state", home / "agents", free_port()
    write_source(source, placements)
    command = ["-m", "covey_controller", "--source", str(source), "--state", str(state)]
    command += ["--fleet-listen", "127.0.0.1:0", "--metrics-listen", f"127.0.0.1:{port}"]
    async with running(home / "controller.log", *command) as controller:
        fleet = state / "controller" / "fleet.json"
        await wait_started(fleet, state / "control.sock")
        names = [f"n{number:03d}" for number in range(nodes)]
        write_tokens(state, folder, names)
        url = json.loads(fleet.read_text())["url"]
        process = psutil.Process(controller.pid)
        agents = str(Path(__file__).with_name("simulated_agents.py"))
        async with running(home / "agents.log", agents, url, str(folder), *names):
            await wait_ready(state, placements)
            say("ready", placements=placements, nodes=nodes, cpu_s=round(cpu_of(process), 2))
            await asyncio.sleep(QUIET_SECONDS)
            await measure(process, port, nodes)


async def measure(process: psutil.Process, port: int, nodes: int) -> None:
    turns, cpu, began = await count_turns(port), cpu_of(process), time.monotonic()
    await asyncio.sleep(REST_SECONDS)
    cpu, seconds = cpu_of(process) - cpu, time.monotonic() - began
    reports = (nodes + 1) * seconds / REPORT_SECONDS
    say(
        "steady",
        cpu_percent=round(cpu / seconds * 100, 2),
        cpu_ms_per_report=round(cpu / reports * 1000, 3),
        turns=await count_turns(port) - turns,
        rss_mib=round(process.memory_info().rss / MIB),
    )


def main() -> None:
    chosen = [int(each) for each in sys.argv[1:]]
    placements, nodes = (*chosen, *(PLACEMENTS, NODES)[len(chosen) :])
    # Unix sockets have short paths.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rest-") as home:
        asyncio.run(run(Path(home), placements, nodes))


if __name__ == "__main__":
    main()
