"""Connections to engines: asyncio protocols with httptools, a few kept open between requests.

An engine's connection carries one request at a time. What arrives is parsed first and told to the receiver after, in
order: head, body, end; so a receiver may abort at any of them.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

import httptools

from covey_gateway.fronts import Fronts, NoWay, explain_dial
from covey_gateway.keep_alive import apply_keep_alive
from covey_gateway.limits import ENGINE_IDLE_SECONDS, FILES_AGAIN_SECONDS, MAX_IDLE_PER_ENDPOINT
from covey_gateway.routing.table import Target
from covey_gateway.wire.frames import STREAM_HEAD

_log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


def explain_silence(target: Target) -> str:
    return f"it took no connection within `connectSeconds` ({target.timeouts.connect_seconds} s)"


class Asker(Protocol):
    """Who sends a request to an engine."""

    def on_connected(self, connection: "EngineConnection") -> None: ...

    def on_unreachable(self, reason: str) -> None: ...

    def on_engine_lost(self, reason: str) -> None: ...


class Receiver(Asker, Protocol):
    """One that is told what the answer says."""

    def on_engine_head(self, status: int, content_type: bytes, retry_after_seconds: int | None) -> None: ...

    def on_engine_body(self, piece: bytes) -> None: ...

    def on_engine_end(self) -> None: ...


class Express(Asker, Protocol):
    """One that reads an answer's bytes itself."""

    def take(self, data: bytes) -> None: ...


