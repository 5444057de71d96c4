"""What a request and a streamed chunk cost here, at nginx, vllm-router and LiteLLM's proxy. One JSON line a figure.

Each with one worker before the same sixteen stub engines, asked by the same client with the same key, in turns and in
several rounds of one run. CPU is of the whole process tree, from /proc: the figure to trust where others use the
machine too. The gateway has a key, sixteen endpoints, its figures and an access log on; nginx passes bytes on.

Peers come from where `COVEY_BENCH_PEERS` says (default `~/.cache/covey-bench`): `python -m venv router`, in it
`vllm-router`; `litellm`, in it `litellm[proxy]`; nginx from PATH. What isn't there is left out, and said.
`COVEY_BENCH_BEFORE`: the Python of another checkout, whose gateway is measured in the same turns.
"""

import asyncio
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from measures.load import Address, Connections, connections, find_free_ports, read_cpu_seconds, started

from gateway import Stub

ENDPOINTS = 16
ROUNDS = int(os.environ.get("COVEY_BENCH_ROUNDS", "2"))
CONNECTIONS = 8
REQUESTS = int(os.environ.get("COVEY_BENCH_REQUESTS", "1600"))
STREAMS, CHUNKS = REQUESTS // 20, 50
# LiteLLM takes some forty milliseconds a request.
SLOW = {"litellm": 20}
KEY = "sk-covey-bench-0123456789abcdef0123456789abcdef"
FOLDER = Path(os.environ.get("COVEY_BENCH_PEERS", Path.home() / ".cache/covey-bench"))


class PacedStub(Stub):
    GAP_SECONDS = 0.005


