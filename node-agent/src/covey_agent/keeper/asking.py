"""Those who ask a keeper: its Unix socket, newline-delimited JSON. It knows the protocol, and of the engine nothing.

An open connection that has claimed is an agent that is there; how long none has been is known here.
"""

import json
import os
import selectors
import socket
import time
from typing import Any, Protocol

from covey_agent.keeper.output import read_tail

# Largest `tail` answer: what an answer to an ask may hold.
MAX_TAIL_BYTES = 256 * 1024
# A request is one short line; more than this without a newline is not a request.
MAX_REQUEST_BYTES = 4 * 1024
# Unsent answer bytes per connection (a tail as JSON, several times over); a peer that reads less is dropped.
MAX_UNSENT_BYTES = 4 * 1024 * 1024
# The agent, a doctor and a test may connect at a time; more is a mistake.
MAX_CONNECTIONS = 16


class Asked(Protocol):
    """What is asked about: one engine under its keeper."""

    @property
    def status(self) -> dict[str, Any]:
        """`keeper.json`, with `exit`: None while the engine runs."""
        ...

    def stop(self, reason: str, grace_seconds: float) -> None: ...

    def end(self) -> None:
        """The exit is known: the keeper may end."""
        ...


class Connection:
    """One peer on the socket."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.claimed = False
        self.unread = b""
        self.unsent = b""


class Asking:
    """The socket of the current folder and its connections."""

    def __init__(self, selector: selectors.BaseSelector, asked: Asked) -> None:
        self.unclaimed_since: float | None = time.monotonic()
        """Since when no agent is there, monotonic; None: one is."""
        self._selector = selector
        self._asked = asked
        self._connections: dict[int, Connection] = {}
        self._listener = self._bind()

    def _bind(self) -> socket.socket:
        """The socket, bound by its relative name: the folder's own path may be longer than a socket address may be."""
        if os.path.lexists("k.sock"):
            os.unlink("k.sock")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind("k.sock")
            listener.listen(MAX_CONNECTIONS)
            listener.setblocking(False)
            bound = os.stat("k.sock")
        except OSError:
            listener.close()
            raise
        self._bound = (bound.st_dev, bound.st_ino)
        self._selector.register(listener, selectors.EVENT_READ, self.accept)
        return listener

    def restore(self) -> None:
        """Bind the socket anew when its name is gone or is another's: who comes would find nobody. OSError: not now."""
        try:
            named = os.stat("k.sock")
            if (named.st_dev, named.st_ino) == self._bound:
                return
        except FileNotFoundError:
            pass
        unreachable = self._listener
        self._listener = self._bind()
        self._selector.unregister(unreachable)
        unreachable.close()

    def tell(self, message: dict[str, Any]) -> None:
        """To every agent that has claimed."""
        for connection in list(self._connections.values()):
            if connection.claimed:
                self._send(connection, message)

    def accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            peer.close()
            return
        peer.setblocking(False)
        connection = Connection(peer)
        self._connections[peer.fileno()] = connection
        self._selector.register(peer, selectors.EVENT_READ, lambda: self.exchange(connection))

    def exchange(self, connection: Connection) -> None:
        """Send what waits, read what came, answer each whole line."""
        try:
            self._flush(connection)
            data = connection.peer.recv(MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.unread += data
        if not data or len(connection.unread) > 2 * MAX_REQUEST_BYTES:
            self._close(connection)
            return
        *lines, connection.unread = connection.unread.split(b"\n")
        for line in lines:
            self._send(connection, self.answer(connection, line))

    def answer(self, connection: Connection, line: bytes) -> dict[str, Any]:
        """One request, one answer.

        status                  who runs: keeper.json, with `exit` once the engine ended
        claim                   the same; while this connection is open an agent is there, and it is told of the exit
        stop   graceSeconds     SIGTERM, and SIGKILL after the grace; the exit follows as an event to those who claimed
        tail   bytes            the last output
        bye                     the exit is known: the keeper may end. Refused while the engine runs
        """
        try:
            request = json.loads(line)
            verb = request["do"]
            if verb in ("status", "claim"):
                if verb == "claim":
                    connection.claimed, self.unclaimed_since = True, None
                return self._asked.status
            if verb == "stop":
                self._asked.stop("Stop", float(request["graceSeconds"]))
                return {"stopping": not self._has_ended()}
            if verb == "tail":
                return {"text": read_tail(".", max(0, min(int(request["bytes"]), MAX_TAIL_BYTES)))}
            if verb == "bye":
                if not self._has_ended():
                    return {"error": "the engine still runs: stop it first"}
                self._asked.end()
                return {"over": True}
            return {"error": f"'do' must be one of status, claim, stop, tail, bye; got '{verb}'"}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"a request must be one JSON object with 'do' and its arguments; got {error!r}"}

    def _has_ended(self) -> bool:
        return self._asked.status["exit"] is not None

    def _send(self, connection: Connection, message: dict[str, Any]) -> None:
        connection.unsent += json.dumps(message).encode() + b"\n"
        if len(connection.unsent) > MAX_UNSENT_BYTES:
            self._close(connection)
            return
        try:
            self._flush(connection)
        except OSError:
            self._close(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.unsent:
                connection.unsent = connection.unsent[connection.peer.send(connection.unsent) :]
        except BlockingIOError:
            pass
        if connection.peer.fileno() in self._connections:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
            self._selector.modify(connection.peer, events, lambda: self.exchange(connection))

    def _close(self, connection: Connection) -> None:
        if self._connections.pop(connection.peer.fileno(), None) is None:
            return
        self._selector.unregister(connection.peer)
        connection.peer.close()
        if self.unclaimed_since is None and not any(other.claimed for other in self._connections.values()):
            self.unclaimed_since = time.monotonic()
