"""The two ends of what a keeper carries, alike to who carries: a TLS connection to a peer, a TCP one to the engine.

Both are non-blocking. A side holds what its socket doesn't take yet and is full until it did; whoever carries gives it
nothing more before. After `receive` nothing readable is left that the selector doesn't know of.

TLS over memory BIOs and not on the socket: Python's `unwrap` sends `close_notify` and at once reads for the other one,
and bytes that come before that break the connection. Here nothing is there to be read at that moment.
"""

import contextlib
import socket
import ssl
from typing import Protocol

# What is taken from a socket at a time; some records of TLS (16 KiB each).
CHUNK_BYTES = 64 * 1024


class Side(Protocol):
    socket: socket.socket
    has_ended: bool
    """No more comes from it."""

    @property
    def is_full(self) -> bool: ...

    def receive(self) -> bytes:
        """What is there; empty: nothing is now. OSError when it was cut off."""
        ...

    def send(self, chunk: bytes) -> None: ...

    def flush(self) -> None:
        """Send what is held, as far as the socket takes it."""
        ...

    def end(self) -> None:
        """No more comes: tell it once all is sent."""
        ...


class EngineSide:
    """A TCP connection with the engine, whoever dialled it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.has_ended = False
        self._unsent = memoryview(b"")
        self._is_ending = False

    def explain_dial(self) -> str:
        """Why there is no connection, once the socket is writable; empty: there is one."""
        number = observe_dial(self.socket)
        return f"the engine takes no connection (error {number})" if number else ""

    @property
    def is_full(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> bytes:
        try:
            chunk = self.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return b""
        self.has_ended = not chunk
        return chunk

    def send(self, chunk: bytes) -> None:
        self._unsent = memoryview(chunk)
        self.flush()

    def flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return
        if self._is_ending:
            self._is_ending = False
            self.socket.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        self._is_ending = True
        self.flush()


def dial_engine(port: int) -> EngineSide:
    """Begun: its outcome is asked for once the socket is writable."""
    side = EngineSide(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    side.socket.connect_ex(("127.0.0.1", port))
    return side


def observe_dial(dialled: socket.socket) -> int:
    """The error number of a dial that is over; 0: there is a connection."""
    return dialled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


class PeerSide:
    """A TLS connection; `shake_hands` until it gives True. `server_name`: whom to ask for, where it was dialled."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, server_name: str = "") -> None:
        self.socket = connection
        self.has_ended = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=not server_name, server_hostname=server_name or None
        )
        self._unsent = memoryview(b"")

    def shake_hands(self) -> bool:
        """One step of the handshake with what is there; True once it is done. OSError when it failed."""
        self._feed()
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._collect()  # in failure too: the alert says why
        return True

    @property
    def is_full(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> bytes:
        self._feed()
        pieces: list[bytes] = []
        try:
            while piece := self.tls.read(CHUNK_BYTES):
                pieces.append(piece)
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True  # as an empty read; so it is told after a `close_notify` of one's own
        self._collect()
        return b"".join(pieces)

    def send(self, chunk: bytes) -> None:
        self.tls.write(chunk)
        self._collect()

    def flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return

    def end(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):  # it is on its way, the peer's own hasn't come yet
            self.tls.unwrap()
        self._collect()

    def _feed(self) -> None:
        try:
            received = self.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        if received:
            self._incoming.write(received)
        else:
            self._incoming.write_eof()

    def _collect(self) -> None:
        """What TLS wants to be sent: answers, alerts and, hidden in records, what was given."""
        if self._outgoing.pending:
            self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
        self.flush()
