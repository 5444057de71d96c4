"""The wires between members and the controller: real messages as their JSON, delayed, lost, cut, late, held back.

A call is answered once or not at all, even when it arrives twice; a stream is a connection whose lines keep their
order. Who dials a controller that isn't there is refused at once; who waits for one that is paused, or behind a cut,
runs into its own deadline.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from random import Random
from typing import Protocol, TypeVar

from covey_api.messages import KEEPALIVE, STREAM_SILENCE_SECONDS
from covey_api.meta import Message
from covey_fleet_client.calls import CALL_SECONDS, parse_answer
from covey_fleet_client.errors import FleetError, FleetErrorKind

from covey_simulator.loop import Process, wait_until
from covey_simulator.story import Story

Answer = TypeVar("Answer", bound=Message)
# A LAN with a busy controller; spikes are faults.
DELAY_SECONDS = (0.001, 0.02)
SPIKE_SECONDS = (0.2, 14.0)
# How long a server's writes are repeated before it takes the other side for gone.
SEND_SECONDS = 15.0


class Server(Protocol):
    """The controller's end."""

    process: Process
    number: int
    """Of all that were started."""

    def serve(self, peer: str, method: str, path: str, body: bytes) -> bytes: ...

    def open_lines(self, peer: str, path: str) -> AsyncGenerator[bytes]: ...


class Link:
    """One member's way to the controller."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.is_cut = False
        self.is_dead = False
        """Whether the member's machine has lost its power: nobody is left there to close anything."""
        self.spike_share = 0.0
        self.loss_share = 0.0
        self.repeat_share = 0.0
        self.connections: list[Connection] = []
        self.disturbed_at = 0.0


class Connection:
    """One open stream, as both ends see it."""

    def __init__(self, link: Link, controller: Server) -> None:
        self.link = link
        self.controller = controller
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue(1024)
        self.held: list[bytes | None] = []
        self.last_arrival = 0.0
        self.pump: asyncio.Task[None] | None = None
        self.is_closed = False


