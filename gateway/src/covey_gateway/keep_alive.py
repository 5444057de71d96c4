"""Notices that the machine at the other end is gone: nothing else ends a connection on which nobody has to speak.

Engines are silent for minutes while they read a prompt; a machine without power is silent for ever. The kernel asks the
other kernel, so a busy engine costs nothing. Rejected: `TCP_USER_TIMEOUT`, which would notice as soon that what was
sent is never confirmed, while nothing is asked; it also ends connections to an engine that lives, and reads no more of
a long body for a while. A request that goes out to a machine just gone has the deadlines of requests alone.
"""

import socket
from typing import Any

from covey_gateway.limits import KEEP_ALIVE_IDLE_SECONDS, KEEP_ALIVE_PROBE_SECONDS, KEEP_ALIVE_PROBES

# By name, since systems differ in what they have; macOS calls the first one otherwise.
_OPTIONS = (
    ("TCP_KEEPIDLE", KEEP_ALIVE_IDLE_SECONDS),
    ("TCP_KEEPALIVE", KEEP_ALIVE_IDLE_SECONDS),
    ("TCP_KEEPINTVL", KEEP_ALIVE_PROBE_SECONDS),
    ("TCP_KEEPCNT", KEEP_ALIVE_PROBES),
)


def apply_keep_alive(connection: Any) -> None:
    """`connection`: a socket, or what a transport shows for one."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        option: int | None = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
