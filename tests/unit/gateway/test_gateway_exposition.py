"""The port of `--metrics-listen`, which whoever reaches it may ask."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from covey_gateway import exposition
from covey_gateway.exposition import serve_figures
from covey_gateway.figures import Figures
from covey_gateway.limits import MAX_SCRAPES
from kit.servers import stop_accepting

pytestmark = pytest.mark.anyio

GET = b"GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n"


@asynccontextmanager
async def serving() -> AsyncGenerator[int]:
    bound = socket.create_server(("127.0.0.1", 0))
    server = await serve_figures(bound, Figures())
    try:
        yield bound.getsockname()[1]
    finally:
        await stop_accepting(server)


async def told(port: int, content: bytes) -> bytes:
    """All that comes until the connection ends; nothing where it is cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(content)
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_connection_is_asked_once_and_ends() -> None:
    async with serving() as port:
        for path, status in ((b"/metrics", b"200"), (b"/other", b"404")):
            answer = await told(port, GET.replace(b"/metrics", path))
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b"\r\nconnection: close\r\n" in answer


async def test_who_asks_nothing_is_cut_off_and_so_is_a_head_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "SCRAPE_SECONDS", 0.2)
    async with serving() as port:
        assert await told(port, b"") == b""
        assert await told(port, b"GET /metrics HTTP/1.1\r\nx:") == b""
    monkeypatch.setattr(exposition, "SCRAPE_SECONDS", 60)
    async with serving() as port:
        assert await told(port, b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 20_000) == b""


async def test_connections_are_bounded_and_those_that_end_make_room() -> None:
    async with serving() as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_SCRAPES)]
        assert await told(port, GET) == b""
        for _, writer in idle:
            writer.close()
        answer = b""
        for _ in range(200):
            if answer := await told(port, GET):
                break
            await asyncio.sleep(0.05)
        assert answer.startswith(b"HTTP/1.1 200")
