"""The kube store on a real API server: latency, a full resync, what an idle controller costs, writes per instance.

One JSON line a figure. Agents are simulated and start no engine. The API server is the test bed's (`make kube`). Wall
times say as much of the machine as of the code. Latency and resync: store, loop and board in this process. Steady
state: the controller as a process of its own, agents in another one; CPU and memory are the controller's.
"""

import asyncio
import json
import os
import re
import shutil
import ssl
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from covey_api.instance import Instance
from covey_api.messages import REPORT_SECONDS
from covey_api.placement import Placement
from covey_controller.stores.kube.store import KubeStore
from kit import builders
from kit.documents import model_yaml, placement_yaml
from kit.kube import running_kube_store, until
from kit.kube_fleet import AGENT, AGENTS, FLEET_AUDIENCE, GATEWAY, NAMESPACE, JsonObject, running_kube_fleet
from kit.live import Control, controller
from kit.worlds import FakeAgent
from testbed.kube.controlplane import ControlPlane, running_control_plane
from testbed.kube.programs import NoPrograms

ROUNDS = 30
MODELS, PLACEMENTS, NODES = 500, 500, 100
IDLE_SECONDS = 60.0
SETTLED_SECONDS = 240.0
# A list of all Placements is work for the API server, on the same cores.
LOOK_SECONDS = 5.0
API = "/apis/covey.dev/v1alpha1"
MIB = 2**20


def say(name: str, **figures: float | str) -> None:
    print(json.dumps({"bench": f"kube.{name}", "load_1m": round(os.getloadavg()[0], 1), **figures}), flush=True)


def count_writes(plane: ControlPlane) -> int:
    """Writes that the API server took of Covey's kinds and of Events."""
    with plane.client() as client:
        text = client.get("/metrics").raise_for_status().text
    lines = re.findall(r"^apiserver_request_total\{(.*)\} (\d+)", text, re.MULTILINE)
    ours = [(labels, int(number)) for labels, number in lines if 'group="covey.dev"' in labels or '"events"' in labels]
    return sum(number for labels, number in ours if re.search('verb="(POST|PUT|PATCH|APPLY|DELETE)"', labels))


