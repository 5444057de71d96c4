"""Two connections whose bytes are carried to each other: what all that a keeper carries has in common.

Each direction holds one chunk at most and reads no further before it is written: whoever is slow slows the other. An
end of one direction is passed on (`close_notify` one way, a FIN the other) and the other one goes on. A peer that goes
away without `close_notify` was cut off: both end at once, and the engine notices.
"""

import selectors
import socket
import time
from collections.abc import Callable

from covey_agent.keeper.sides import EngineSide, PeerSide, Side

# A peer that doesn't close after the engine did holds a place that others need.
LINGER_SECONDS = 30.0
# Chunks of one direction in one turn of the keeper's loop: others, and the agent, wait some milliseconds at most.
CHUNKS_A_TURN = 8


class Way:
    """One direction."""

    def __init__(self, source: Side, sink: Side) -> None:
        self._source = source
        self._sink = sink
        self.carried_at = 0.0
        """When the source said something last, monotonic."""

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
                self.carried_at = time.monotonic()
                self._sink.send(chunk)
            if self._source.has_ended:
                self._sink.end()
            elif not chunk:
                return


class Watch:
    """Which events of which sockets `on_event` hears of."""

    def __init__(self, selector: selectors.BaseSelector, on_event: Callable[[], None]) -> None:
        self._selector = selector
        self._on_event = on_event
        self._watched: dict[socket.socket, int] = {}

    def set(self, which: socket.socket, *, reads: bool = False, writes: bool = False) -> None:
        """From now on; none at all is another state to the selector."""
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)
        before = self._watched.get(which, 0)
        if before == events:
            return
        if not before:
            self._selector.register(which, events, self._on_event)
        elif events:
            self._selector.modify(which, events, self._on_event)
        else:
            self._selector.unregister(which)
            del self._watched[which]  # it may be closed next, and nobody would ever ask for it again
            return
        self._watched[which] = events

    def drop(self, which: socket.socket) -> None:
        """Hear no more of it, and close it. Closing a socket that has unread bytes resets it: the other end notices."""
        self.set(which)
        which.close()


class Pair:
    """A peer's connection and the engine's, once both are open."""

    def __init__(self, watch: Watch, peer: PeerSide, engine: EngineSide) -> None:
        self.deadline: float | None = None
        """Monotonic; None while none is due."""
        self._watch = watch
        self._peer, self._engine = peer, engine
        self._to_engine, self._to_peer = Way(peer, engine), Way(engine, peer)

    @property
    def engine_spoke_at(self) -> float:
        return self._to_peer.carried_at

    def carry(self) -> bool:
        """What is there; False once both directions are over. OSError when a side is broken."""
        self._to_peer.pump()
        self._to_engine.pump()
        if self._to_engine.is_over and self._to_peer.is_over:
            return False
        if self._to_peer.is_over and self.deadline is None:
            self.deadline = time.monotonic() + LINGER_SECONDS
        self._watch.set(self._peer.socket, reads=self._to_engine.wants_read, writes=self._peer.is_full)
        self._watch.set(self._engine.socket, reads=self._to_peer.wants_read, writes=self._engine.is_full)
        return True