class Network:
    def __init__(self, random: Random, story: Story, tap: Callable[[str, int, bytes], None]) -> None:
        """`tap` sees each line of a stream as it reaches its member, and from which controller."""
        self.controller: Server | None = None
        self._random = random
        self._story = story
        self._tap = tap
        self._loop = asyncio.get_running_loop()

    def delay_seconds(self, link: Link) -> float:
        if link.spike_share and self._random.random() < link.spike_share:
            return self._random.uniform(*SPIKE_SECONDS)
        return self._random.uniform(*DELAY_SECONDS)

    def is_lost(self, link: Link) -> bool:
        return link.is_cut or (link.loss_share > 0 and self._random.random() < link.loss_share)

    def call(self, link: Link, method: str, path: str, body: bytes) -> asyncio.Future[bytes]:
        answer: asyncio.Future[bytes] = self._loop.create_future()
        if not self.is_lost(link):
            self._loop.call_later(self.delay_seconds(link), self._arrive, link, method, path, body, answer)
            if link.repeat_share and self._random.random() < link.repeat_share:
                # As a proxy repeats what it thinks lost; each is delayed by itself.
                self._loop.call_later(self.delay_seconds(link), self._arrive, link, method, path, body, answer)
        return answer

    def _arrive(self, link: Link, method: str, path: str, body: bytes, answer: asyncio.Future[bytes]) -> None:
        controller = self.controller
        if link.is_cut:
            return
        if controller is None or controller.process.is_dying:
            self._loop.call_later(self.delay_seconds(link), fail, answer, "nobody listens there")
        elif controller.process.is_paused:
            controller.process.receive(partial(self._arrive, link, method, path, body, answer))
        else:
            self._story.count(body)
            content = controller.process.context.run(controller.serve, link.peer, method, path, body)
            if not self.is_lost(link):
                self._loop.call_later(self.delay_seconds(link), self._return, link, answer, content)

    def _return(self, link: Link, answer: asyncio.Future[bytes], content: bytes) -> None:
        if not link.is_cut and not answer.done():
            answer.set_result(content)

    async def open(self, link: Link, path: str) -> Connection:
        async with asyncio.timeout(CALL_SECONDS):
            await asyncio.sleep(self.delay_seconds(link))
            await wait_until(lambda: not link.is_cut and not self._is_paused(), 0.5)
        controller = self.controller
        if controller is None or controller.process.is_dying:
            raise ConnectionRefusedError("nobody listens there")
        connection = Connection(link, controller)
        link.connections.append(connection)
        connection.pump = controller.process.spawn(self._pump(connection, controller.open_lines(link.peer, path)))
        return connection

    def _is_paused(self) -> bool:
        return self.controller is not None and self.controller.process.is_paused

    async def _pump(self, connection: Connection, lines: AsyncGenerator[bytes]) -> None:
        """The controller's end of a stream."""
        try:
            async with aclosing(lines):
                async for line in lines:
                    if connection.is_closed:
                        return
                    self._send(connection, line)
        finally:
            self._send(connection, None)

    def _send(self, connection: Connection, line: bytes | None) -> None:
        # Timers of one moment fire in any order; lines of one connection keep theirs.
        at = max(self._loop.time() + self.delay_seconds(connection.link), connection.last_arrival + 1e-6)
        connection.last_arrival = at
        self._loop.call_at(at, self._deliver, connection, line)

    def _deliver(self, connection: Connection, line: bytes | None) -> None:
        if connection.is_closed:
            return
        if connection.link.is_cut or connection.held:
            connection.held.append(line)
            return
        if not connection.lines.full():
            connection.lines.put_nowait(line)

    def heal(self, link: Link) -> None:
        """The wire works again; what was sent meanwhile arrives, where both ends still wait."""
        link.is_cut = False
        for connection in list(link.connections):
            held, connection.held = connection.held, []
            for line in held:
                self._deliver(connection, line)

    def break_streams(self, link: Link) -> None:
        for connection in list(link.connections):
            self._deliver(connection, None)
            if connection.pump is not None:
                connection.pump.cancel()

    def close(self, connection: Connection) -> None:
        """The member's end is gone; the controller hears of it, or takes it for gone after its own deadline."""
        connection.is_closed = not connection.link.is_dead
        connection.link.connections.remove(connection)
        if connection.pump is not None:
            seconds = SEND_SECONDS if connection.link.is_cut else self.delay_seconds(connection.link)
            self._loop.call_later(seconds, connection.pump.cancel)

    def take(self, connection: Connection, line: bytes) -> None:
        self._story.count(line)
        self._tap(connection.link.peer, connection.controller.number, line)


def fail(answer: asyncio.Future[bytes], words: str) -> None:
    if not answer.done():
        answer.set_exception(FleetError(FleetErrorKind.UNREACHABLE, words))


class SimFleet:
    """`Fleet` of the agent's and the gateway's ports, over a link."""

    def __init__(self, network: Network, link: Link) -> None:
        self._network = network
        self._link = link

    async def stream(self, path: str) -> AsyncGenerator[bytes]:
        try:
            connection = await self._network.open(self._link, path)
        except (TimeoutError, ConnectionRefusedError) as error:
            raise FleetError(FleetErrorKind.UNREACHABLE, f"no stream: {error}") from None
        try:
            while True:
                line = await self._next_line(connection)
                if line != KEEPALIVE:
                    self._network.take(connection, line)
                    yield line.rstrip(b"\n")
        finally:
            self._network.close(connection)

    async def _next_line(self, connection: Connection) -> bytes:
        try:
            async with asyncio.timeout(STREAM_SILENCE_SECONDS):
                line = await connection.lines.get()
        except TimeoutError:
            raise FleetError(FleetErrorKind.UNREACHABLE, "the stream gave no sign of life in time") from None
        if line is None:
            raise FleetError(FleetErrorKind.UNREACHABLE, "the controller ended the stream")
        return line

    async def post(self, path: str, message: Message, answer: type[Answer]) -> Answer:
        return parse_answer(await self._call("POST", path, message), answer, path)

    async def put(self, path: str, message: Message) -> None:
        await self._call("PUT", path, message)

    async def _call(self, method: str, path: str, message: Message) -> bytes:
        body = message.model_dump_json(by_alias=True, exclude_none=True).encode()
        answer = self._network.call(self._link, method, path, body)
        timer = asyncio.get_running_loop().call_later(
            CALL_SECONDS, fail, answer, "the controller gave no sign of life in time"
        )
        try:
            return await answer
        finally:
            timer.cancel()
