"""How good the way between two nodes is, for an engine that runs over several: the kind of link, as far as it is known.

Wi-Fi has a tenth of Ethernet's bandwidth and its delays vary; a tunnel adds its own to whatever is below it, so it is
never better than a link of which nothing is known. A tunnel shows by its address; so does a node that only its own
machine reaches.
"""

from collections.abc import Callable
from enum import IntEnum
from ipaddress import ip_address, ip_network


class LinkKind(IntEnum):
    """Best first."""

    THUNDERBOLT = 0
    ETHERNET = 1
    WIFI = 2
    UNKNOWN = 3
    VPN = 4
    NONE = 5
    """No way: one of them is at an address of loopback, the other elsewhere."""

    def __str__(self) -> str:
        return _WORDS[self]


_WORDS = {
    LinkKind.THUNDERBOLT: "Thunderbolt",
    LinkKind.ETHERNET: "Ethernet",
    LinkKind.WIFI: "Wi-Fi",
    LinkKind.UNKNOWN: "a link of unknown kind",
    LinkKind.VPN: "a VPN",
    LinkKind.NONE: "no link",
}
# Tailscale's: carrier-grade NAT's range, and its own of IPv6.
_TUNNELS = (ip_network("100.64.0.0/10"), ip_network("fd7a:115c:a1e0::/48"))

Links = Callable[[str, str], LinkKind]
"""The kind of link between two nodes, by their names."""


def unknown_links(one: str, other: str) -> LinkKind:
    """Nothing is known of any."""
    return LinkKind.UNKNOWN


def classify_link(kind: LinkKind, *addresses: str) -> LinkKind:
    """What is known of a link, and the addresses at its ends: one in a tunnel's range makes it a tunnel."""
    if len({_is_loopback(address) for address in addresses if address}) > 1:
        return LinkKind.NONE
    return LinkKind.VPN if any(_is_tunnel(address) for address in addresses) else kind


def _is_tunnel(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:  # a name
        return False
    return any(parsed in network for network in _TUNNELS if network.version == parsed.version)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
