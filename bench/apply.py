"""How long a wish takes to become a stored Instance. One JSON line a figure.

A real controller process with its control socket and its fleet API; one node, which joins over mutual TLS, reports much
memory and an engine, and starts nothing. Measured to the moment at which a watch shows the Instance: it is stored then.

`apply`: from the request of an apply. `save`: from the end of the rest that follows a saved file.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx
from covey_api.engines import Compute, EngineName, Lane, LaneState
from covey_api.messages import AskAnswer, Assignments, CertificateRole, Report, ReportAnswer
from covey_api.model import Archive, Geometry, ResolvedArtifact
from covey_api.node import MemoryPool, NodeFacts
from covey_controller.stores.files.rest import REST_SECONDS
from covey_fleet_client.client import FleetClient
from covey_fleet_client.identity import load_identity
from covey_fleet_client.join import ensure_joined

ROUNDS = 30
NODE = "bench"
GIB = 2**30
SOURCE = "file:///models/m.gguf"
MODEL = f"""apiVersion: covey.dev/v1alpha1
kind: Model
metadata: {{name: m}}
spec:
  tasks: [Chat]
  variants: [{{name: q4, format: Gguf, source: "{SOURCE}", engines: [LlamaServer]}}]
"""
GEOMETRY = Geometry(
    architecture="llama",
    weights_bytes=GIB // 8,
    layer_count=30,
    context_tokens=2048,
    embedding_length=576,
    head_count=9,
    vocabulary_size=49_152,
    kv_head_counts=(3,) * 30,
    key_length=64,
    value_length=64,
)
ARTIFACT = ResolvedArtifact(
    source=SOURCE,
    name="m.gguf",
    size_bytes=GIB // 8,
    archive=Archive(filename="m.whl", sha256="a" * 64, size_bytes=GIB // 8),
)


def render_placement(name: str) -> str:
    return (
        "apiVersion: covey.dev/v1alpha1\nkind: Placement\n"
        f"metadata: {{name: {name}}}\nspec: {{modelRef: {{name: m}}, context: {{tokens: 512}}, concurrency: 1}}\n"
    )


@asynccontextmanager
async def running_controller(folder: Path) -> AsyncGenerator[tuple[Path, httpx.AsyncClient, str]]:
    """Its source, its control API and the address of its fleet API."""
    source, state = folder / "source", folder / "state"
    source.mkdir()
    (source / "model.yaml").write_text(MODEL)
    flags = ("--source", str(source), "--state", str(state), "--fleet-listen", "127.0.0.1:0")
    command = (sys.executable, "-m", "covey_controller", *flags)
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            transport = httpx.AsyncHTTPTransport(uds=str(state / "control.sock"))
            async with httpx.AsyncClient(transport=transport, base_url="http://covey", timeout=30) as control:
                await wait_ready(control)
                yield source, control, json.loads((state / "controller" / "fleet.json").read_text())["url"]
        finally:
            process.terminate()


async def wait_ready(control: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if (await control.get("/readyz")).is_success:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


async def be_node(fleet: FleetClient) -> None:
    """Report, and answer the one ask for the model's header."""
    facts = NodeFacts(
        os="linux", architecture="x86_64", cpu_cores=8, pools=(MemoryPool(name="Host", total_bytes=4096 * GIB),)
    )
    lane = Lane(engine=EngineName.LLAMA_SERVER, compute=Compute.CPU, state=LaneState.INSTALLED)

    async def report() -> None:
        sequence = 0
        while True:
            sequence += 1
            told = Report(
                boot_id="b", sequence=sequence, version="1", full=True, facts=facts, lanes=(lane,), blobs=(), members=()
            )
            await fleet.post(f"nodes/{NODE}/report", told, ReportAnswer)
            await asyncio.sleep(2)

    async def answer() -> None:
        async with aclosing(fleet.stream(f"nodes/{NODE}/assignments")) as lines:
            async for line in lines:
                for ask in Assignments.model_validate_json(line).asks:
                    told = AskAnswer(id=ask.id, artifact=ARTIFACT, geometry=GEOMETRY)
                    await fleet.put(f"nodes/{NODE}/asks/{ask.id}", told)

    async with asyncio.TaskGroup() as group:
        group.create_task(report())
        group.create_task(answer())


async def wait_stored(instances: AsyncIterator[str], placement: str) -> float:
    """When the watch shows the first Instance of the Placement."""
    async with asyncio.timeout(60):
        async for line in instances:
            change = json.loads(line)
            if change and change["object"]["spec"]["placement"] == placement:
                return time.perf_counter()
    raise AssertionError("the watch ended")


async def measure(source: Path, control: httpx.AsyncClient) -> None:
    applied: list[float] = []
    saved: list[float] = []
    async with control.stream("GET", "/api/v1/watch", params={"plural": "instances"}) as watch:
        instances = watch.aiter_lines()
        for number in range(ROUNDS + 1):
            name = f"apply{number}"
            start = time.perf_counter()
            answer = await control.post("/api/v1/apply", json={"text": render_placement(name), "name": "bench"})
            answer.raise_for_status()
            applied.append(await wait_stored(instances, name) - start)
            name = f"save{number}"
            (source / f"{name}.yaml").write_text(render_placement(name))
            start = time.perf_counter() + REST_SECONDS
            saved.append(await wait_stored(instances, name) - start)
    # The first of each waits for the model's header too.
    for name, seconds in (("apply", applied[1:]), ("save", saved[1:])):
        ordered = sorted(seconds)
        figure = {
            "bench": f"{name} to Instance stored",
            "rounds": len(ordered),
            "p50_ms": round(statistics.median(ordered) * 1000, 1),
            "p90_ms": round(ordered[len(ordered) * 9 // 10] * 1000, 1),
            "max_ms": round(ordered[-1] * 1000, 1),
        }
        print(json.dumps(figure), flush=True)


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="covey-bench-") as name:
        async with running_controller(Path(name)) as (source, control, url):
            body = {"role": "agent", "uses": 1, "ttlSeconds": 600}
            token = (await control.post("/api/v1/tokens", json=body)).raise_for_status().json()["token"]
            folder = Path(name) / "node"
            folder.mkdir(mode=0o700)
            identity = await ensure_joined(load_identity(folder), url, CertificateRole.AGENT, NODE, token)
            async with FleetClient(identity, url) as fleet, asyncio.TaskGroup() as group:
                node = group.create_task(be_node(fleet))
                await measure(source, control)
                node.cancel()


if __name__ == "__main__":
    asyncio.run(main())