async def serve_stubs(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(PacedStub, "127.0.0.1", port) for port in ports]
    print(f"listening on http://127.0.0.1:{ports[0]}", file=sys.stderr, flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    pid: int
    address: Address


def read_tree_cpu_seconds(pid: int) -> float:
    """Of a process and all below it."""
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return read_cpu_seconds(pid) + sum(read_tree_cpu_seconds(child) for child in children)


def render(*, stream: bool, max_tokens: int) -> bytes:
    messages = [{"role": "user", "content": "word " * 120}]
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": max_tokens, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def run_here(
    ports: list[int],
    folder: Path,
    name: str = "covey",
    python: str = sys.executable,
    flags: tuple[str, ...] = (),
    slots: int = 8,
) -> Generator[Peer]:
    table = folder / "table.json"
    endpoints = [{"url": f"http://127.0.0.1:{port}", "slots": slots} for port in ports]
    keys = [{"name": "bench", "hash": "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()}]
    table.write_text(json.dumps({"models": [{"name": "m", "endpoints": endpoints}], "keys": keys}))
    argv = ("-m", "covey_gateway", "--table", str(table), "--listen", "127.0.0.1:0", *flags)
    with started(*argv, "--access-log", str(folder / f"{name}.access.log"), python=python) as (pid, address):
        yield Peer(name, pid, address)


@contextmanager
def run(name: str, port: int, folder: Path, *argv: str) -> Generator[Peer]:
    with (folder / f"{name}.log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            yield Peer(name, process.pid, ("127.0.0.1", port))
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def run_nginx(ports: list[int], folder: Path) -> Generator[Peer]:
    (port,) = find_free_ports(1)
    servers = " ".join(f"server 127.0.0.1:{each};" for each in ports)
    config = f"""
        worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx-error.log;
        events {{ worker_connections 4096; }}
        http {{
          access_log {folder}/nginx-access.log; client_body_temp_path {folder}; proxy_temp_path {folder};
          upstream engines {{ {servers} keepalive 64; }}
          server {{
            listen 127.0.0.1:{port}; keepalive_requests 1000000;
            location / {{
              proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
            }}
          }}
        }}"""
    (folder / "nginx.conf").write_text(config)
    with run("nginx", port, folder, "nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")) as peer:
        yield peer


@contextmanager
def run_router(ports: list[int], folder: Path) -> Generator[Peer]:
    port, figures = find_free_ports(2)
    urls = [f"http://127.0.0.1:{each}" for each in ports]
    argv = [
        str(FOLDER / "router/bin/vllm-router"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--policy",
        "round_robin",
    ]
    argv += ["--prometheus-port", str(figures), "--log-level", "warning", "--worker-urls", *urls]
    with run("vllm-router", port, folder, *argv) as peer:
        yield peer


@contextmanager
def run_litellm(ports: list[int], folder: Path) -> Generator[Peer]:
    (port,) = find_free_ports(1)
    models = [
        {
            "model_name": "m",
            "litellm_params": {"model": "openai/m", "api_base": f"http://127.0.0.1:{each}/v1", "api_key": "-"},
        }
        for each in ports
    ]
    (folder / "litellm.json").write_text(json.dumps({"model_list": models, "general_settings": {"master_key": KEY}}))
    argv = [str(FOLDER / "litellm/bin/litellm"), "--config", str(folder / "litellm.json"), "--host", "127.0.0.1"]
    with run("litellm", port, folder, *argv, "--port", str(port), "--num_workers", "1") as peer:
        yield peer


async def wait_ready(peer: Peer, request: bytes) -> None:
    async with asyncio.timeout(300):
        while True:
            try:
                async with asyncio.timeout(30), connections(peer.address) as pool:
                    await pool.ask(request)
                return
            except (OSError, AssertionError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.5)


async def measure(peer: Peer, request: bytes, count: int) -> tuple[float, list[float]]:
    """CPU microseconds a request, and each one's milliseconds."""
    milliseconds: list[float] = []

    async def ask_many(pool: Connections) -> None:
        for _ in range(count // CONNECTIONS):
            began = time.perf_counter()
            await pool.ask(request)
            milliseconds.append((time.perf_counter() - began) * 1000)

    async with connections(peer.address) as pool, asyncio.timeout(300):
        await asyncio.gather(*(pool.ask(request) for _ in range(CONNECTIONS)))
        before = read_tree_cpu_seconds(peer.pid)
        await asyncio.gather(*(ask_many(pool) for _ in range(CONNECTIONS)))
        spent = read_tree_cpu_seconds(peer.pid) - before
    return spent / len(milliseconds) * 1e6, milliseconds


def emit(figure: str, value: float, **conditions: object) -> None:
    print(json.dumps({"bench": "peers", "figure": figure, "value": round(value, 3)} | conditions), flush=True)


async def measure_peer(peer: Peer, number: int) -> None:
    slow = SLOW.get(peer.name, 1)
    count = REQUESTS // slow
    began = time.perf_counter()
    spent, milliseconds = await measure(peer, render(stream=False, max_tokens=1), count)
    where = {"peer": peer.name, "round": number}
    emit("cpu_per_request_us", spent, **where)
    emit("requests_per_second", count / (time.perf_counter() - began), **where, connections=CONNECTIONS)
    emit("request_p50_ms", statistics.median(milliseconds), **where)
    emit("request_p99_ms", statistics.quantiles(milliseconds, n=100)[98], **where)
    short, _ = await measure(peer, render(stream=True, max_tokens=1), count)
    emit("cpu_per_stream_of_one_token_us", short, **where)
    long, _ = await measure(peer, render(stream=True, max_tokens=CHUNKS + 1), max(CONNECTIONS, STREAMS // slow))
    emit("cpu_per_streamed_chunk_us", (long - short) / CHUNKS, **where)


def find_peers() -> list[str]:
    there = {"nginx": shutil.which("nginx"), "vllm-router": FOLDER / "router/bin/vllm-router"}
    there["litellm"] = FOLDER / "litellm/bin/litellm"
    for name, path in there.items():
        if path is None or not Path(path).exists():
            print(json.dumps({"bench": "peers", "left_out": name}), flush=True)
    return [name for name, path in there.items() if path is not None and Path(path).exists()]


async def measure_all(peers: list[Peer]) -> None:
    for peer in peers:
        await wait_ready(peer, render(stream=False, max_tokens=1))
    for number in range(ROUNDS):
        for peer in peers:
            await measure_peer(peer, number)


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, ExitStack() as stack:
        if sys.argv[1:2] == ["stubs"]:
            runner.run(serve_stubs([int(port) for port in sys.argv[2:]]))
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = find_free_ports(ENDPOINTS)
        stack.enter_context(started(__file__, "stubs", *map(str, ports)))
        starts = {"nginx": run_nginx, "vllm-router": run_router, "litellm": run_litellm}
        peers = [stack.enter_context(starts[name](ports, folder)) for name in find_peers()]
        if before := os.environ.get("COVEY_BENCH_BEFORE"):
            peers.append(stack.enter_context(run_here(ports, folder, "before", before)))
        peers.append(stack.enter_context(run_here(ports, folder)))
        runner.run(measure_all(peers))


if __name__ == "__main__":
    main()
