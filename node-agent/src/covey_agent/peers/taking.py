"""One blob from one other node: a blocking connection that a thread reads, and that another one can break off (ADR 47).

Who answers must show the certificate of the very node that was named. What it sends is believed by nobody here: size
and place are checked, the digest is the caller's.
"""

import asyncio
import contextlib
import re
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

import h11
from covey_api.messages import Holder
from covey_fleet_client.dialling import find_other

from covey_agent.peers.giving import MAX_HEAD_BYTES, PATH

P = ParamSpec("P")
T = TypeVar("T")

CONNECT_SECONDS = 5.0
# A node that is asked for a byte and has none for so long is left for another source.
ANSWER_SECONDS = 15.0
# A piece is handed on after this, full or not: progress is for people.
PIECE_SECONDS = 0.2
_SPAN = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


class PeerFailed(Exception):
    """It didn't give it; the words say why."""


class PeerUnreached(PeerFailed):
    """There is no way to it, for this blob or another."""


class PeerShut(PeerFailed):
    """It ended the connection before it said anything: it has as many as it takes, or goes."""


class PeerBusy(Exception):
    """It gives to as many as it can: later."""


class PeerConnection:
    """`stall_seconds`: the longest silence. Only `abort` may be called while another thread is inside."""

    def __init__(
        self, connection: socket.socket, context: ssl.SSLContext, holder: Holder, stall_seconds: float
    ) -> None:
        self._plain = connection
        self._context = context
        self._holder = holder
        self._stall_seconds = stall_seconds
        self._tls: ssl.SSLSocket | None = None
        self._begun = b""
        """Of the body: it came with the head."""

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._plain.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in (self._tls, self._plain):
            if each is not None:
                each.close()

    def begin(self, sha256: str, at: int, size_bytes: int) -> None:
        """Ask for all from there on. PeerFailed unless that is what it is about to send; PeerBusy. Blocking."""
        expected, got = f"bytes {at}-{size_bytes - 1}/{size_bytes}", self._ask(sha256, f"{at}-")
        if got != expected:
            raise PeerFailed(f"asked for '{expected}', it answers 206 '{got[:64]}'")

    def read_range(self, sha256: str, at: int, length: int) -> tuple[bytes, int]:
        """So many bytes from there on, or all to its end, and how many it says that the blob has. Blocking."""
        got = self._ask(sha256, f"{at}-{at + length - 1}")
        first, last, total = (int(text) for text in found.groups()) if (found := _SPAN.fullmatch(got)) else (-1, -1, -1)
        if first != at or last != min(at + length, total) - 1:
            raise PeerFailed(f"asked for {length} bytes from {at} on, it answers 206 '{got[:64]}'")
        view = memoryview(bytearray(last + 1 - first))
        count = 0
        while count < len(view):
            if not (more := self.read(view[count:])):
                raise PeerFailed(f"it ended {len(view) - count} bytes too early")
            count += more
        return bytes(view), total

    def _ask(self, sha256: str, span: str) -> str:
        """What range it is about to send. Blocking."""
        self._plain.settimeout(ANSWER_SECONDS)
        # The plain socket stays this object's, for `abort`: a number that was closed may be somebody else's already.
        try:
            tls = self._tls = self._context.wrap_socket(self._plain.dup())
        except (ConnectionError, ssl.SSLEOFError) as error:
            raise PeerShut("it ended the connection") from error
        self._check_name(tls.getpeercert() or {})
        head = f"GET {PATH}{sha256} HTTP/1.1\r\nHost: {self._holder.node}\r\nRange: bytes={span}\r\n\r\n"
        tls.sendall(head.encode())
        response = self._read_head(tls)
        if response.status_code in (429, 503):
            raise PeerBusy
        headers = {name: value.decode("ascii", "replace") for name, value in response.headers}
        if response.status_code != 206:
            raise PeerFailed(f"asked for a range, it answers {response.status_code}")
        tls.settimeout(self._stall_seconds)
        return headers.get(b"content-range", "")

    def read(self, view: memoryview) -> int:
        """Fill it, or as much as comes within a moment; 0 at the end. Blocking."""
        tls = self._tls
        if tls is None:
            raise PeerFailed("it was not asked")
        count = min(len(self._begun), len(view))
        view[:count], self._begun = self._begun[:count], self._begun[count:]
        until = time.monotonic() + PIECE_SECONDS
        while count < len(view):
            more = tls.recv_into(view[count:])
            if not more:
                break
            count += more
            if time.monotonic() >= until:
                break
        return count

    def _check_name(self, certificate: dict[str, Any]) -> None:
        if other := find_other(certificate, self._holder.node):
            raise PeerFailed(f"it shows the certificate of {other}")

    def _read_head(self, tls: ssl.SSLSocket) -> h11.Response:
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        # The parser follows what was sent; it was written by hand, for it is one line.
        parser.send(h11.Request(method="GET", target=PATH, headers=[("Host", self._holder.node)]))
        parser.send(h11.EndOfMessage())
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            event = parser.next_event()
            if isinstance(event, h11.Response):
                break
            if event is not h11.NEED_DATA:
                raise PeerFailed("it answers with no HTTP")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            tls.settimeout(left)
            parser.receive_data(tls.recv(MAX_HEAD_BYTES))
        while isinstance(more := parser.next_event(), h11.Data):
            self._begun += bytes(more.data)
        return event


