"""Many slow streams at a time through one gateway: whether all end well, its memory and its CPU a chunk. JSON lines.

Stub engines write one event per stream each tenth of a second, as decoding engines do. The streams begin over a few
seconds, and all are open together for `HELD_SECONDS`. Peak memory is the kernel's (`VmHWM`, resident), of the gateway
alone; late chunks say whether anything here was short of CPU: stubs and client need more of it than the gateway.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import uvloop
from measures.load import Address, find_free_ports, read_cpu_seconds, read_peak_mib, read_pss_mib, started
from peers import ENDPOINTS, render, run_here

from gateway import Stub

STREAMS = int(os.environ.get("COVEY_BENCH_STREAMS", "2000"))
CHUNKS_PER_SECOND = 10
RAMP_SECONDS, HELD_SECONDS = 10, 10
CHUNKS = (RAMP_SECONDS + HELD_SECONDS) * CHUNKS_PER_SECOND
SLOTS = 256


class SlowStub(Stub):
    GAP_SECONDS = 1 / CHUNKS_PER_SECOND


async def serve_stubs(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(SlowStub, "127.0.0.1", port, backlog=1024) for port in ports]
    print(f"listening on http://127.0.0.1:{ports[0]}", file=sys.stderr, flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


class Reader(asyncio.Protocol):
    """Sends a request, counts what comes, and closes at the end of the answer."""

    def __init__(self, request: bytes, ended: "asyncio.Queue[tuple[int, bool]]") -> None:
        self._request = request
        self._ended = ended
        self._events = 0
        self._last = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class, not registered as one
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._events += data.count(b"data: {")
        self._last = (self._last + data)[-32:]
        if self._last.endswith(b"0\r\n\r\n"):
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.put_nowait((self._events, self._last.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")))


async def measure(pid: int, address: Address) -> None:
    loop = asyncio.get_running_loop()
    request = render(stream=True, max_tokens=CHUNKS)
    ended: asyncio.Queue[tuple[int, bool]] = asyncio.Queue()
    began = time.perf_counter()
    for number in range(STREAMS):
        await loop.create_connection(lambda: Reader(request, ended), *address)
        await asyncio.sleep(max(0.0, began + RAMP_SECONDS * (number + 1) / STREAMS - time.perf_counter()))
    spent = read_cpu_seconds(pid)
    await asyncio.sleep(HELD_SECONDS / 2)
    spent = read_cpu_seconds(pid) - spent
    pss = read_pss_mib(pid)
    is_early = ended.empty()
    async with asyncio.timeout(120):
        found = [await ended.get() for _ in range(STREAMS)]
    took = time.perf_counter() - began
    whole = sum(1 for events, is_whole in found if is_whole and events == CHUNKS)
    emit("streams_open_at_a_time", STREAMS if is_early else 0)
    emit("streams_failed", STREAMS - whole)
    emit("pss_mib_while_open", pss)
    emit("peak_resident_mib", read_peak_mib(pid))
    emit("gateway_cpu_percent", 100 * spent / (HELD_SECONDS / 2))
    emit("seconds_late", took - RAMP_SECONDS - CHUNKS / CHUNKS_PER_SECOND)


def emit(figure: str, value: float) -> None:
    load = os.getloadavg()[0]
    print(
        json.dumps({"bench": "streams", "figure": figure, "value": round(value, 2), "load": round(load, 1)}), flush=True
    )


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, ExitStack() as stack:
        if sys.argv[1:2] == ["stubs"]:
            runner.run(serve_stubs([int(port) for port in sys.argv[2:]]))
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = find_free_ports(ENDPOINTS)
        stack.enter_context(started(__file__, "stubs", *map(str, ports)))
        peer = stack.enter_context(run_here(ports, folder, slots=SLOTS))
        runner.run(measure(peer.pid, peer.address))


if __name__ == "__main__":
    main()
