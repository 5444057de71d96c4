"""One peer's TLS connection and the TCP connection to the engine that it is carried on.

Owns both sockets from the first byte of the handshake to the end. Must not know who may come in: `Admission` says so,
once the handshake has proven who it is, and only then the engine is dialled.

| step | waits for | deadline |
|---|---|---|
| handshake | the peer's certificate and the name that it asks for | `OPEN_SECONDS` from the accept |
| dial | the engine's loopback port | the same one |
| open | bytes of either side | none: a stream may be silent for as long as an engine thinks |
| engine ended | the peer to close too | `LINGER_SECONDS` |

Each direction holds one chunk at most and reads no further before it is written: whoever is slow slows the other. An
end of one direction is passed on (`close_notify` one way, a FIN the other) and the other one goes on. A peer that goes
away without `close_notify` was cut off: both end at once, and the engine notices.
"""

import selectors
import socket
import ssl
import time
from typing import Any, Protocol

from covey_agent.keeper.sides import EngineSide, PeerSide, Side

# From accept to the engine's connection: a handshake over the slowest link takes a second.
OPEN_SECONDS = 5.0
# A peer that doesn't close after the engine did holds one of `front.MAX_CARRIERS`.
LINGER_SECONDS = 30.0
# Chunks of one direction in one turn of the keeper's loop: others, and the agent, wait some milliseconds at most.
CHUNKS_A_TURN = 8


class Admission(Protocol):
    """Who may come in, and who is told of the end."""

    def explain_refusal(self, certificate: dict[str, Any]) -> str:
        """Why the holder of this verified certificate isn't let in; empty: it is."""
        ...

    def on_refused(self, carrier: "Carrier", why: str) -> None: ...

    def on_closed(self, carrier: "Carrier") -> None: ...


class Way:
    """One direction."""

    def __init__(self, source: Side, sink: Side) -> None:
        self._source = source
        self._sink = sink

    @property
    def is_over(self) -> bool:
        """The source has ended, and the sink was told."""
        return self._source.has_ended and not self._sink.is_full

    @property
    def wants_read(self) -> bool:
        return not self._source.has_ended and not self._sink.is_full

    def pump(self) -> None:
        """Carry what is there, for one turn. OSError when a side is broken."""
        self._sink.flush()
        for _ in range(CHUNKS_A_TURN):
            if not self.wants_read:
                return
            chunk = self._source.receive()
            if chunk:
                self._sink.send(chunk)
            if self._source.has_ended:
                self._sink.end()
            elif not chunk:
                return


class Carrier:
    """`name`: the peer, for people."""

    def __init__(
        self, selector: selectors.BaseSelector, peer: PeerSide, name: str, engine_port: int, admission: Admission
    ) -> None:
        self.peer = peer
        self.name = name
        self.refusal = ""
        """Why its handshake is being refused, if it is for what it asked."""
        self.deadline: float | None = time.monotonic() + OPEN_SECONDS
        """Monotonic; None while none is due."""
        self.is_closed = False
        self._selector = selector
        self._engine_port = engine_port
        self._admission = admission
        self._engine: EngineSide | None = None
        self._ways: tuple[Way, Way] | None = None
        self._watched: dict[socket.socket, int] = {}
        self._watch(peer.socket, selectors.EVENT_READ)

    @property
    def is_open(self) -> bool:
        return self._ways is not None

    @property
    def certificate(self) -> dict[str, Any]:
        return self.peer.tls.getpeercert() or {}

    def advance(self) -> None:
        """One of the sockets is ready: do what can be done."""
        if self.is_closed:
            return  # an event of the same turn as the end
        try:
            if self._engine is None:
                self._shake_hands()
            elif self._ways is None:
                self._open(self._engine)
            else:
                self._carry(self._engine, *self._ways)
        except OSError as error:
            if self.is_open:
                self.close()
            else:
                self._refuse(self.refusal or explain_handshake(error))
        except Exception:
            self.close()  # a mistake here costs this connection: an event that comes again would be one for ever
            raise

    def close(self) -> None:
        """Both connections, at once. Closing a socket that has unread bytes resets it: the other end notices."""
        if self.is_closed:
            return
        self.is_closed = True
        for side in (self.peer, self._engine):
            if side is not None:
                self._watch(side.socket, 0)
                side.socket.close()
        self._admission.on_closed(self)

    def _refuse(self, why: str) -> None:
        self._admission.on_refused(self, why)
        self.close()

    def _shake_hands(self) -> None:
        if not self.peer.shake_hands():
            self._watch(self.peer.socket, events_for(reads=True, writes=self.peer.is_full))
        elif why := self._admission.explain_refusal(self.certificate):
            self._refuse(why)
        else:
            self._watch(self.peer.socket, 0)
            self._engine = EngineSide(self._engine_port)
            self._watch(self._engine.socket, selectors.EVENT_WRITE)

    def _open(self, engine: EngineSide) -> None:
        if why := engine.explain_dial():
            self._refuse(why)
            return
        self._ways, self.deadline = (Way(self.peer, engine), Way(engine, self.peer)), None
        self._carry(engine, *self._ways)

    def _carry(self, engine: EngineSide, to_engine: Way, to_peer: Way) -> None:
        to_peer.pump()
        to_engine.pump()
        if to_engine.is_over and to_peer.is_over:
            self.close()
            return
        if to_peer.is_over and self.deadline is None:
            self.deadline = time.monotonic() + LINGER_SECONDS
        self._watch(self.peer.socket, events_for(reads=to_engine.wants_read, writes=self.peer.is_full))
        self._watch(engine.socket, events_for(reads=to_peer.wants_read, writes=engine.is_full))

    def _watch(self, which: socket.socket, events: int) -> None:
        """Hear of these events from now on; none at all is another state to the selector."""
        before = self._watched.get(which, 0)
        if before == events:
            return
        if not before:
            self._selector.register(which, events, self.advance)
        elif events:
            self._selector.modify(which, events, self.advance)
        else:
            self._selector.unregister(which)
        self._watched[which] = events


def events_for(*, reads: bool, writes: bool) -> int:
    return (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)


def explain_handshake(error: OSError) -> str:
    """A handshake's failure in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of this fleet: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return "it shows no certificate"
        return f"the handshake failed: {error.reason or error}"
    return f"it went away in the handshake: {error.strerror or error}"
