"""A TLS connection to the front of another member's keeper, while it is made: TCP, the handshake, who answers.

Addresses are numbers: a keeper asks no name server, since that would block its loop.
"""

import errno
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

from covey_agent.keeper.carrier import OPEN_SECONDS, explain_handshake
from covey_agent.keeper.credentials import Credentials
from covey_agent.keeper.front import prepare_peer
from covey_agent.keeper.sides import PeerSide, observe_dial
from covey_agent.keeper.ways import Watch

# What a system says of a dial, and what people find behind it. The number alone tells nobody whom to ask.
_MEANINGS = {
    errno.ECONNREFUSED: "its machine answers and nothing listens there: its keeper ended, or a firewall refuses",
    errno.ETIMEDOUT: "its machine is off or cut off, or a firewall drops what comes",
    errno.EHOSTUNREACH: "there is no way to it: its machine is off or cut off, or a firewall forbids it",
    errno.ENETUNREACH: "this node has no route to it",
    errno.EACCES: "a firewall of this node forbids it",
    errno.EPERM: "a firewall of this node forbids it",
}


class DialError(Exception):
    """The other keeper wasn't reached; the words say why."""


@dataclass(frozen=True, slots=True)
class Target:
    """One neighbour whose front is dialled."""

    member: str
    node: str
    address: str
    port: int
    stream_name: str
    link_name: str
    local_port: int
    """On loopback here, where this member's engine finds that one."""
    credentials: Credentials
    """Which let in that node alone."""

    @property
    def words(self) -> str:
        return f"member '{self.member}' on node '{self.node}'"


class Dial:
    """`advance` it whenever its socket is ready; DialError at once, or from there, when nobody is reached."""

    def __init__(self, target: Target, name: str) -> None:
        context = target.credentials.observe_context()
        if context is None:
            raise DialError("this node has no certificate yet")
        self._target = target
        self._is_connected = False
        self.deadline = time.monotonic() + OPEN_SECONDS
        """Monotonic."""
        connection = socket.socket(socket.AF_INET6 if ":" in target.address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            prepare_peer(connection)
            number = connection.connect_ex((target.address, target.port))
            if number not in (0, errno.EINPROGRESS):
                raise OSError(number, os.strerror(number))
            self._own = str(connection.getsockname()[0])
        except OSError as error:
            connection.close()
            where = f"{target.address}:{target.port}"
            raise DialError(f"{where}: {_explain_number(error.errno or 0, error.strerror or str(error))}") from error
        self.peer = PeerSide(connection, context, name)

    @property
    def certificate(self) -> dict[str, Any]:
        return self.peer.tls.getpeercert() or {}

    def advance(self) -> bool:
        """Whether it is open, and who answers is who was meant."""
        where = self._where
        if not self._is_connected:
            if number := observe_dial(self.peer.socket):
                raise DialError(f"{where}: {_explain_number(number, os.strerror(number))}")
            self._is_connected = True
        try:
            is_done = self.peer.shake_hands()
        except OSError as error:
            raise DialError(f"{where}: {explain_handshake(error)}") from error
        if is_done and (why := self._target.credentials.explain_refusal(self.certificate)):
            raise DialError(f"{where}: {why}")
        return is_done

    def listen(self, watch: Watch) -> None:
        """Hear of what it waits for."""
        watch.set(self.peer.socket, reads=self._is_connected, writes=not self._is_connected or self.peer.is_full)

    def explain_late(self) -> str:
        if self._is_connected:
            return f"{self._where}: it took the connection and did not answer within {OPEN_SECONDS:.0f} s"
        met = f"timed out, no answer within {OPEN_SECONDS:.0f} s"
        return f"{self._where}: {met}: {_MEANINGS[errno.ETIMEDOUT]}"

    @property
    def _where(self) -> str:
        """With the address of this node from which the system dials it: it tells which of its cards was used."""
        return f"{self._target.address}:{self._target.port} from {self._own}"


def _explain_number(number: int, words: str) -> str:
    return f"{words}: {_MEANINGS[number]}" if number in _MEANINGS else words
