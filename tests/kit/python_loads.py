"""Loads of the engines in Python: what is predicted in all, beside the peak of the process tree.

They print no sizes of their buffers, so the whole is all there is to compare. Each is filled: every slot gets a prompt
that leaves little of its window, since MLX's cache grows with what is in it.
"""

import asyncio
import concurrent.futures
import os
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from covey_agent.engines.adapter import Adapter, Description
from covey_agent.engines.llama_cpp import LLAMA_CPP
from covey_agent.engines.mlx import MLX
from covey_agent.engines.packages import PythonSource
from covey_agent.engines.recipes import llama_cpp_recipe, mlx_recipe
from covey_agent.ports import EngineProgram
from covey_api.companion import CompanionRole
from covey_api.engines import Compute, EngineName, KvCacheType, Lane, LaneState
from covey_api.instance import EngineOptions, StampedCompanion
from covey_api.model import Geometry
from covey_planner.fit.estimate import estimate_costs
from covey_planner.fit.options import stamp_options
from covey_planner.geometry.checkpoint import parse_checkpoint
from covey_planner.geometry.safetensors import parse_directory
from pydantic import BaseModel, TypeAdapter

from kit import builders
from kit.loading import KEY, peak_bytes, read_geometry
from kit.measured import MIB, ROOT
from kit.ports import free_port
from kit.real import provide_real_parts
from kit.real_engines import environment_of, mlx_model

FIXTURE = ROOT / "tests" / "unit" / "planner" / "measured_python_loads.json"
TABLE_START = "<!-- Python engines: written by tools/estimator_table.py -->\n"
TABLE_END = "<!-- end of Python engines -->\n"
READY_SECONDS = 300
PROMPT_SECONDS = 900
# Of the window, left for the template and the answer.
SPARE_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Wish:
    engine: EngineName
    window: int
    slots: int
    kv_cache_type: KvCacheType = KvCacheType.F16


_CPP, _MLX = EngineName.LLAMA_CPP, EngineName.MLX
WISHES = (
    # One sequence at a time, as the planner stamps it (`choice.ways.slots_of`).
    *(Wish(_CPP, 512, 1), Wish(_CPP, 2048, 1), Wish(_CPP, 8192, 1)),
    Wish(_CPP, 2048, 1, KvCacheType.Q8_0),
    *(Wish(_MLX, 512, 1), Wish(_MLX, 1024, 4), Wish(_MLX, 2048, 1), Wish(_MLX, 1024, 2)),
)


class WholeLoad(BaseModel):
    """One load of an engine that reports no parts."""

    engine: EngineName
    geometry: Geometry
    options: EngineOptions
    peak_bytes: int

    def predicted_bytes(self) -> int:
        lane = Lane(engine=self.engine, compute=Compute.CPU, state=LaneState.INSTALLED, version="1", digest="0" * 64)
        (costs,) = estimate_costs(self.geometry, lane, self.options, 0)
        return costs.total_bytes


_LOADS = TypeAdapter(tuple[WholeLoad, ...])


def parse_loads(text: str) -> tuple[WholeLoad, ...]:
    return _LOADS.validate_json(text)


def render_loads(loads: Sequence[WholeLoad]) -> str:
    return _LOADS.dump_json(tuple(loads), indent=1, by_alias=True).decode() + "\n"


def render_table(loads: Sequence[WholeLoad]) -> str:
    """Markdown, in MiB."""
    rows = ["| engine | window x slots | KV | total | peak | total / peak |", "|---|---|---|---|---|---|"]
    for load in loads:
        options, total = load.options, load.predicted_bytes()
        rows.append(
            f"| {load.engine} | {options.context_tokens} x {options.slots} | {options.kv_cache_type} "
            f"| {total / MIB:.0f} | {load.peak_bytes / MIB:.0f} | {total / load.peak_bytes:.2f} |"
        )
    return "\n".join(rows) + "\n"


async def measure(wish: Wish) -> WholeLoad:
    """Start it as the agent does, fill every slot, read the peak, end it."""
    description, weights, geometry, program = await prepare(wish.engine)
    options = stamp_options(
        geometry,
        cpu_cores=2,
        context_tokens=wish.window,
        slots=wish.slots,
        kv_cache_type=wish.kv_cache_type,
    )
    with tempfile.TemporaryDirectory() as folder, running(description, program, weights, options, folder) as started:
        process, port = started
        with concurrent.futures.ThreadPoolExecutor(wish.slots) as pool:
            asked = [pool.submit(_prompt, port, wish.window) for _ in range(wish.slots)]
            for status in [each.result() for each in asked]:
                assert status == 200, f"a prompt within the window must be answered; got {status}"
        return WholeLoad(engine=wish.engine, geometry=geometry, options=options, peak_bytes=peak_bytes(process.pid))


async def prepare(engine: EngineName) -> tuple[Description, Path, Geometry, EngineProgram]:
    recipe = llama_cpp_recipe() if engine is _CPP else mlx_recipe()
    assert recipe is not None, f"{engine} can't be had on this machine"
    weights = await asyncio.to_thread(_provide_weights, engine)
    async with environment_of(recipe) as environment:
        source = PythonSource(engine, lambda: environment, (Compute.CPU,), os.environ, is_at_home=True)
        program = await source.ensure(None, lambda _: None)
    if engine is _CPP:
        return LLAMA_CPP, weights, read_geometry(weights), program
    tensors = weights / "model.safetensors"
    with tensors.open("rb") as file:
        directory = parse_directory(file.read(2**20), tensors.stat().st_size)
    return MLX, weights, parse_checkpoint((weights / "config.json").read_bytes(), directory), program


def _provide_weights(engine: EngineName) -> Path:
    return provide_real_parts().model if engine is _CPP else mlx_model()


@contextmanager
def running(
    description: Description,
    program: EngineProgram,
    weights: Path,
    options: EngineOptions,
    folder: str,
    draft: Path | None = None,
) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    port = free_port()
    beside = () if draft is None else (StampedCompanion(role=CompanionRole.DRAFT, artifact=builders.artifact()),)
    instance = builders.instance(options=options, engine=description.engine, companions=beside)
    adapter = Adapter(description, httpx.AsyncClient(trust_env=False))
    launch = adapter.render(program, instance, weights, Path(folder), port, KEY, () if draft is None else (draft,))
    for name, content in launch.files:
        (Path(folder) / name).write_text(content)
    output = Path(folder) / "output"
    with output.open("wb") as sink:
        process = subprocess.Popen(launch.argv, stdout=sink, stderr=sink, env=os.environ | launch.environment)
    try:
        _wait_ready(process, port, output)
        yield process, port
    finally:
        process.kill()
        process.wait(30)


def _wait_ready(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the engine ended with {process.returncode}:\n{output.read_text()[-2000:]}"
        try:
            heads = {"authorization": f"Bearer {KEY}"}
            if httpx.get(f"http://127.0.0.1:{port}/health", headers=heads, timeout=30).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"the engine was not ready within {READY_SECONDS} s")


def _prompt(port: int, window: int) -> int:
    """Words that are a token each."""
    words = " hello" * (window - SPARE_TOKENS)
    body = {
        "model": builders.instance().spec.model,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": 2,
    }
    heads = {"authorization": f"Bearer {KEY}"}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    return httpx.post(url, json=body, headers=heads, timeout=PROMPT_SECONDS).status_code
