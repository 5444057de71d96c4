"""Connections of whoever hasn't shown a certificate: bounded by address and in all, the oldest makes room for another.

The fleet API must take them, for who joins has no certificate yet; a join is over in milliseconds, so one that is old
is the least likely to be somebody's. Half of all places are never theirs. Rejected: to refuse the newest where there is
no room. Then who came first and stays keeps everybody else out, members with certificates too, since nobody can show
one before there is a connection.

Connections that another replica passes on have its address, and so have those behind one NAT: a bound by address has to
let in a fleet that dials again all at once.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

# Of the listener's 4,096. A handshake takes milliseconds: a thousand machines that dial at once are past it in turns.
MAX_GUESTS = 2048
MAX_GUESTS_OF_ONE = 512
# Who has one address of IPv6 has as many as this prefix leaves free.
_PREFIX_BITS = 64


@dataclass(eq=False, slots=True)
class Guest:
    network: str
    end: Callable[[], None]
    """End the connection, in whatever state it is."""


class Guests:
    """One event loop, no locks."""

    def __init__(self) -> None:
        self._present: dict[Guest, None] = {}

    def enter(self, host: str, end: Callable[[], None]) -> Guest:
        """A connection began; where there is no room for it, the oldest of its address, or of all, is ended."""
        guest = Guest(network_of(host), end)
        own = [each for each in self._present if each.network == guest.network]
        if len(own) >= MAX_GUESTS_OF_ONE:
            self._end(own[0])
        elif len(self._present) >= MAX_GUESTS:
            self._end(next(iter(self._present)))
        self._present[guest] = None
        return guest

    def leave(self, guest: Guest) -> None:
        """It ended, or showed a certificate."""
        self._present.pop(guest, None)

    def _end(self, guest: Guest) -> None:
        self.leave(guest)
        guest.end()


def network_of(host: str) -> str:
    """What one peer can change at will counts as one: an address of IPv4, the upper half of one of IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _PREFIX_BITS), strict=False))
    return str(address)
