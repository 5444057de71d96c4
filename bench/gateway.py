"""What the gateway costs: added latency and CPU. One JSON line a figure.

By itself against a stub engine of its own; with `COVEY_BENCH_ENGINE=http://127.0.0.1:8080` also against a real
llama-server, at 5 requests/s of one token.

Direct and through the gateway in alternating blocks of one run, so that a noisy machine is noisy for both. Latency is
measured at a fixed rate (a late answer delays no later request); CPU is the gateway process's own, from /proc.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop
from measures.load import (
    CHUNKS,
    CPU_CONNECTIONS,
    CPU_REQUESTS,
    CPU_STREAMS,
    Address,
    Connections,
    connections,
    measure_cpu,
    parse_address,
    read_pss_mib,
    render_request,
    started,
)

STUB_RATE = 50.0
ENGINE_RATE = 5.0
BLOCKS = 4
STUB_BLOCK = 150
BUSY_RATE = 500.0
BUSY_BLOCK = 1500
# Of five bytes each.
LONG_WORDS = 40_000
ENGINE_BLOCK = 20


_EVENT = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" word"}}],"created":1,"id":"chatcmpl-1",'
    b'"model":"m","system_fingerprint":"b1","object":"chat.completion.chunk"}\n\n'
)
_DONE = b"data: [DONE]\n\n"
_SINGLE = json.dumps(
    {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0, "message": {}}]}
).encode()


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


class Stub(asyncio.Protocol):
    """Answers at once: `max_tokens` events of a stream, each written by itself, or one answer; a probe too."""

    GAP_SECONDS = 0.002

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self._held = b""

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, end, body = self._held.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        if not end or len(body) < length:
            return
        self._held = b""
        if head.startswith(b"GET"):
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nOK")
            return
        # Of a long one its own time isn't what is measured.
        request = json.loads(body) if length < LONG_WORDS else {"stream": b'"stream":true' in body}
        if not request.get("stream"):
            answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            self._transport.write(answer % (len(_SINGLE), _SINGLE))
            return
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        self._write_events(int(request.get("max_tokens", 1)))

    def _write_events(self, left: int) -> None:
        if self._transport.is_closing():
            return
        if not left:
            self._transport.write(_chunk(_DONE) + b"0\r\n\r\n")
            return
        self._transport.write(_chunk(_EVENT))
        asyncio.get_running_loop().call_later(self.GAP_SECONDS if left > 1 else 0, self._write_events, left - 1)


async def serve_stub() -> None:
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
    await server.serve_forever()


@contextmanager
def gateway_before(engine: Address, model: str) -> Generator[tuple[int, Address]]:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.json"
        endpoint = {"url": f"http://{engine[0]}:{engine[1]}", "slots": 64}
        table.write_text(json.dumps({"models": [{"name": model, "endpoints": [endpoint]}]}))
        with started("-m", "covey_gateway", "--table", str(table), "--listen", "127.0.0.1:0") as found:
            yield found


async def measure_block(address: Address, request: bytes, count: int, rate: float) -> list[float]:
    """Latencies in milliseconds of `count` requests at a fixed rate; of streams, of their first chunk."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []

    async def ask_at(pool: Connections, at: float) -> None:
        await asyncio.sleep(at - loop.time())
        start = time.perf_counter()  # uvloop's own clock has steps of 1 ms
        latencies.append((await pool.ask_timed(request) - start) * 1000)

    async with connections(address) as pool:
        await pool.ask(request)
        start = loop.time() + 0.05
        async with asyncio.timeout(60 + count / rate), asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(ask_at(pool, start + number / rate))
    return latencies


async def measure_latency(
    name: str, direct: Address, through: Address, request: bytes, count: int, rate: float
) -> None:
    found: dict[str, list[float]] = {"direct": [], "through": []}
    for _ in range(BLOCKS):
        found["direct"] += await measure_block(direct, request, count, rate)
        found["through"] += await measure_block(through, request, count, rate)
    figures = {
        kind: {"p50": statistics.median(values), "p99": statistics.quantiles(values, n=100)[98]}
        for kind, values in found.items()
    }
    for part in ("p50", "p99"):
        emit(f"{name}_added_{part}_ms", figures["through"][part] - figures["direct"][part], rate_per_second=rate)
        emit(f"{name}_direct_{part}_ms", figures["direct"][part], rate_per_second=rate)


def emit(figure: str, value: float, **conditions: object) -> None:
    print(json.dumps({"bench": "gateway", "figure": figure, "value": round(value, 3)} | conditions), flush=True)


async def measure_stub(pid: int, stub: Address, through: Address) -> None:
    single = render_request("m", stream=False, max_tokens=1)
    stream = render_request("m", stream=True, max_tokens=3)
    long = render_request("m", stream=False, max_tokens=1, words=LONG_WORDS)
    await measure_latency("stub", stub, through, single, STUB_BLOCK, STUB_RATE)
    await measure_latency("busy", stub, through, single, BUSY_BLOCK, BUSY_RATE)
    await measure_latency("first_chunk", stub, through, stream, STUB_BLOCK, STUB_RATE)
    await measure_latency("long_prompt", stub, through, long, ENGINE_BLOCK * 2, STUB_RATE / 5)
    single_us = await measure_cpu(pid, through, single, CPU_REQUESTS)
    short_us = await measure_cpu(pid, through, render_request("m", stream=True, max_tokens=1), CPU_REQUESTS)
    long_us = await measure_cpu(pid, through, render_request("m", stream=True, max_tokens=CHUNKS + 1), CPU_STREAMS)
    emit("cpu_per_request_us", single_us, connections=CPU_CONNECTIONS)
    emit("cpu_per_stream_us", long_us, chunks=CHUNKS + 1)
    emit("cpu_per_streamed_chunk_us", (long_us - short_us) / CHUNKS)
    emit("pss_mib", read_pss_mib(pid))


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if sys.argv[1:] == ["stub"]:
            runner.run(serve_stub())
            return
        with started(__file__, "stub") as (_, stub), gateway_before(stub, "m") as (pid, through):
            runner.run(measure_stub(pid, stub, through))
        if url := os.environ.get("COVEY_BENCH_ENGINE"):
            engine = parse_address(url)
            with gateway_before(engine, "engine") as (_, through):
                request = render_request("engine", stream=False, max_tokens=1)
                runner.run(measure_latency("engine", engine, through, request, ENGINE_BLOCK, ENGINE_RATE))


if __name__ == "__main__":
    main()
