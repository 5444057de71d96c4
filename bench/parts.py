"""A large file by one connection and by several at once, from a server that gives each connection so much, in turn: one
JSON line a figure.

The server is a process of its own, on loopback. `limit` is what it gives one connection, in MB/s; 0: all it can.

Usage: `parts.py [MIB [ROUNDS]]`.
"""

import asyncio
import hashlib
import json
import os
import socketserver
import statistics
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from covey_agent.artifacts import parts
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.web import SERVER, Patience, Web
from covey_agent.ports import Transfer

MIB, ROUNDS = 512, 3
LIMITS = (20, 0)
PIECE_BYTES = 256 * 1024


class Handler(socketserver.StreamRequestHandler):
    """`GET /LIMIT` of the one file, by ranges."""

    path: Path

    def handle(self) -> None:
        size_bytes = self.path.stat().st_size
        with self.path.open("rb") as file:
            while line := self.rfile.readline():
                limit = int(line.split()[1][1:]) * 1_000_000
                start, end, status = 0, size_bytes, "200 OK"
                while (head := self.rfile.readline().strip().lower()) and head:
                    if head.startswith(b"range: bytes="):
                        first, _, last = head.partition(b"=")[2].partition(b"-")
                        start, end = int(first), int(last) + 1 if last else size_bytes
                        status = f"206 Partial Content\r\nContent-Range: bytes {start}-{end - 1}/{size_bytes}"
                words = f'HTTP/1.1 {status}\r\nContent-Length: {end - start}\r\nETag: "one"\r\n\r\n'
                self.wfile.write(words.encode())
                self._send(file.fileno(), start, end, limit)

    def _send(self, file: int, at: int, end: int, limit: int) -> None:
        began, first = time.monotonic(), at
        while at < end:
            at += os.sendfile(self.connection.fileno(), file, at, min(PIECE_BYTES, end - at))
            if limit:
                time.sleep(max(0.0, (at - first) / limit - (time.monotonic() - began)))


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


def serve(path: Path, ready: Connection) -> None:
    with Server(("127.0.0.1", 0), type("One", (Handler,), {"path": path})) as server:
        ready.send(server.server_address[1])
        server.serve_forever()


async def fetch(folder: Path, remote: Remote) -> None:
    cache, web = Cache(folder), Web(IndexSettings(url="http://127.0.0.1:1"), Patience())
    try:
        await Downloader(web, cache).download(remote, ignore)
    finally:
        await web.close()


def ignore(transfer: Transfer) -> None: ...


def measure(folder: Path, remote: Remote, size_mib: int) -> tuple[float, float]:
    """MB/s, and CPU seconds a GB."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        began, cpu = time.perf_counter(), time.process_time()
        asyncio.run(fetch(Path(own), remote))
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
    return size_mib * 1.048576 / seconds, used / (size_mib * 1.048576 / 1000)


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    size_mib, rounds = (*given, *(MIB, ROUNDS)[len(given) :])
    split_bytes = parts.SPLIT_BYTES
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        digest = hashlib.sha256()
        with (folder / "file").open("wb") as file:
            for _ in range(size_mib):
                piece = os.urandom(2**20)
                digest.update(piece)
                file.write(piece)
        ours, theirs = get_context("spawn").Pipe()
        server = get_context("spawn").Process(target=serve, args=(folder / "file", theirs), daemon=True)
        server.start()
        port: int = ours.recv()
        try:
            for limit in LIMITS:
                url = f"http://127.0.0.1:{port}/{limit}"
                remote = Remote(url, "file", digest.hexdigest(), size_mib * 2**20, SERVER)
                found: dict[str, list[tuple[float, float]]] = {"one": [], "parts": []}
                for _ in range(rounds):
                    for name, least_bytes in (("one", sys.maxsize), ("parts", split_bytes)):
                        parts.SPLIT_BYTES = least_bytes
                        found[name].append(measure(folder, remote, size_mib))
                figures = {
                    f"{name}_{what}": round(statistics.median(each[number] for each in runs), 2)
                    for name, runs in found.items()
                    for number, what in enumerate(("mb_per_second", "cpu_seconds_per_gb"))
                }
                print(json.dumps({"measure": "parts", "limit_mb_per_second": limit, **figures}), flush=True)
        finally:
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
