"""One peer's TLS connection and the TCP connection to the engine that it is carried on.

Owns both sockets from the first byte of the handshake to the end. Must not know who may come in: `Admission` says so,
once the handshake has proven who it is, and only then the engine is dialled.

| step | waits for | deadline |
|---|---|---|
| handshake | the peer's certificate and the name that it asks for | `OPEN_SECONDS` from the accept |
| dial | the engine's loopback port | the same one; a rank's, which may come to listen later: `patience_seconds` |
| open | bytes of either side | none: a stream may be silent for as long as an engine thinks |
| engine ended | the peer to close too | `ways.LINGER_SECONDS` |
"""

import selectors
import ssl
import time
from typing import Any, Protocol

from covey_agent.keeper.sides import EngineSide, PeerSide, dial_engine
from covey_agent.keeper.ways import Pair, Watch

# From accept to the engine's connection: a handshake over the slowest link takes a second.
OPEN_SECONDS = 5.0
# How often an engine that doesn't listen yet is dialled again.
AGAIN_SECONDS = 0.1


class Admission(Protocol):
    """Who may come in, and who is told of the end."""

    def explain_refusal(self, carrier: "Carrier") -> str:
        """Why the holder of its verified certificate isn't let in by the name that it asked for; empty: it is."""
        ...

    def choose_port(self, carrier: "Carrier") -> tuple[int, float]:
        """The engine's, for what is asked; and for how many seconds it is dialled again while nothing listens."""
        ...

    def on_waiting(self) -> None:
        """Somebody wants to dial again in `AGAIN_SECONDS`: `check` it then."""
        ...

    def take_link(self, carrier: "Carrier") -> bool:
        """Whether it isn't the engine that this peer wants: then somebody else has its connection now."""
        ...

    def on_refused(self, carrier: "Carrier", why: str) -> None: ...

    def on_closed(self, carrier: "Carrier") -> None: ...


class Carrier:
    """`name`: the peer, for people."""

    def __init__(self, selector: selectors.BaseSelector, peer: PeerSide, name: str, admission: Admission) -> None:
        self.peer = peer
        self.name = name
        self.refusal = ""
        """Why its handshake is being refused, if it is for what it asked."""
        self.asked = ""
        """The name that it asked for, once it has."""
        self.is_closed = False
        self._opening_until: float | None = time.monotonic() + OPEN_SECONDS
        self._admission = admission
        self._patient_until = 0.0
        self._again_at: float | None = None
        self._engine: EngineSide | None = None
        self._pair: Pair | None = None
        self._watch = Watch(selector, self.advance)
        self._watch.set(peer.socket, reads=True)

    @property
    def is_open(self) -> bool:
        return self._pair is not None

    @property
    def is_known(self) -> bool:
        """Its handshake is over, and it came in."""
        return self._engine is not None

    @property
    def deadline(self) -> float | None:
        """Monotonic; None while none is due."""
        return self._pair.deadline if self._pair else self._opening_until

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
            elif self._pair is None:
                self._open(self._engine)
            elif not self._pair.carry():
                self.close()
        except OSError as error:
            if self.is_open:
                self.close()
            else:
                self._refuse(self.refusal or explain_handshake(error))
        except Exception:
            self.close()  # a mistake here costs this connection: an event that comes again would be one for ever
            raise

    def check(self, now: float) -> None:
        """Dial the engine again, if that is due."""
        if self._again_at is not None and now >= self._again_at and not self.is_closed:
            self._again_at = None
            self._dial()

    def close(self) -> None:
        """Both connections, at once."""
        if self.is_closed:
            return
        self.is_closed = True
        for side in (self.peer, self._engine):
            if side is not None:
                self._watch.drop(side.socket)
        self._admission.on_closed(self)

    def release(self) -> PeerSide:
        """The peer's connection, for somebody else to hold; this carrier is over."""
        self.is_closed = True
        self._watch.set(self.peer.socket)
        self._admission.on_closed(self)
        return self.peer

    def _refuse(self, why: str) -> None:
        self._admission.on_refused(self, why)
        self.close()

    def _shake_hands(self) -> None:
        if not self.peer.shake_hands():
            self._watch.set(self.peer.socket, reads=True, writes=self.peer.is_full)
        elif why := self._admission.explain_refusal(self):
            self._refuse(why)
        elif not self._admission.take_link(self):
            self._watch.set(self.peer.socket)
            _, patience_seconds = self._admission.choose_port(self)
            if patience_seconds:
                self._patient_until = time.monotonic() + patience_seconds
                self._opening_until = self._patient_until + OPEN_SECONDS
            self._dial()

    def _dial(self) -> None:
        port, _ = self._admission.choose_port(self)
        self._engine = dial_engine(port)
        self._watch.set(self._engine.socket, writes=True)

    def _open(self, engine: EngineSide) -> None:
        if why := engine.explain_dial():
            now = time.monotonic()
            if now >= self._patient_until:
                self._refuse(why)
                return
            self._watch.drop(engine.socket)
            self._again_at = now + AGAIN_SECONDS
            self._admission.on_waiting()
            return
        self._pair = Pair(self._watch, self.peer, engine)
        if not self._pair.carry():
            self.close()


def explain_handshake(error: OSError) -> str:
    """A handshake's failure in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of this fleet: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return "it shows no certificate"
        return f"the handshake failed: {error.reason or error}"
    return f"it went away in the handshake: {error.strerror or error}"
