"""What workers of one gateway cost and bring: CPU of the whole process tree a request, and requests a second. One JSON
line a figure.

`--workers 1` and more (`COVEY_BENCH_WORKERS`, default "1 2") in turns, before the same sixteen stub engines, with a
key, its limits, slots, figures and an access log on. The client and the stubs take CPU too, so requests a second grow
only where cores are left for all of them: CPU a request is the figure to trust.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import peers
import uvloop
from measures.load import find_free_ports, started
from peers import ENDPOINTS, Peer, measure, render, run_here, serve_stubs

COUNTS = [int(each) for each in os.environ.get("COVEY_BENCH_WORKERS", "1 2").split()]
ROUNDS = int(os.environ.get("COVEY_BENCH_ROUNDS", "3"))
REQUESTS = 3200
CONNECTIONS = 32


@contextmanager
def run_workers(ports: list[int], folder: Path, count: int) -> Generator[Peer]:
    flags = () if count == 1 else ("--workers", str(count))
    with run_here(ports, folder, f"workers-{count}", flags=flags) as peer:
        yield peer


async def measure_all(found: dict[int, Peer]) -> None:
    request = render(stream=False, max_tokens=1)
    for number in range(ROUNDS):
        for count, peer in found.items():
            began = time.perf_counter()
            spent, asked = await measure(peer, request, REQUESTS)
            rate = len(asked) / (time.perf_counter() - began)
            for figure, value in (("cpu_per_request_us", spent), ("requests_per_second", rate)):
                line = {"bench": "workers", "figure": figure, "value": round(value, 1), "workers": count}
                print(json.dumps(line | {"round": number, "load": round(os.getloadavg()[0], 1)}), flush=True)


def main() -> None:
    peers.CONNECTIONS = CONNECTIONS
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, ExitStack() as stack:
        if sys.argv[1:2] == ["stubs"]:
            runner.run(serve_stubs([int(port) for port in sys.argv[2:]]))
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = find_free_ports(ENDPOINTS)
        stack.enter_context(started(__file__, "stubs", *map(str, ports)))
        found = {count: stack.enter_context(run_workers(ports, folder, count)) for count in COUNTS}
        runner.run(measure_all(found))


if __name__ == "__main__":
    main()
