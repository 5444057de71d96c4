"""An endless answer of JSON lines that ends for exactly four causes: the lines end, the peer goes or stops reading, one
of the given ends comes (the process stops, the certificate is refused).

A slow reader holds one line in memory, not a queue: the next line is asked for when the last one is on its way.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from covey_api.messages import KEEPALIVE
from covey_api.meta import Message
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from covey_controller.serving.protocol import connection_of

# A reader that takes nothing for this long has lost us anyway: it would have counted three keep-alives as missing.
SEND_SECONDS = 15.0
_CLOSE_SECONDS = 1.0


class LineStream(Response):
    """`lines` yield whole lines with their end; each of `ends` returns when the stream must end."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[bytes], *ends: Callable[[], Awaitable[object]]) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._lines = lines
        self._ends = ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        is_stalled = await self._send_until_end(receive, send)
        if is_stalled:
            connection_of(scope).abort()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            connection_of(scope).abort()

    async def _send_until_end(self, receive: Receive, send: Send) -> bool:
        """True when the reader took nothing for too long."""
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._send_lines(send))
            waiting = [group.create_task(_wait(end)) for end in (lambda: _wait_disconnected(receive), *self._ends)]
            await asyncio.wait([sending, *waiting], return_when=asyncio.FIRST_COMPLETED)
            for task in (sending, *waiting):
                task.cancel()
        return not sending.cancelled() and sending.result()

    async def _send_lines(self, send: Send) -> bool:
        async with aclosing(self._lines) as lines:
            async for line in lines:
                try:
                    async with asyncio.timeout(SEND_SECONDS):
                        await send({"type": "http.response.body", "body": line, "more_body": True})
                except TimeoutError:
                    return True
        return False


async def render_snapshots(snapshots: AsyncIterator[Message | None]) -> AsyncGenerator[bytes]:
    """A line per snapshot, a keep-alive line per None. The source is closed with the stream: it counts its readers."""
    try:
        async for snapshot in snapshots:
            yield KEEPALIVE if snapshot is None else render_line(snapshot)
    finally:
        if isinstance(snapshots, AsyncGenerator):
            await snapshots.aclose()


def render_line(message: Message) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"


async def _wait(end: Callable[[], Awaitable[object]]) -> None:
    await end()


async def _wait_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
