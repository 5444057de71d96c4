"""Answers that no server should give, and more downloads than there are connections, over real sockets."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.web import Web
from kit.artifact_rig import QUICK

pytestmark = pytest.mark.integration

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def asked(answer: Answer) -> AsyncGenerator[tuple[Web, str]]:
    """A client, and the address of a server that answers so."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/file"
    web = Web(IndexSettings(url=url), QUICK)
    try:
        yield web, url
    finally:
        await web.close()
        server.close()
        await server.wait_closed()


def test_bodies_that_take_hours_hold_up_no_header(tmp_path: Path) -> None:
    """Eight of them come; a page is read all the same, and a ninth body waits for its turn."""
    begun, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_page = b"/page" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhe")
        await writer.drain()
        if not is_page:
            begun.release()
            await may_end.wait()
        writer.write(b"ad")
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        async with asyncio.timeout(30), asked(answer) as (web, url):

            async def take() -> bytes:
                async with web.open_body(url, {}) as response:
                    return await response.aread()

            async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
                eight = [await stack.enter_async_context(web.open_body(url, {})) for _ in range(8)]
                for _ in eight:
                    await begun.acquire()
                ninth = group.create_task(take())
                _, page = await web.read(f"{url}/page", {}, 100)
                assert page == b"head"
                # Longer than a connection of a full pool is waited for.
                await asyncio.sleep(QUICK.stall_seconds * 1.5)
                assert not ninth.done()
                may_end.set()
                assert await eight[0].aread() == b"head"
                await stack.aclose()
                assert await ninth == b"head"

    asyncio.run(scenario())