class EngineConnection(asyncio.Protocol):
    """One connection; given to its receiver by `Engines.connect`, once it is open."""

    _transport: asyncio.Transport

    def __init__(self, target: Target, engines: "Engines") -> None:
        self.target = target
        self.is_reused = False
        self.has_answered = False
        """Whether a byte of this request's answer has come."""
        self.idle_since = 0.0
        self._engines = engines
        self._parser = httptools.HttpResponseParser(self)
        self._receiver: Receiver | None = None
        self._express: Express | None = None
        """Who takes the answer's bytes as they are."""
        self.known_head = b""
        """Of an answer before that was as most are."""
        self._start_answer()

    def _start_answer(self) -> None:
        self.has_answered = False
        self._headers: dict[bytes, bytes] = {}
        self._status = 0
        self._is_head_told = False
        self._pieces: list[bytes] = []
        self._is_whole = False
        self._can_keep = False
        self._ends_with_connection = False

    def send(self, receiver: Receiver, head: bytes, body: bytes) -> None:
        self._receiver = receiver
        self._start_answer()
        self._transport.writelines((head, body))

    def send_express(self, express: Express, content: bytes) -> None:
        """The answer isn't parsed, unless it is handed over."""
        self._express = express
        self.has_answered = self._ends_with_connection = False
        self._transport.write(content)

    def finish_express(self) -> None:
        """The answer is whole, and nothing came behind it."""
        self._express = None
        if self._transport.is_closing():
            self._transport.close()
        else:
            self._engines.keep(self)

    def hand_over(self, receiver: Receiver, rest: bytes, *, has_head: bool) -> None:
        """The answer is parsed from here on. `rest`: what came behind the last whole chunk. The parser, which saw
        nothing of it, is at a message's beginning: it gets a head like the one that was taken, which nobody is told."""
        if self._express is None:  # it was lost
            return
        self._express, self._receiver = None, receiver
        self._start_answer()
        if has_head:
            self._is_head_told = self.has_answered = True
            self._parser.feed_data(STREAM_HEAD)
            self._parser.feed_data(rest)

    def pause(self) -> None:
        """Read no further: the client takes no more for now."""
        if self.is_open:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.is_open:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once; the engine notices and stops decoding."""
        self._receiver = self._express = None
        self._transport.abort()

    def retire(self) -> None:
        """It isn't needed now; perhaps it is soon."""
        self._receiver = None
        self._engines.keep(self)

    def keep_alive(self) -> None:
        """Notice when the machine at the other end is gone."""
        shown = self._transport.get_extra_info("socket")
        if shown is not None and self.is_open:
            apply_keep_alive(shown)

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class, not registered as one

    def data_received(self, data: bytes) -> None:
        if self._express is not None:
            self.has_answered = True
            self._express.take(data)
            return
        if self._receiver is None:
            self.abort()  # nobody asked: whatever this is, it must not be taken for the next answer
            return
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._is_whole:
                self._lose(f"it answered in something that is no HTTP: {error}")
                return
            self._can_keep = False  # what came behind a whole answer is nobody's
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        self._engines.drop(self)
        if self._ends_with_connection and exc is None and self._receiver is not None:
            self._is_whole = True
            self._tell()
            return
        words = "it closed the connection" if exc is None else f"the connection broke: {exc}"
        self._lose(f"{words} {'in its answer' if self.has_answered else 'before it answered'}")

    def _lose(self, reason: str) -> None:
        receiver = self._receiver or self._express
        self.abort()
        if receiver is not None:
            receiver.on_engine_lost(reason)

    def _tell(self) -> None:
        if self._status and not self._is_head_told and self._receiver is not None:
            self._is_head_told = True
            wait = self._headers.get(b"retry-after", b"")
            seconds = int(wait) if wait.isdigit() and len(wait) < 5 else None
            self._receiver.on_engine_head(self._status, self._headers.get(b"content-type", b""), seconds)
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            if self._receiver is not None:
                self._receiver.on_engine_body(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._is_whole and (receiver := self._receiver) is not None:
            self._receiver = None
            if self._can_keep and self.is_open:
                self.resume()  # the last bytes may have found the client stalled; the next one must hear its answer
                self._engines.keep(self)
            else:
                self._transport.close()
            receiver.on_engine_end()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._is_whole:
            self._can_keep = False  # more than one answer to one request
        else:
            self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:  # a trailer is dropped
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._is_whole:
            return
        self._status = status
        self._can_keep = self._parser.should_keep_alive()
        self._ends_with_connection = not (
            b"content-length" in self._headers or b"transfer-encoding" in self._headers or status in (204, 304)
        )

    def on_body(self, piece: bytes) -> None:
        if not self._is_whole:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if self._status:
            self._is_whole = True


class Engines:
    """Dials engines and keeps a few idle connections to each. `spawn` starts a task in the process's TaskGroup.

    `fronts`: how those of other machines are dialled; None where a static table says where everything is. `part`: which
    of how many workers this is, for what may be idle is divided.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spawn: Spawn,
        fronts: Fronts | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self._part = part
        self._gateways = 1
        self._loop = loop
        self._fronts = fronts
        self._spawn = spawn
        self._idle: dict[str, list[EngineConnection]] = {}
        self._dials: set[asyncio.Task[None]] = set()

    def connect(self, target: Target, receiver: Asker, *, fresh: bool = False) -> None:
        """Tell the receiver of a connection, or that there is none: at once when an idle one is there."""
        idle = self._idle.get(target.id)
        while idle and not fresh:
            connection = idle.pop()
            if connection.is_open:
                connection.is_reused = True
                receiver.on_connected(connection)
                return
        task = self._spawn(self._dial(target, receiver))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    async def _dial(self, target: Target, receiver: Asker) -> None:
        try:
            await self._open(target, receiver)
        except Exception:
            # This task shares the process's TaskGroup: a bug met by one request must not end all others.
            _log.exception("a request to endpoint %s could not be sent", target.id)

    async def _open(self, target: Target, receiver: Asker) -> None:
        try:
            async with asyncio.timeout(target.timeouts.connect_seconds):
                connection = await self._create_connection(target)
        except TimeoutError:
            receiver.on_unreachable(explain_silence(target))
        except OSError as error:
            receiver.on_unreachable(explain_dial(error))
        else:
            try:
                receiver.on_connected(connection)
            except Exception:
                connection.abort()
                raise

    async def probe(self, target: Target, settle_seconds: float) -> str:
        """Why a connection to this endpoint isn't to be had; empty: it is, and still was after the wait."""
        try:
            async with asyncio.timeout(target.timeouts.connect_seconds):
                connection = await self._create_connection(target)
        except TimeoutError:
            return explain_silence(target)
        except OSError as error:
            return explain_dial(error)
        await asyncio.sleep(settle_seconds)
        is_open = connection.is_open
        connection.abort()
        return "" if is_open else "it closed the connection after the handshake: `front.log` on its node says why"

    async def _create_connection(self, target: Target) -> EngineConnection:
        """A process without a free descriptor waits for one: the endpoint is not to blame."""
        while True:
            try:
                return await self._dial_once(target)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                await asyncio.sleep(FILES_AGAIN_SECONDS)

    async def _dial_once(self, target: Target) -> EngineConnection:
        def make() -> EngineConnection:
            return EngineConnection(target, self)

        if target.no_way:
            raise NoWay(target.no_way)
        if target.front is None:
            _, connection = await self._loop.create_connection(make, target.host, target.port)
        elif self._fronts is None:
            raise NoWay("it is behind a front, and this gateway has no certificate to show there")
        else:
            connection = await self._fronts.connect(self._loop, make, target.front)
        if target.front is not None or not target.host.startswith("127."):
            connection.keep_alive()
        return connection

    def keep(self, connection: EngineConnection) -> None:
        """For the next request, if there is room."""
        idle = self._idle.setdefault(connection.target.id, [])
        if len(idle) >= self._count_most(connection.target):
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        idle.append(connection)

    def _count_most(self, target: Target) -> int:
        """Idle ones to an endpoint: of what it bears a gateway has its share, one at least, and of that a worker."""
        most, (index, workers) = max(1, min(target.slots, MAX_IDLE_PER_ENDPOINT) // self._gateways), self._part
        return most // workers + (index < most % workers)

    def share(self, gateways: int) -> None:
        """So many keep connections to the same endpoints, this one too. The oldest of too many are closed."""
        self._gateways = max(1, gateways)
        for idle in self._idle.values():
            while idle and len(idle) > self._count_most(idle[0].target):
                idle.pop(0).abort()

    def drop(self, connection: EngineConnection) -> None:
        idle = self._idle.get(connection.target.id)
        if idle and connection in idle:
            idle.remove(connection)

    @property
    def has_idle(self) -> bool:
        """Whether there is anything that `close_idle` may have to close later."""
        return bool(self._idle)

    def close_idle(self, now: float) -> None:
        """Close what is about to be closed by the engine; the oldest are in front."""
        for target_id in list(self._idle):
            idle = self._idle[target_id]
            while idle and now - idle[0].idle_since >= ENGINE_IDLE_SECONDS:
                idle.pop(0).abort()
            if not idle:
                del self._idle[target_id]

    def forget(self, target_ids: frozenset[str]) -> None:
        """Endpoints that left the table keep no idle connections."""
        for target_id in target_ids:
            for connection in self._idle.pop(target_id, []):
                connection.abort()

    def close(self) -> None:
        self.forget(frozenset(self._idle))
        for dial in self._dials:
            dial.cancel()
