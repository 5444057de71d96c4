"""Between a client and a gateway: passes bytes on untouched and keeps them, for looking at whole exchanges."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, cast

CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Exchange:
    method: str
    path: str
    """Without the query."""
    request_headers: dict[str, str]
    status: int
    kind: str
    """The media type, without its parameters."""
    body: bytes


class Wiretap:
    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._kept: list[tuple[bytearray, bytearray]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def read(self) -> list[Exchange]:
        """All that were answered whole; what broke off in the midst is left out."""
        return [each for asked, answered in self._kept for each in read_exchanges(bytes(asked), bytes(answered))]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        asked, answered = bytearray(), bytearray()
        self._kept.append((asked, answered))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            there = asyncio.ensure_future(copy(reader, far_writer, asked))
            back = asyncio.ensure_future(copy(far_reader, writer, answered))
            _, pending = await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
            for each in pending:
                each.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        except asyncio.CancelledError:
            pass  # asyncio's streams would print it
        finally:
            self._tasks.discard(task)
            far_writer.transport.abort()
            writer.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(CHUNK_BYTES):
            kept += piece
            writer.write(piece)
            await writer.drain()


@contextlib.asynccontextmanager
async def tapped(target_port: int) -> AsyncGenerator[Wiretap]:
    tap = Wiretap(target_port)
    server = await asyncio.start_server(tap.serve, "127.0.0.1", 0)
    tap.port = int(server.sockets[0].getsockname()[1])
    try:
        yield tap
    finally:
        server.close()
        await tap.close()
        await server.wait_closed()


class _Source(io.BytesIO):
    """What `HTTPResponse` takes for a socket, with several answers in a row."""

    def makefile(self, mode: str) -> "_Source":
        assert mode == "rb"
        return self

    def close(self) -> None:
        pass


def read_exchanges(asked: bytes, answered: bytes) -> list[Exchange]:
    found: list[Exchange] = []
    source = _Source(answered)
    while asked and source.tell() < len(answered):
        head, _, rest = asked.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        asked = rest[int(headers.get("content-length", "0")) :]
        answer = HTTPResponse(cast(Any, source), method=method)
        try:
            answer.begin()
            body = answer.read()
        except HTTPException:  # it broke off
            break
        kind = answer.headers.get_content_type()
        found.append(Exchange(method, target.partition("?")[0], headers, answer.status, kind, body))
    return found


def read_events(body: bytes) -> list[Any]:
    """The data of server-sent events; `[DONE]` as it is."""
    data = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    return ["[DONE]" if each == b"[DONE]" else json.loads(each) for each in data]
