"""Ports for servers that are told theirs before they start.

A port that the system gives (`bind` to 0) and that is let go may be given again, to another worker's server or as
the near end of any connection, before its user listens. So these lie below the range that the system gives from, each
worker of pytest has a part of its own, and no process hands out one twice before it has been through its part.
"""

import errno
import itertools
import os
import random
import socket

_FIRST, _END = 20_000, 32_000
_PARTS = 12
_SIZE = (_END - _FIRST) // _PARTS


def _worker() -> int:
    """Which of pytest's workers this is, counted from 0; 0 too in a process that is none."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


# Other runs of pytest may be on this machine: they start elsewhere.
_counter = itertools.count(random.randrange(_SIZE))


def free_port() -> int:
    """A port that nobody listens on now, on no address, and that nobody is given by chance."""
    first = _FIRST + _worker() % _PARTS * _SIZE
    for _ in range(_SIZE):
        port = first + next(_counter) % _SIZE
        if _is_free(socket.AF_INET, "127.0.0.1", port) and _is_free(socket.AF_INET6, "::", port):
            return port
    raise AssertionError(f"all ports from {first} to {first + _SIZE - 1} are in use")


def own_address(host: int = 2) -> str:
    """A loopback address of this worker of pytest alone: what listens there by a fixed port meets no other worker's."""
    return f"127.0.{10 + _worker()}.{host}"


def _is_free(family: socket.AddressFamily, host: str, port: int) -> bool:
    """True too where the machine has no such addresses."""
    try:
        with socket.socket(family) as probe:
            if family is socket.AF_INET6:  # of IPv4 too, whatever the system's default
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind((host, port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True
