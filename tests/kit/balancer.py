"""What a Service of Kubernetes does, for processes on one machine: each connection goes to one of the backends in turn.

It knows nothing of readiness: a backend that takes no connection is left out for that connection, one that takes it
and is silent gets it, as a pod that is paused does until its probe has failed.
"""

import asyncio
import threading
from contextlib import suppress

from kit.servers import stop_accepting

CONNECT_SECONDS = 2.0
CHUNK_BYTES = 65_536


class Balancer:
    """`backends`: ports on this machine by name; may be changed at any time."""

    def __init__(self) -> None:
        self.backends: dict[str, int] = {}
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="balancer", daemon=True)
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = listening.result(timeout=10)
        self._open: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    def cut(self) -> None:
        """End every connection: their clients dial again."""
        self._loop.call_soon_threadsafe(self._cancel_all)

    def _cancel_all(self) -> None:
        for task in list(self._open):
            task.cancel()

    async def _end(self) -> None:
        await stop_accepting(self._server)
        self._cancel_all()
        await asyncio.gather(*self._open, return_exceptions=True)
        await asyncio.sleep(0.1)  # aborted transports let go of their sockets in the loop's next turns

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if (backend := await self._dial()) is not None:
                try:
                    await _join(reader, writer, *backend)
                finally:
                    backend[1].transport.abort()
        except OSError:
            pass
        finally:
            writer.transport.abort()
            self._open.discard(task)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        ports = list(self.backends.values())
        self._turn += 1
        for offset in range(len(ports)):
            port = ports[(self._turn + offset) % len(ports)]
            with suppress(OSError):
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await asyncio.open_connection("127.0.0.1", port)
        return None


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    other_reader: asyncio.StreamReader,
    other_writer: asyncio.StreamWriter,
) -> None:
    """Until either side has ended."""
    pumps = [asyncio.ensure_future(_pump(reader, other_writer)), asyncio.ensure_future(_pump(other_reader, writer))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
