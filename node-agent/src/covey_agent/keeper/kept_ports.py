"""Ports that are kept free for fronts of keepers that start later: others are told of them before.

A bound socket that doesn't listen keeps everybody else away. It is closed a moment before the keeper binds that port
itself; should somebody come in between, the attempt ends with words about it.
"""

import contextlib
import errno
import socket

from covey_api.reasons import FailureCause

from covey_agent.keeper.front import PORTS, choose_family
from covey_agent.keeper.joining import FrontSettings, require_front
from covey_agent.ports import AgentError


class KeptPorts:
    """By member. Keepers that choose by themselves begin at the other end of the range."""

    def __init__(self) -> None:
        self._held: dict[str, socket.socket] = {}

    def keep(self, instance_id: str, settings: FrontSettings | None) -> int:
        """The member's port. AgentError where other nodes don't reach this one, or no port is free."""
        if instance_id not in self._held:
            self._held[instance_id] = hold_port(require_front(settings).address)
        port: int = self._held[instance_id].getsockname()[1]
        return port

    def let_go(self, instance_id: str) -> None:
        if held := self._held.pop(instance_id, None):
            held.close()

    def close(self) -> None:
        for instance_id in list(self._held):
            self.let_go(instance_id)


def hold_port(address: str) -> socket.socket:
    family, host = choose_family(address)
    for port in reversed(PORTS):
        held = socket.socket(family, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            _bind(held, host, port)
            return held
        held.close()
    message = f"no port from {PORTS[0]} to {PORTS[-1]} is free at '{address}' for the other members to come in by"
    raise AgentError(FailureCause.EXITED, message)


def _bind(held: socket.socket, host: str, port: int) -> None:
    """An address that isn't this machine's own is listened for on every one, as the front does."""
    try:
        held.bind((host, port))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL or not host:
            raise
        held.bind(("", port))
