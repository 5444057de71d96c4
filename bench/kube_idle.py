"""A fleet at rest on a real API server: what its controllers write in ten minutes, and what they cost meanwhile.

One JSON line. Two controllers as processes, 20 simulated agents with 100 Placements that are all ready, a gateway;
figures are scraped as Prometheus would. Writes are those of the API server's audit log, so nothing that a controller
asks for is missed. Usage: `kube_idle.py [SECONDS]`; 600 by default.
"""

import asyncio
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from kit.documents import model_yaml, placement_yaml
from kit.kube_fleet import KubeFleet, running_kube_fleet
from kit.ports import free_port
from kube import (
    AGENT,
    AGENTS,
    FLEET_AUDIENCE,
    GATEWAY,
    MIB,
    NAMESPACE,
    apply,
    cpu_of,
    is_condition_true,
    pss_bytes,
    say,
)
from testbed.kube.controlplane import ControlPlane, running_control_plane
from testbed.kube.programs import NoPrograms

PLACEMENTS, NODES = 100, 20
IDLE_SECONDS = 600.0
# After the last Placement is ready: Events that are still on their way.
SETTLE_SECONDS = 30.0
READY_SECONDS = 600.0
SCRAPE_SECONDS = 30.0
READING = ("get", "list", "watch")


def count_written(plane: ControlPlane, since: int) -> Counter[str]:
    """Writes by what was written."""
    found: Counter[str] = Counter()
    for request in plane.read_audit(since):
        asked = request.get("objectRef", {})
        if request["verb"] not in READING:
            found["/".join(filter(None, (asked.get("resource"), asked.get("subresource"))))] += 1
    return found


def bind(fleet: KubeFleet, folder: Path, name: str, account: str, namespace: str, pod: str, node: str) -> None:
    fleet.bind_pod(pod, account, namespace, node)
    fleet.write_token(folder / f"{name}.token", account, namespace, FLEET_AUDIENCE, pod)


async def measure(plane: ControlPlane, seconds: float) -> None:
    with running_kube_fleet(plane) as fleet:
        ports = {name: free_port() for name in ("a", "b")}
        replicas = [fleet.start_controller(name, f"--metrics-listen=127.0.0.1:{port}") for name, port in ports.items()]
        leader = fleet.wait_leader()
        folder = fleet.folder / "simulated"
        folder.mkdir()
        shutil.copy(fleet.mount_authority(), folder / "authorities.pem")
        names = [f"n{number:03d}" for number in range(NODES)]
        for name in names:
            bind(fleet, folder, name, AGENT, AGENTS, f"agent-{name}", name)
        bind(fleet, folder, "gateway", GATEWAY, NAMESPACE, "gateway", "system")
        await apply(plane, [model_yaml(), *(placement_yaml(f"p{number:03d}") for number in range(PLACEMENTS))])
        command = [sys.executable, str(Path(__file__).with_name("simulated_agents.py"))]
        command += [f"https://127.0.0.1:{leader.fleet_port}", str(folder), *names]
        agents = await asyncio.create_subprocess_exec(*command)
        try:
            began = time.perf_counter()
            while sum(is_condition_true(each) for each in fleet.list_objects("placements")) < PLACEMENTS:
                assert time.perf_counter() - began < READY_SECONDS, leader.part.tail()
                await asyncio.sleep(1)
            await asyncio.sleep(SETTLE_SECONDS)
            await measure_rest(
                plane, [psutil.Process(each.part.pid) for each in replicas], list(ports.values()), seconds
            )
        finally:
            agents.terminate()
            await agents.wait()


async def measure_rest(plane: ControlPlane, processes: list[psutil.Process], ports: list[int], seconds: float) -> None:
    since = len(plane.read_audit())
    cpu, began = [cpu_of(each) for each in processes], time.perf_counter()
    async with httpx.AsyncClient(timeout=SCRAPE_SECONDS) as client:
        while (left := began + seconds - time.perf_counter()) > 0:
            for port in ports:
                (await client.get(f"http://127.0.0.1:{port}/metrics")).raise_for_status()
            await asyncio.sleep(min(SCRAPE_SECONDS, left))
    wall = time.perf_counter() - began
    say(
        "idle",
        seconds=round(wall),
        placements=PLACEMENTS,
        nodes=NODES,
        **{f"writes_{name}": number for name, number in sorted(count_written(plane, since).items())},
        cpu_percent=round(sum(map(cpu_of, processes)) / wall * 100 - sum(cpu) / wall * 100, 2),
        pss_mib=round(sum(pss_bytes(each.pid) for each in processes) / MIB),
    )


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else IDLE_SECONDS
    try:
        with running_control_plane() as plane:
            asyncio.run(measure(plane, seconds))
    except NoPrograms as error:
        say("idle", skipped=str(error))


if __name__ == "__main__":
    main()
