"""What benchmarks of the request path share: children, kept connections, CPU and memory from /proc."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

CPU_CONNECTIONS = 8
CPU_REQUESTS = 4000
CPU_STREAMS = 400
CHUNKS = 50

Address = tuple[str, int]


@contextmanager
def started(*arguments: str, python: str = sys.executable) -> Generator[tuple[int, Address]]:
    """A child's process id and the address it says it listens on."""
    with subprocess.Popen([python, *arguments], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if "listening on" in line)
            yield process.pid, parse_address(line.split()[-1])
        finally:
            process.kill()


def parse_address(url: str) -> Address:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def find_free_ports(count: int) -> list[int]:
    """Of loopback; free a moment ago."""
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in bound]


class Connections:
    """Kept-alive connections to one address; as many as there are requests at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, request: bytes) -> None:
        await self.ask_timed(request)

    async def ask_timed(self, request: bytes) -> float:
        """When the first chunk of a stream had come, by `perf_counter`; of another answer its end."""
        first_at = 0.0
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(*self._address)
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200"), head
        if b"content-length: " in head:
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        else:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
                first_at = first_at or time.perf_counter()
            await reader.readexactly(2)
        self._idle.append((reader, writer))
        return first_at or time.perf_counter()

    def close(self) -> None:
        for _, writer in self._idle:
            writer.transport.abort()
        self._idle.clear()


@asynccontextmanager
async def connections(address: Address) -> AsyncGenerator[Connections]:
    made = Connections(address)
    try:
        yield made
    finally:
        made.close()


def render_request(model: str, *, stream: bool, max_tokens: int, words: int = 120) -> bytes:
    """0.7 kB of body, as a short conversation has."""
    messages = [{"role": "user", "content": "word " * words}]
    body = json.dumps({"model": model, "messages": messages, "max_tokens": max_tokens, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def read_cpu_seconds(pid: int) -> float:
    """Time on a CPU of all threads, in nanosecond steps (`stat` has steps of 10 ms)."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def read_pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def read_peak_mib(pid: int) -> float:
    """The most that was resident at a time."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


async def measure_cpu(pid: int, address: Address, request: bytes, count: int) -> float:
    """CPU microseconds of the process per request, with `CPU_CONNECTIONS` at a time."""

    async def ask_many(pool: Connections) -> None:
        for _ in range(count // CPU_CONNECTIONS):
            await pool.ask(request)

    async with connections(address) as pool, asyncio.timeout(120):
        await asyncio.gather(*(pool.ask(request) for _ in range(CPU_CONNECTIONS)))
        before = read_cpu_seconds(pid)
        await asyncio.gather(*(ask_many(pool) for _ in range(CPU_CONNECTIONS)))
        return (read_cpu_seconds(pid) - before) / count * 1e6
