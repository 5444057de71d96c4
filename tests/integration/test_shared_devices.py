"""One model over two devices, as the real engine does it: its RPC backend offers two on this machine's processor."""

import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest
from covey_agent.engines.adapter import Adapter
from covey_agent.engines.llama_server import LLAMA_SERVER
from covey_api.engines import Compute
from covey_api.instance import Member
from covey_planner.fit.estimate import cost_formulas
from covey_planner.fit.options import stamp_options
from covey_planner.fit.split import split_formulas
from kit import builders
from kit.loading import KEY, call, read_geometry, wait_ready
from kit.measured import MIB
from kit.planning import wish
from kit.ports import free_port
from kit.real import RealParts, provide_real_parts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SHARES = (12, 18)
WINDOW = 2048


@pytest.fixture(scope="module")
def parts() -> RealParts:
    return provide_real_parts()


@contextlib.contextmanager
def donors(parts: RealParts) -> Generator[list[int]]:
    """Two processes that lend their memory; their ports."""
    ports: list[int] = []
    processes: list[subprocess.Popen[bytes]] = []
    server = parts.program.path.with_name("ggml-rpc-server")
    environment = os.environ | parts.program.environment
    try:
        for _ in SHARES:
            ports.append(free_port())
            argv = [str(server), "-H", "127.0.0.1", "-p", str(ports[-1])]
            processes.append(
                subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
            )
        deadline = time.monotonic() + 60
        while not all(is_open(port) for port in ports):
            assert time.monotonic() < deadline, "the donors must listen"
            time.sleep(0.1)
        yield ports
    finally:
        for process in processes:
            process.kill()
            process.wait(30)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_each_device_takes_what_is_estimated_and_little_less(parts: RealParts, tmp_path: Path) -> None:
    geometry = read_geometry(parts.model)
    options = stamp_options(geometry, cpu_cores=2, context_tokens=WINDOW, slots=2, kv_cache_type=wish().kv_cache_type)
    lane = builders.lane(compute=Compute.CUDA, pool="RPC0", digest="0" * 64)
    formulas = split_formulas(geometry, cost_formulas(geometry, lane, options, 0), ["RPC0", "RPC1"], SHARES)
    costs = tuple(formula.costs(WINDOW) for formula in formulas)
    instance = builders.instance(compute=Compute.CUDA, options=options, members=(Member(node="a", costs=costs),))
    with donors(parts) as ports:
        port = free_port()
        adapter = Adapter(LLAMA_SERVER, httpx.AsyncClient(trust_env=False))
        launch = adapter.render(parts.program, instance, parts.model, tmp_path, port, KEY)
        for name, content in launch.files:
            (tmp_path / name).write_text(content)
        own, *others = launch.argv
        argv = [own, "--rpc", ",".join(f"127.0.0.1:{each}" for each in ports), *others, "-lv", "5"]
        output = tmp_path / "output"
        with output.open("wb") as sink:
            process = subprocess.Popen(argv, stdout=sink, stderr=sink, env=os.environ | launch.environment)
        try:
            wait_ready(process, port, output)
            assert call(port, "POST", "/completion", b'{"prompt": "Hello", "n_predict": 4}', 120) == 200
            text = output.read_text()
        finally:
            process.kill()
            process.wait(30)
    layers = re.findall(r"layer +\d+ assigned to device RPC(\d)", text)
    assert [layers.count(each) for each in "01"] == [SHARES[0], SHARES[1] + 1], "the output counts as one"
    for donor, cost in zip(ports, costs, strict=False):
        parts_of = {"model": cost.weights_bytes, "KV": cost.kv_cache_bytes, "compute": cost.compute_bytes}
        for kind, estimated in parts_of.items():
            (told,) = re.findall(rf"RPC\d\[127\.0\.0\.1:{donor}\] +{kind} buffer size = +([0-9.]+) MiB", text)
            assert float(told) * MIB <= estimated + MIB / 100, (kind, told, estimated / MIB)
            assert estimated <= 1.15 * float(told) * MIB + MIB, (kind, told, estimated / MIB)
