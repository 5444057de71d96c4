"""Ranks of mlx-lm as their adapter starts them, without keepers: which models can be ranks, and one that stops."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from covey_agent.engines.adapter import Adapter
from covey_agent.engines.mlx import MLX
from covey_agent.engines.packages import SERVE
from covey_agent.engines.servers.mlx_ring import RING_STUCK
from covey_agent.engines.servers.mlx_weights import INDEX
from covey_agent.ports import EngineProgram, Ring
from covey_api.engines import EngineName
from covey_api.instance import Costs, EngineOptions, Member, MemberRole
from covey_planner.fit.ranks import RING_FAMILIES
from covey_planner.types import ShapeKind
from kit import builders
from kit.fleet import wait_until
from kit.ports import free_port
from kit.real_engines import mlx_model, mlx_packages

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

KEY = "key-of-the-ring"
SECONDS = 120.0


def test_models_that_are_planned_as_rings_are_those_that_the_engine_has_as_such() -> None:
    package = mlx_packages() / "mlx_lm"
    aliases = dict(re.findall(r'^    "(\w+)": "(\w+)",', (package / "utils.py").read_text(), re.MULTILINE))
    needed = {ShapeKind.PIPELINE: r"class \w+\((\w+, )*PipelineMixin", ShapeKind.TENSOR: r"^    def shard\(self"}
    for kind, families in RING_FAMILIES.items():
        for family in families:
            text = (package / "models" / f"{aliases.get(family, family)}.py").read_text()
            assert re.search(needed[kind], text, re.MULTILINE), f"{family} as {kind}"


@contextmanager
def ranks(folder: Path, *flags: str) -> Generator[tuple[list["subprocess.Popen[bytes]"], list[int]]]:
    """Two, linked without a tunnel; their processes and ports."""
    flags_of_python = ("-I", "-S", str(SERVE), "Mlx", "--packages", str(mlx_packages()))
    blas = sorted(Path("/usr/lib").glob("*/libopenblas.so.0"))
    environment = {"LD_PRELOAD": str(blas[0])} if blas else {}
    program = EngineProgram(Path(sys.executable), environment, "1", "d", flags_of_python)
    members = tuple(
        Member(name=str(rank), node=name, role=MemberRole.RANK, costs=(Costs(layers=layers),))
        for rank, (name, layers) in enumerate((("a", 20), ("b", 10)))
    )
    options = EngineOptions(context_tokens=512, slots=1, micro_batch_tokens=128)
    instance = builders.instance(engine=EngineName.MLX, options=options, members=members)
    weights = folder / "weights"
    weights.mkdir()
    for each in mlx_model("ministral3").iterdir():
        if each.name != INDEX:  # as many a checkpoint of one file: mlx-lm wants it of a pipeline all the same
            (weights / each.name).symlink_to(each)
    rings, ports = [free_port(), free_port()], [free_port(), free_port()]
    adapter = Adapter(MLX, httpx.AsyncClient(trust_env=False))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, port in enumerate(ports):
            home = folder / str(rank)
            home.mkdir()
            ring = Ring(rank, rings[rank], rings[1 - rank])
            launch = adapter.render(program, instance, weights, home, port, KEY, ring=ring)
            for name, content in launch.files:
                (home / name).write_text(content)
            environment = {"PATH": os.environ["PATH"], "HOME": str(folder)} | launch.environment
            with (home / "log").open("wb") as log:
                processes.append(subprocess.Popen((*launch.argv, *flags), env=environment, stdout=log, stderr=log))
        yield processes, ports
    finally:
        for process in processes:
            process.kill()
            process.wait()


def is_well(port: int) -> bool:
    async def ask() -> str:
        async with httpx.AsyncClient(trust_env=False) as http:
            return await Adapter(MLX, http).explain_unwell(port)

    return not asyncio.run(ask())


def ask(port: int) -> int:
    """Tokens of an answer."""
    body = {"max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"authorization": f"Bearer {KEY}"}
    answer = httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False)
    count: int = answer.json()["usage"]["completion_tokens"]
    return count


def test_a_rank_that_stands_still_ends_the_others_though_nothing_is_asked(tmp_path: Path) -> None:
    with ranks(tmp_path, "--step-seconds", "3") as (processes, ports):
        wait_until(lambda: all(map(is_well, ports)), "both ranks have loaded", SECONDS)
        assert ask(ports[0]) == 4
        processes[1].send_signal(signal.SIGSTOP)
        assert processes[0].wait(SECONDS) == RING_STUCK
        said = (tmp_path / "0" / "log").read_text()
        _, words = Adapter(MLX, httpx.AsyncClient(trust_env=False)).classify_exit(RING_STUCK, said)
        assert "rank 0 failed after 3 s without a step: another one is stuck" in words