class Dialler:
    """Connections to other nodes, each worked by a thread of its own pool: the others' work never waits for a peer."""

    def __init__(self, observe_context: Callable[[], ssl.SSLContext], stall_seconds: float, at_once: int) -> None:
        self._observe_context = observe_context
        self._stall_seconds = stall_seconds
        self._threads = ThreadPoolExecutor(at_once, "peer")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def open(self, holder: Holder, sha256: str, at: int, size_bytes: int) -> AsyncGenerator["OpenPeer"]:
        """PeerFailed or PeerBusy, also in the body."""
        async with self._connect(holder) as opened:
            await opened.run(opened.connection.begin, sha256, at, size_bytes)
            yield opened

    async def read_range(self, holder: Holder, sha256: str, at: int, length: int) -> tuple[bytes, int]:
        """As `PeerConnection.read_range`; PeerFailed or PeerBusy."""
        async with self._connect(holder) as opened:
            return await opened.run(opened.connection.read_range, sha256, at, length)

    @asynccontextmanager
    async def _connect(self, holder: Holder) -> AsyncGenerator["OpenPeer"]:
        try:
            context = self._observe_context()
        except (OSError, ValueError) as error:
            raise PeerFailed(f"this node's certificate can't be read: {error}") from error
        try:
            plain = await _dial(holder)
        except (OSError, UnicodeError) as error:
            words = getattr(error, "strerror", None) or str(error) or f"no connection within {CONNECT_SECONDS:.0f} s"
            where = f"{holder.address}, port {holder.port}"
            raise PeerUnreached(f"it can't be reached at {where}: {words}") from error
        connection = PeerConnection(plain, context, holder, self._stall_seconds)
        try:
            yield OpenPeer(connection, self._threads)
        except h11.ProtocolError as error:
            raise PeerFailed(f"it answers with no HTTP: {error}") from error
        finally:
            connection.close()


class OpenPeer:
    """A connection, and the threads that work it."""

    def __init__(self, connection: PeerConnection, threads: ThreadPoolExecutor) -> None:
        self.connection = connection
        self._threads = threads

    async def read(self, view: memoryview) -> int:
        """As `PeerConnection.read`."""
        return await self.run(self.connection.read, view)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread; who is cancelled meanwhile breaks the connection off and waits for the thread's end.

        Any OSError is the connection's, and a PeerFailed: to who takes it in, OSErrors are this disk's.
        """
        work = asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self.connection.abort()
            while not work.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([work])
            with contextlib.suppress(Exception):
                work.result()
            raise
        except TimeoutError as error:
            raise PeerFailed("it was silent for too long") from error
        except ssl.SSLError as error:
            raise PeerFailed(f"TLS failed: {getattr(error, 'reason', None) or error}") from error
        except OSError as error:
            raise PeerFailed(f"it broke off: {error.strerror or error}") from error


async def _dial(holder: Holder) -> socket.socket:
    """A connected socket, blocking. OSError, TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_SECONDS):
        found = await loop.getaddrinfo(holder.address, holder.port, type=socket.SOCK_STREAM)
        family, kind, number, _, address = found[0]
        connection = socket.socket(family, kind, number)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, address)
        except BaseException:
            connection.close()
            raise
    return connection
