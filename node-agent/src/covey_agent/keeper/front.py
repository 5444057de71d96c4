"""The TLS front: the way by which gateways of other machines reach this member's engine, and nobody else reaches it.

Owns the listening socket, who may come in, and how many at a time. What a connection does is `Carrier`'s, whose
certificates count is `Credentials`'. It forwards to one port of loopback, the engine's, and can't be told of another.

Who comes in has shown, in this order: the name of this very attempt in the handshake (`covey_api`'s
`render_front_name`, so that a stale table never reaches another engine on a port that was used before); a certificate
of this fleet's authority; the role of a gateway; and not to have been removed. Everything else is refused with a line
in `front.log`, before a byte goes to the engine.

Where other members of the attempt come in (`covey_agent.keeper.neighbours`) the names are this member's own, the role
an agent's, and the node must be one of theirs. No gateway comes in there then, but to a ring's rank 0: by another name,
to another port of the engine's.

Only a keeper that is told of an address opens a front, and only then `ssl` is imported: it is most of what a front
costs in memory.
"""

import errno
import math
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from covey_agent.keeper.carrier import AGAIN_SECONDS, Carrier
from covey_agent.keeper.credentials import Credentials, name_of
from covey_agent.keeper.output import Ring
from covey_agent.keeper.sides import PeerSide

if TYPE_CHECKING:
    from covey_agent.keeper.neighbours import Neighbours

# A range of its own, so that a firewall rule can be written; as many as members that a node has at a time.
PORTS = range(52500, 52600)
# Several gateways with all slots of an engine busy. Each takes two descriptors and at most two chunks: 32 MiB in all.
MAX_CARRIERS = 256
# Of them, those that have not shown who they are: strangers must not use up the room of gateways.
MAX_HANDSHAKES = 64
BACKLOG = 128
# A gateway's machine that lost its power is found out within a minute, and its place is free again.
KEEPALIVE_SECONDS = (30, 10, 3)
# How soon deadlines are seen, and open connections of a gateway that was removed are ended.
REVIEW_SECONDS = 1.0
LOG_BYTES = 64 * 1024
# A flood of strangers must not wear out a disk; what is left out is counted.
MAX_LINES_A_MINUTE = 60


class Front:
    """`launch`: the keeper's, with `front`: {address, name, identity}. `port` is 0 when it could not be opened.

    `neighbours`: of a member of several.
    """

    def __init__(
        self, selector: selectors.BaseSelector, launch: dict[str, Any], neighbours: "Neighbours | None" = None
    ) -> None:
        self._selector = selector
        self._neighbours = neighbours
        self._engine_port = int(launch["port"])
        self._log = neighbours.log if neighbours else Log()
        identity = launch["front"]["identity"]
        self._guests: dict[str, Credentials] = {}
        """Who comes in, by the name that is asked for."""
        if neighbours is not None and neighbours.admitted:
            only = frozenset(neighbours.admitted)
            members = Credentials(identity, self._hear_name, self._log.write, "agent", "node", only)
            self._guests |= dict.fromkeys(neighbours.names, members)
        if neighbours is None or not neighbours.admitted or neighbours.answers:
            self._guests[str(launch["front"]["name"])] = Credentials(identity, self._hear_name, self._log.write)
        self._carriers: set[Carrier] = set()
        self._reviewed = self._observe_refused()
        self.due: float | None = None
        """When `check` is to be called next, monotonic; None while nobody is connected."""
        self.problem = ""
        """Why it could not be opened; empty: it is."""
        kept_port = neighbours.front_port if neighbours else 0
        self._listener = open_listener(launch["front"]["address"], self._complain, kept_port)
        self.port = 0
        if self._listener is not None:
            self.port = self._listener.getsockname()[1]
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _complain(self, words: str) -> None:
        self.problem = words
        self._log.write(words)

    def check(self, now: float) -> None:
        """Close who let a deadline pass, and who was removed meanwhile."""
        if self.due is None or now < self.due:
            return
        refused = self._observe_refused()
        has_news = any(one is not other for one, other in zip(refused, self._reviewed, strict=True))
        self._reviewed = refused
        self.due = now + REVIEW_SECONDS
        for carrier in list(self._carriers):
            carrier.check(now)
            if carrier.deadline is not None and now >= carrier.deadline:
                if not carrier.is_open:
                    self.on_refused(carrier, "it must show who it is in time; it didn't")
                carrier.close()
            elif has_news and carrier.is_open and (why := self.explain_refusal(carrier)):
                self.on_refused(carrier, why)
                carrier.close()
        if not self._carriers:
            self.due = None

    def close(self) -> None:
        """The engine has ended: its port may be another process's soon."""
        for carrier in list(self._carriers):
            carrier.close()
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    # What a carrier asks.

    def explain_refusal(self, carrier: Carrier) -> str:
        return self._guests[carrier.asked].explain_refusal(carrier.certificate)

    def choose_port(self, carrier: Carrier) -> tuple[int, float]:
        if self._neighbours is None or carrier.asked not in self._neighbours.names:
            return self._engine_port, 0.0
        return self._neighbours.ring_port or self._engine_port, self._neighbours.observe_patience()

    def on_waiting(self) -> None:
        self.due = min(self.due or math.inf, time.monotonic() + AGAIN_SECONDS)

    def _observe_refused(self) -> tuple[dict[str, float], ...]:
        return tuple(each.observe_refused() for each in self._guests.values())

    def take_link(self, carrier: Carrier) -> bool:
        if self._neighbours is None or carrier.asked != self._neighbours.link_name:
            return False
        node = name_of(carrier.certificate).rpartition("/")[2]
        if why := self._neighbours.explain_full(node):
            self.on_refused(carrier, why)
            carrier.close()
        else:
            self._neighbours.take(node, carrier.certificate, carrier.release())
        return True

    def on_refused(self, carrier: Carrier, why: str) -> None:
        self._log.write(f"{carrier.name} is refused: {why}")

    def on_closed(self, carrier: Carrier) -> None:
        self._carriers.discard(carrier)

    def _hear_name(self, peer: object, name: str | None, _: ssl.SSLContext) -> int | None:
        carriers = [each for each in self._carriers if each.peer.tls is peer]
        if name is not None and name in self._guests:
            for carrier in carriers:
                carrier.asked = name
            return None
        for carrier in carriers:
            carrier.refusal = f"it asks for '{(name or 'nothing')[:128]}'; here is '{next(iter(self._guests))}'"
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            accepted, address = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(0.05)  # the connection waits, readable: without a pause this would spin
            return
        name = f"{address[0]}:{address[1]}"
        if why := self._explain_full():
            self._log.write(f"{name} is refused: {why}")
            accepted.close()
            return
        # Of whoever comes first: who is who shows by the name, and all contexts ask for it.
        context = next(iter(self._guests.values())).observe_context()
        if context is None:
            self._log.write(f"{name} is refused: this node has no certificate yet")
            accepted.close()
            return
        try:
            prepare_peer(accepted)
        except OSError:
            accepted.close()  # it has gone already
            return
        self._make_room()
        peer = PeerSide(accepted, context)
        self._carriers.add(Carrier(self._selector, peer, name, self))
        if self.due is None:
            self.due = time.monotonic() + REVIEW_SECONDS

    def _explain_full(self) -> str:
        if len(self._carriers) >= MAX_CARRIERS:
            return f"at most {MAX_CARRIERS} connections are carried at a time"
        return ""

    def _make_room(self) -> None:
        """Who is the longest in its handshake gives way: a gateway needs milliseconds. Were the newest one refused, a
        stranger who dials a dozen times a second and says nothing would keep every gateway out."""
        beginning = [each for each in self._carriers if not each.is_known and each.deadline is not None]
        if len(beginning) >= MAX_HANDSHAKES:
            oldest = min(beginning, key=lambda each: each.deadline or 0.0)
            self.on_refused(oldest, f"at most {MAX_HANDSHAKES} connections may be in their handshake; it took longest")
            oldest.close()


