"""HTTP/1.1 over TLS as fleet calls need it: small calls on a connection that is kept, and endless answers.

It knows connections and heads, nothing of the fleet. An agent and a gateway do little else at rest, and of what they
did, most was the client's: a call took 3.0 ms of CPU with httpx, 1.3 ms with aiohttp, 0.9 ms here (a call every
100 ms, one machine), and neither is imported by a gateway any more. httptools parses, as in the gateway.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import quote

import httptools

CONNECT_SECONDS = 5.0
# One or two streams and a few calls at once; more would mean that answers are not awaited.
MAX_CONNECTIONS = 10
# Below the controller's own keep-alive time, so that a call never meets a connection that is just being closed.
KEEPALIVE_SECONDS = 10.0
# Our own controller sends heads of a few hundred bytes.
MAX_HEAD_BYTES = 64 * 1024
_CHUNK_BYTES = 64 * 1024
# Of the characters that a path and its query may have, those that need no quoting.
_PATH_CHARACTERS = "/?&=:@!$'()*+,;~%"


class DialFailed(Exception):
    """No connection: the cause is the OSError or TLS error of the dial."""


class Broken(Exception):
    """The connection ended, or what came over it is no HTTP; the words say which."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whom to dial."""

    host: str
    """Without brackets."""
    port: int

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Answer:
    """One answer as it arrives; the callbacks are httptools'."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.status = 0
        self.reason = ""
        self.is_whole = False
        self.keeps_alive = False
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._has_head = False
        self._head_bytes = 0
        self._is_bounded = False
        """Its end is told by a length or by chunks, not by the end of the connection."""
        self._chunks: list[bytes] = []

    def on_status(self, status: bytes) -> None:
        self.reason += status.decode("latin-1")

    def on_header(self, name: bytes, _: bytes) -> None:
        self._is_bounded = self._is_bounded or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._has_head = True
        self._is_bounded = self._is_bounded or self.status in (204, 304)

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        self.is_whole = True
        self.keeps_alive = self._parser.should_keep_alive()

    async def read_head(self) -> None:
        while not self._has_head:
            if self._head_bytes > MAX_HEAD_BYTES:
                raise Broken(f"the head of an answer must be at most {MAX_HEAD_BYTES} bytes long")
            await self._feed()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body's bytes as they come, to its end."""
        while True:
            chunks, self._chunks = self._chunks, []
            for chunk in chunks:
                yield chunk
            if self.is_whole:
                return
            if not self._chunks:
                await self._feed()

    async def _feed(self) -> None:
        received = await self._reader.read(_CHUNK_BYTES)
        if not received:
            if not self._has_head or self._is_bounded:
                raise Broken("the connection ended before the answer did")
            self.is_whole = True
            return
        self._head_bytes += len(received)
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserError as error:
            raise Broken(f"the answer is no HTTP: {error}") from None


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.idle_since = 0.0

    def is_usable(self, now: float) -> bool:
        is_open = not self._reader.at_eof() and not self._writer.transport.is_closing()
        return is_open and now - self.idle_since < KEEPALIVE_SECONDS

    async def ask(self, head: bytes, content: bytes) -> Answer:
        self._writer.write(head + content)
        await self._writer.drain()
        answer = Answer(self._reader)
        await answer.read_head()
        return answer

    def abort(self) -> None:
        self._writer.transport.abort()


class HttpClient:
    """One origin; one event loop. Calls raise DialFailed, Broken, OSError; deadlines are the caller's."""

    def __init__(self, origin: Origin, context: ssl.SSLContext) -> None:
        self.origin = origin
        self._context = context
        self._idle: list[_Connection] = []
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)

    async def aclose(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # a turn of the loop, in which they are closed

    @asynccontextmanager
    async def ask(
        self, method: str, path: str, *, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Answer]:
        """The answer with its head; the connection is kept when the answer was read to its end."""
        head = self._render_head(method, path, len(content), headers or {})
        async with self._room:
            connection = self._take_idle() or await self._dial()
            answer: Answer | None = None
            try:
                answer = await connection.ask(head, content)
                yield answer
            finally:
                if answer is not None and answer.is_whole and answer.keeps_alive:
                    connection.idle_since = asyncio.get_running_loop().time()
                    self._idle.append(connection)
                else:
                    connection.abort()

    def _render_head(self, method: str, path: str, count: int, headers: Mapping[str, str]) -> bytes:
        lines = [
            f"{method} {quote(path, safe=_PATH_CHARACTERS)} HTTP/1.1",
            f"host: {self.origin.authority}",
            *(f"{name}: {value}" for name, value in headers.items()),
            *((f"content-length: {count}",) if count or method != "GET" else ()),
        ]
        return "\r\n".join((*lines, "", "")).encode("ascii")

    def _take_idle(self) -> _Connection | None:
        """The one used last: it is the most likely to be open."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable(now):
                return connection
            connection.abort()
        return None

    async def _dial(self) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self.origin.host, self.origin.port, ssl=self._context, server_hostname=self.origin.host
                )
        except TimeoutError:
            raise
        except OSError as error:
            raise DialFailed from error
        return _Connection(reader, writer)