def pss_bytes(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024


def placement_body(name: str) -> dict[str, object]:
    metadata = {"name": name, "namespace": "default"}
    spec = {"modelRef": {"name": "smollm2"}, "replicas": 1}
    return {"apiVersion": "covey.dev/v1alpha1", "kind": "Placement", "metadata": metadata, "spec": spec}


def has_instance(store: KubeStore, placement: str) -> Callable[[], bool]:
    return lambda: any(isinstance(o, Instance) and o.spec.placement == placement for o in store.sync.objects.values())


def is_ready(store: KubeStore, placement: str) -> Callable[[], bool]:
    return lambda: any(
        isinstance(item, Placement) and item.metadata.name == placement and item.status.ready_replicas == 1
        for item in store.sync.objects.values()
    )


async def measure_assigned(plane: ControlPlane, control: Control[KubeStore]) -> None:
    """POST of a Placement to its Instance stored, one after the other."""
    walls: list[float] = []
    async with httpx.AsyncClient(
        base_url=plane.url,
        verify=ssl.create_default_context(cafile=str(plane.authority)),
        headers={"authorization": f"Bearer {plane.token}"},
    ) as client:
        await client.get("/version")
        before = count_writes(plane)
        for number in range(ROUNDS):
            name = f"p{number:02d}"
            began = time.perf_counter()
            answer = await client.post(f"{API}/namespaces/default/placements", json=placement_body(name))
            answer.raise_for_status()
            await until(has_instance(control.store, name), 60)
            walls.append(time.perf_counter() - began)
            await until(is_ready(control.store, name), 60)
        await asyncio.sleep(2)
        # The benchmark's own POST is not the controller's.
        writes = (count_writes(plane) - before - ROUNDS) / ROUNDS
    say("assigned", p50_ms=round(statistics.median(walls) * 1000, 1), worst_ms=round(max(walls) * 1000, 1))
    say("writes_per_instance", writes=round(writes, 1))


async def measure_resync(plane: ControlPlane) -> None:
    """From nothing to every object listed and parsed."""
    cpu, wall = time.process_time(), time.perf_counter()
    async with running_kube_store(plane, leads=False) as store:
        await store.sync.listed.wait()
        say(
            "resync",
            objects=len(store.sync.objects),
            wall_s=round(time.perf_counter() - wall, 2),
            cpu_s=round(time.process_time() - cpu, 2),
        )


async def measure_steady(plane: ControlPlane, documents: list[str]) -> None:
    """A controller with everything placed and nothing to do."""
    with running_kube_fleet(plane) as fleet:
        replica = fleet.start_controller("a")
        fleet.wait_leader()
        folder = fleet.folder / "simulated"
        folder.mkdir()
        shutil.copy(fleet.mount_authority(), folder / "authorities.pem")
        names = [f"n{number:03d}" for number in range(NODES)]
        for name in names:
            fleet.bind_pod(f"agent-{name}", AGENT, AGENTS, name)
            fleet.write_token(folder / f"{name}.token", AGENT, AGENTS, FLEET_AUDIENCE, f"agent-{name}")
        fleet.bind_pod("gateway", GATEWAY, NAMESPACE, "system")
        fleet.write_token(folder / "gateway.token", GATEWAY, NAMESPACE, FLEET_AUDIENCE, "gateway")
        await apply(plane, documents)
        command = [sys.executable, str(Path(__file__).with_name("simulated_agents.py"))]
        command += [f"https://127.0.0.1:{replica.fleet_port}", str(folder), *names]
        agents = await asyncio.create_subprocess_exec(*command)
        try:
            began = time.perf_counter()
            while sum(is_condition_true(each) for each in fleet.list_objects("placements")) < PLACEMENTS:
                assert time.perf_counter() - began < SETTLED_SECONDS, replica.part.tail()
                await asyncio.sleep(LOOK_SECONDS)
            process = psutil.Process(replica.part.pid)
            say("all_ready", placements=PLACEMENTS, wall_s=round(time.perf_counter() - began, 1), cpu_s=cpu_of(process))
            await asyncio.sleep(20)
            cpu, wall = cpu_of(process), time.perf_counter()
            await asyncio.sleep(IDLE_SECONDS)
            cpu, wall = cpu_of(process) - cpu, time.perf_counter() - wall
            reports = (NODES + 1) * wall / REPORT_SECONDS
            say(
                "steady",
                cpu_percent=round(cpu / wall * 100, 2),
                cpu_ms_per_report=round(cpu / reports * 1000, 3),
                rss_mib=round(process.memory_info().rss / MIB),
                pss_mib=round(pss_bytes(process.pid) / MIB),
            )
        finally:
            agents.terminate()
            await agents.wait()


def is_condition_true(placement: JsonObject) -> bool:
    conditions = placement.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return round(times.user + times.system, 2)


async def apply(plane: ControlPlane, documents: list[str]) -> None:
    for first in range(0, len(documents), 100):
        text = "---\n".join(documents[first : first + 100])
        await asyncio.to_thread(plane.kubectl, "apply", "--server-side", "-f", "-", text=text)


async def run(plane: ControlPlane) -> None:
    await asyncio.to_thread(plane.kubectl, "apply", "--server-side", "-f", "-", text=model_yaml())
    async with running_kube_store(plane, leads=False) as store:
        agents = [FakeAgent(f"n{number}", total_bytes=64 * builders.GIB) for number in range(4)]
        async with controller(store, *agents) as control:
            await asyncio.sleep(15)
            await measure_assigned(plane, control)
    plane.clear("default")
    documents = [model_yaml(f"m{number:03d}") for number in range(MODELS)]
    documents += [placement_yaml(f"p{number:03d}") for number in range(PLACEMENTS)]
    documents[0] = model_yaml()
    await apply(plane, documents)
    await measure_resync(plane)
    await measure_steady(plane, documents)


def main() -> None:
    try:
        with running_control_plane() as plane:
            asyncio.run(run(plane))
    except NoPrograms as error:
        print(json.dumps({"bench": "kube", "skipped": str(error)}))


if __name__ == "__main__":
    main()