class Log:
    """`front.log`: one line each, so many a minute."""

    def __init__(self) -> None:
        self._ring = Ring("front.log", LOG_BYTES)
        self._minute = 0
        self._lines = 0

    def write(self, words: str) -> None:
        now = time.time()
        if int(now // 60) != self._minute:
            if self._lines > MAX_LINES_A_MINUTE:
                self._put(now, f"{self._lines - MAX_LINES_A_MINUTE} more lines of an earlier minute were left out")
            self._minute, self._lines = int(now // 60), 0
        self._lines += 1
        if self._lines <= MAX_LINES_A_MINUTE:
            self._put(now, words)

    def _put(self, now: float, words: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        # A peer chooses some of the words: they must stay one line.
        clean = "".join(letter if letter.isprintable() else "?" for letter in words)
        self._ring.write(f"{stamp} {clean}\n".encode(errors="replace"))


def open_listener(address: str, complain: Callable[[str], None], kept_port: int = 0) -> socket.socket | None:
    """The first port of the range that is free on this address; None when none is. `kept_port`: that one alone.

    A name, or an address that this machine doesn't have itself (it is behind another that passes connections on), is
    listened for on every address.
    """
    family, host = choose_family(address)
    ports = (kept_port,) if kept_port else PORTS
    for port in ports:
        try:
            listener = listen(family, host, port)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL and host:
                return open_listener("", complain, kept_port)
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                complain(f"no front on '{host}': {error.strerror or error}")
                return None
        else:
            listener.setblocking(False)
            return listener
    which = f"port {kept_port} is" if kept_port else f"all ports from {PORTS[0]} to {PORTS[-1]} are"
    complain(f"no front on '{host}': {which} in use")
    return None


def listen(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not host:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def choose_family(address: str) -> tuple[socket.AddressFamily, str]:
    """How to listen on this address; an empty host is every address, of both families where there is IPv6."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, address)
        except OSError:
            continue
        return family, address
    return (socket.AF_INET6, "") if socket.has_dualstack_ipv6() else (socket.AF_INET, "")


def prepare_peer(accepted: socket.socket) -> None:
    """For its role: tokens at once, and its death noticed. OSError when it is dead already."""
    accepted.setblocking(False)
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    for name, value in zip(names, KEEPALIVE_SECONDS, strict=True):
        if hasattr(socket, name):  # macOS names the first one otherwise, and keeps its own two hours
            accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
