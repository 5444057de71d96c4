"""Gives verified blobs to other nodes of the fleet (ADR 47).

Owns the listening socket, who may come in and how many at a time. A connection is a thread, carries one request, and
names one digest; what it is answered with is `Blobs`'. Nothing of a request becomes a path but 64 hex digits.

Rejected: asyncio's TLS, which passes each record through two buffers in Python: a third of the speed, and on the loop
that the supervisor runs on.
"""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from covey_agent.keeper.credentials import Credentials
from covey_agent.keeper.front import choose_family, listen, prepare_peer
from covey_agent.peers.giving import Blobs, Refusal, give, read_request, refuse
from covey_agent.peers.pace import ThreadPace

logger = logging.getLogger(__name__)

# For a firewall rule; another agent on this machine takes one that is free.
PORT = 52416
# Each has a thread and a buffer. Beyond, nodes are told to come back, and find more nodes that have the blob by then.
MAX_TRANSFERS = 8
MAX_CONNECTIONS = 32
# From the connection to the whole request.
REQUEST_SECONDS = 10.0
# A node that takes nothing for so long, of a piece of 1 MiB, is gone.
STALL_SECONDS = 60.0
REST_SECONDS = 0.5
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
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
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

    def close(self) -> None:
        """Break all transfers off."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener, self.port = None, 0
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            connection, address = self._listener.accept()
        except OSError:
            self._rest()
            return
        with self._lock:
            is_full = len(self._open) >= MAX_CONNECTIONS
            if not is_full:
                self._open.add(connection)
        if is_full:
            connection.close()
            return
        name = f"{address[0]}:{address[1]}"
        threading.Thread(target=self._serve, args=(connection, name), name=f"blob to {name}", daemon=True).start()

    def _rest(self) -> None:
        """No descriptor is left, perhaps: who waits stays readable, and this would spin."""
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
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket, name: str) -> None:
        prepare_peer(connection)
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
                return self._credentials.explain_refusal(certificate)

            if why := explain_refusal():
                self._complain(f"{name} is refused: {why}")
                return
            try:
                wish = read_request(peer, deadline)
                peer.settimeout(STALL_SECONDS)
                if not self._transfers.acquire(blocking=False):
                    raise Refusal(503, f"{MAX_TRANSFERS} transfers are under way; come back")
                try:
                    give(peer, self._blobs, wish, self.pace, explain_refusal)
                finally:
                    self._transfers.release()
            except Refusal as refusal:
                refuse(peer, refusal)
            with suppress(OSError):
                peer.unwrap()

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
