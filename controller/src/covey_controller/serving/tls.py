"""The controller's side of TLS: one context at a time, replaced when the authority is, renewed in its last two thirds.

A connection keeps the context that it began with. Python loads a certificate from files only, so it is in one.
"""

import asyncio
import ipaddress
import logging
import socket
import ssl
import time
from pathlib import Path

from covey_fleet_client.files import write_private

from covey_controller.authority import CERTIFICATE_LIFETIME, Authority
from covey_controller.serving.listener import BACKLOG, ListenFailed
from covey_controller.trust import Trust

# The wall clock is looked at this often, so that a machine that slept for months is right within the hour.
_CHECK_SECONDS = 3600.0
_RENEWAL_SECONDS = CERTIFICATE_LIFETIME.total_seconds() / 3
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_log = logging.getLogger(__name__)


class ServerTls:
    """`names`: host names and addresses of the certificate. `path`: a private file for it and its key.

    OSError if that can't be written.
    """

    def __init__(self, trust: Trust, names: tuple[str, ...], path: Path, *, asks_certificate: bool) -> None:
        self._trust = trust
        self._names = names
        self._path = path
        self._asks_certificate = asks_certificate
        self._issued_at = 0.0
        self._authority = trust.current
        self._context = self._make()

    def context(self) -> ssl.SSLContext:
        """For a connection that begins now."""
        return self._context

    async def watch(self) -> None:
        """Keep the context current, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._trust.wait_changed()
            except TimeoutError:
                pass
            if self._trust.current is self._authority and time.time() - self._issued_at < _RENEWAL_SECONDS:
                continue
            try:
                self._context = self._make()
            except OSError as error:
                _log.warning("the server's certificate could not be renewed, next try in an hour: %s", error)

    def _make(self) -> ssl.SSLContext:
        authority, now = self._trust.current, time.time()
        write_private(self._path, authority.issue_server(self._names, now).encode())
        context = _make_context(authority, asks_certificate=self._asks_certificate)
        context.load_cert_chain(self._path)
        self._authority, self._issued_at = authority, now
        return context


def _make_context(authority: Authority, *, asks_certificate: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if asks_certificate:
        # Optional: joining needs none. Whoever shows one must show one of this authority, or the handshake fails.
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=authority.bundle_pem)
    # No session tickets: a resumed session would outlive the check of the certificate.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context


def observe_names(host: str) -> tuple[str, ...]:
    """Names and addresses by which this machine may be dialled when it listens on this host."""
    hostname = socket.gethostname().lower()
    names = [*_LOOPBACK, hostname, hostname.split(".")[0]]
    names += observe_addresses() if is_wildcard(host) else [host]
    # A certificate takes no other names; such a machine is dialled by its address.
    return tuple(name for name in names if name and name.isascii())


async def bind_tcp(host: str, port: int, flag: str) -> socket.socket:
    """Port 0 takes a free one. ListenFailed names the flag that says another."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        what = flag.removeprefix("--").removesuffix("-listen")
        raise ListenFailed(
            f"the {what} API can't listen on '{host}:{port}': {error.strerror or error}. "
            f"Choose another address or a free port with `{flag} HOST:PORT`."
        ) from None


def render_url(bound: socket.socket, scheme: str = "https") -> str:
    """At which this machine reaches it."""
    host, port = bound.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        return f"{scheme}://{'127.0.0.1' if address.version == 4 else '[::1]'}:{port}"
    return f"{scheme}://{address}:{port}" if address.version == 4 else f"{scheme}://[{address}]:{port}"


def is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def observe_addresses() -> list[str]:
    """Addresses from which this machine would reach others: a connected UDP socket tells, and sends nothing."""
    addresses: list[str] = []
    # Addresses kept for documentation: routed like any other, owned by nobody.
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                addresses.append(str(probe.getsockname()[0]))
        except OSError:
            continue
    return addresses
