"""Gives verified blobs to other nodes of the fleet (ADR 47).

Owns the listening socket, who may come in and how many at a time. A connection is a thread, carries one request, and
names one digest; what it is answered with is `Blobs`'. Nothing of a request becomes a path but 64 hex digits.

Rejected: asyncio's TLS, which passes each record through two buffers in Python: a third of the speed, and on the loop
that the supervisor runs on.
"""

import asyncio
import errno
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from covey_agent.keeper.credentials import Credentials, name_of
from covey_agent.keeper.front import choose_family, listen, prepare_peer
from covey_agent.peers.giving import Blobs, Refusal, give, read_request, refuse
from covey_agent.peers.pace import ThreadPace

logger = logging.getLogger(__name__)

# For a firewall rule; another agent on this machine takes one that is free.
PORT = 52416
# Each has a thread and a buffer. Beyond, nodes are told to come back, and find more nodes that have the blob by then.
MAX_TRANSFERS = 8
MAX_CONNECTIONS = 32
# Of one certificate: of both of these, so that no node takes all there is by reading slowly.
MAX_PER_NODE = 4
# From the connection to the whole request.
REQUEST_SECONDS = 10.0
# A node that takes nothing for so long, of a piece of 1 MiB, is gone.
STALL_SECONDS = 60.0
# For the end of TLS, when all is said.
CLOSE_SECONDS = 1.0
REST_SECONDS = 0.5
# What passes when others end. Anything else is about one connection, and the next one is as good as any.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# Strangers must not fill the log.
COMPLAIN_SECONDS = 60.0


class BlobServer:
    """`identity`: the folder of this node's certificate."""

    def __init__(self, blobs: Blobs, identity: Path) -> None:
        self.pace = ThreadPace()
        self.port = 0
        """0: it doesn't listen."""
        self._blobs = blobs
        self._credentials = Credentials(str(identity), _take_any_name, self._complain, "agent", "node")
        self._listener: socket.socket | None = None
        self._open: dict[socket.socket, bool] = {}
        """Oldest first: whether it is being given something. One that isn't gives way when all places are taken."""
        self._by_node: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        """The credentials are for one thread at a time: what says that a file was read comes before what it says."""
        self._transfers = threading.Semaphore(MAX_TRANSFERS)
        self._complained_at = float("-inf")

    def listen(self, address: str, port: int) -> None:
        """On the port, or on one that is free. What can't be listened on is said: then nothing is given."""
        try:
            self._listener = _listen(address, port)
        except OSError as error:
            logger.error("blobs are not given to other nodes: no port on '%s': %s", address, error.strerror or error)
            return
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        if port not in (0, self.port):
            logger.info("port %d is in use; blobs are given to other nodes on port %d", port, self.port)

    def move(self, address: str, port: int) -> None:
        """The same at another address. Transfers that are under way go on, or end by themselves."""
        self._stop_listening()
        self.listen(address, port)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener, self.port = None, 0

    def close(self) -> None:
        """Break all transfers off."""
        self._stop_listening()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            connection, address = self._listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._rest()
            return
        with self._lock:
            self._make_place()
            self._open[connection] = False
        name = f"{address[0]}:{address[1]}"
        thread = threading.Thread(target=self._serve, args=(connection, name), name=f"blob to {name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._forget(connection)
            self._complain(f"{name} is not answered: {error}")

    def _make_place(self) -> None:
        """Whoever has said the least for the longest goes: it needs no certificate to say nothing. There is one, for
        transfers are fewer."""
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(each for each, is_given in self._open.items() if not is_given)
            del self._open[oldest]
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)
            # Not before: whoever makes place may be about to end it.
            connection.close()

    def _rest(self) -> None:
        """No descriptor is left: who waits stays readable, and this would spin."""
        loop = asyncio.get_running_loop()
        if self._listener is not None:
            loop.remove_reader(self._listener)
            loop.call_later(REST_SECONDS, self._go_on)

    def _go_on(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _serve(self, connection: socket.socket, name: str) -> None:
        try:
            self._answer(connection, name)
        except (OSError, ValueError) as error:
            self._complain(f"{name} broke off: {error}")
        except Exception:
            logger.exception("a blob could not be given to %s", name)
        finally:
            self._forget(connection)

    def _answer(self, connection: socket.socket, name: str) -> None:
        prepare_peer(connection)
        with self._reading:
            context = self._credentials.observe_context()
        if context is None:
            return
        deadline = time.monotonic() + REQUEST_SECONDS
        connection.settimeout(REQUEST_SECONDS)
        # The plain socket stays open with its owner: closing may come from another thread, and must not meet a number
        # that is somebody else's by then.
        with context.wrap_socket(connection.dup(), server_side=True) as peer:
            certificate = peer.getpeercert() or {}

            def explain_refusal() -> str:
                with self._reading:
                    return self._credentials.explain_refusal(certificate)

            if why := explain_refusal():
                self._complain(f"{name} is refused: {why}")
                return
            try:
                wish = read_request(peer, deadline)
                peer.settimeout(STALL_SECONDS)
                with self._transfer(connection, name_of(certificate)):
                    give(peer, self._blobs, wish, self.pace, explain_refusal)
            except Refusal as refusal:
                peer.settimeout(CLOSE_SECONDS)
                refuse(peer, refusal)
            with suppress(OSError):
                peer.settimeout(CLOSE_SECONDS)
                peer.unwrap()

    @contextmanager
    def _transfer(self, connection: socket.socket, node: str) -> Generator[None]:
        """While something is given. Refusal where there is no place for it."""
        if not self._transfers.acquire(blocking=False):
            raise Refusal(503, f"{MAX_TRANSFERS} transfers are under way; come back")
        try:
            with self._lock:
                if connection not in self._open:
                    raise ValueError("it made place for another")
                if self._by_node[node] >= MAX_PER_NODE:
                    raise Refusal(503, f"{MAX_PER_NODE} transfers to node '{node}' are under way; come back")
                self._by_node[node] += 1
                self._open[connection] = True
            try:
                yield
            finally:
                with self._lock:
                    self._by_node[node] -= 1
                    self._by_node += Counter()  # forget zeros
                    if connection in self._open:
                        self._open[connection] = False
        finally:
            self._transfers.release()

    def _complain(self, words: str) -> None:
        now = time.monotonic()
        if now - self._complained_at >= COMPLAIN_SECONDS:
            self._complained_at = now
            logger.warning("blobs: %s", words)


def _take_any_name(peer: object, name: str | None, context: object) -> None:
    """Whom it asks for says nothing here; who it is does."""


def _listen(address: str, port: int) -> socket.socket:
    """As a keeper's front does: an address that isn't this machine's own means every one."""
    family, host = choose_family(address)
    attempts: list[Callable[[], socket.socket]] = [
        lambda: listen(family, host, port),
        lambda: listen(family, host, 0),
        lambda: listen(*choose_family(""), port),
    ]
    for attempt in attempts:
        try:
            return attempt()
        except OSError:
            continue
    return listen(*choose_family(""), 0)
