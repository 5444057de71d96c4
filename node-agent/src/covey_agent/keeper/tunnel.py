"""The tunnel: where an engine finds another member's engine on its own loopback, and how its bytes get there.

One listener on loopback for each member that this one dials, to that member's engine alone; each connection of the
engine is one TLS connection to that member's front. Nobody can ask for another target: there is no word for it.
"""

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Protocol

from covey_agent.keeper.dialling import Dial, DialError, Target
from covey_agent.keeper.sides import EngineSide
from covey_agent.keeper.ways import Pair, Watch

# An engine opens one to each donor, and one more at a time while it asks what the donor has.
MAX_STREAMS = 16


class Acquaintance(Protocol):
    """The link to a member that may not be there yet. Its engine is dialled once that is: who ends later is heard."""

    form_until: float
    """Monotonic."""

    @property
    def is_formed(self) -> bool: ...


class Stream:
    """One connection of the engine, on its way: `begin` it. `link`: of who is waited for and tried again."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        accepted: socket.socket,
        target: Target,
        tunnel: "Tunnel",
        link: Acquaintance | None,
    ) -> None:
        self._engine = EngineSide(accepted)
        self._target = target
        self._link = link
        self._dial: Dial | None = None
        self._tunnel = tunnel
        self._pair: Pair | None = None
        self._is_closed = False
        self._watch = Watch(selector, self.advance)

    @property
    def engine_spoke_at(self) -> float:
        return self._pair.engine_spoke_at if self._pair else 0.0

    def begin(self) -> None:
        if self._link is not None and not self._link.is_formed:
            return
        try:
            self._dial = Dial(self._target, self._target.stream_name)
        except DialError as error:
            self._miss(str(error))
        else:
            self._dial.listen(self._watch)

    def check(self, now: float) -> None:
        """Once a second at least."""
        if self._pair is None and self._dial is None:
            self.begin()
        elif self._pair is not None and self._pair.deadline is not None and now >= self._pair.deadline:
            self.close()
        elif self._pair is None and self._dial is not None and now >= self._dial.deadline:
            self._miss(self._dial.explain_late())

    def advance(self) -> None:
        if self._is_closed:
            return
        try:
            if self._pair is not None:
                if not self._pair.carry():
                    self.close()
            elif self._dial is not None:
                self._open(self._dial)
        except DialError as error:
            self._miss(str(error))
        except OSError:
            self.close()
        except Exception:
            self.close()
            raise

    def _open(self, dial: Dial) -> None:
        if not dial.advance():
            dial.listen(self._watch)
            return
        self._pair = Pair(self._watch, dial.peer, self._engine)
        if not self._pair.carry():
            self.close()

    def _miss(self, why: str) -> None:
        if self._link is not None and time.monotonic() < self._link.form_until:
            self._drop_dial()
        else:
            self._tunnel.on_failed(why)
            self.close()

    def _drop_dial(self) -> None:
        if self._dial is not None:
            self._watch.drop(self._dial.peer.socket)
            self._dial = None

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._drop_dial()
            self._watch.drop(self._engine.socket)
            self._tunnel.on_closed(self)


class Tunnel:
    """To one member. OSError when its port of loopback can't be had. `complain` hears, in words, why none got there.

    `link`: of a member that may not be there yet.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        target: Target,
        complain: Callable[[str], None],
        link: Acquaintance | None = None,
    ) -> None:
        self._link = link
        self._selector = selector
        self._target = target
        self._complain = complain
        self._streams: set[Stream] = set()
        try:
            self._listener = socket.create_server(("127.0.0.1", target.local_port), backlog=MAX_STREAMS)
        except OSError as error:
            where = f"127.0.0.1:{target.local_port}"  # as a file's name would be: whoever says what failed says where
            raise OSError(error.errno, os.strerror(error.errno or 0), where) from error
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def engine_spoke_at(self) -> float:
        """When it last had a byte for that member, monotonic; 0: no connection of its."""
        return max((each.engine_spoke_at for each in self._streams), default=0.0)

    def check(self, now: float) -> None:
        for stream in list(self._streams):
            stream.check(now)

    def close(self) -> None:
        self._selector.unregister(self._listener)
        self._listener.close()
        for stream in list(self._streams):
            stream.close()

    def on_failed(self, why: str) -> None:
        self._complain(f"{self._target.words}: the engine's connection did not get there: {why}")

    def on_closed(self, stream: Stream) -> None:
        self._streams.discard(stream)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(0.05)  # the connection waits, readable: without a pause this would spin
            return
        if len(self._streams) >= MAX_STREAMS:
            accepted.close()
            self.on_failed(f"at most {MAX_STREAMS} are carried at a time")
            return
        stream = Stream(self._selector, accepted, self._target, self, self._link)
        self._streams.add(stream)
        stream.begin()
