"""A TCP proxy that can be slow, cut its connections, or refuse new ones: the network between a client and a server."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from kit.servers import stop_accepting

CHUNK_BYTES = 16_384


@dataclass
class TcpProxy:
    """Listens on loopback and passes bytes to `target_port` on loopback."""

    target_port: int
    port: int = 0
    delay_seconds: float = 0.0
    """Before each chunk, both ways."""
    is_open: bool = True
    """False: connections are accepted and ended at once."""
    accepted: int = 0
    """Connections so far."""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def cut(self) -> None:
        """End every connection now."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.accepted += 1
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self.is_open:
                await self._pass(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def close(self) -> None:
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        self._writers.add(far_writer)
        try:
            both = (self._copy(reader, far_writer), self._copy(far_reader, writer))
            _, pending = await asyncio.wait(
                [asyncio.ensure_future(each) for each in both], return_when=asyncio.FIRST_COMPLETED
            )
            for each in pending:
                each.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        finally:
            self._writers.discard(far_writer)
            far_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                writer.write(chunk)
                await writer.drain()


@contextlib.asynccontextmanager
async def running_proxy(target_port: int) -> AsyncGenerator[TcpProxy]:
    proxy = TcpProxy(target_port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = int(server.sockets[0].getsockname()[1])
    try:
        yield proxy
    finally:
        await stop_accepting(server)
        await proxy.close()
        await server.wait_closed()
