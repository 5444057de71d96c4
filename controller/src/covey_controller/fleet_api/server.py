"""The fleet API on its TCP socket: TLS 1.2 or newer with the fleet's own authority as the only trust.

The controller's certificate is made at each start for the names by which this machine is known, and anew when a third
of its life has passed, into the same TLS context: open streams don't notice.
"""

import asyncio
import ipaddress
import logging
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from covey_fleet_client.files import write_private

from covey_controller.authority import CERTIFICATE_LIFETIME, Authority
from covey_controller.denials import Denials
from covey_controller.fleet_api.app import build_fleet_app
from covey_controller.ports import Board
from covey_controller.serving.listener import BACKLOG, ListenFailed, serve
from covey_controller.tokens import Tokens

# The wall clock is looked at this often, so that a machine that slept for months is right within the hour.
_CHECK_SECONDS = 3600.0
_RENEWAL_SECONDS = CERTIFICATE_LIFETIME.total_seconds() / 3
_log = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


async def serve_fleet(
    board: Board,
    authority: Authority,
    tokens: Tokens,
    denials: Denials,
    *,
    folder: Path,
    host: str,
    port: int,
    on_listening: Callable[[str], None],
) -> None:
    """Until cancelled, then done within two seconds. `on_listening` gets the URL at which this machine reaches it.

    `folder` is `controller/` of the state folder; the server's key and certificate go there. Port 0 takes a free one.
    """
    bound = await _bind(host, port)
    closing = asyncio.Event()
    names = _observe_names(host)
    try:
        context = _make_context(authority)
        _load_certificate(context, authority, names, folder)
        url = _render_url(bound)
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(_renew_certificate(context, authority, names, folder))
            await serve(
                build_fleet_app(board, authority, tokens, denials, closing),
                bound,
                closing=closing,
                on_listening=lambda: on_listening(url),
                tls=context,
            )
            renewing.cancel()
    finally:
        bound.close()


def _make_context(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Optional: joining needs none. Whoever shows one must show one of this authority, or the handshake fails.
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=authority.bundle_pem)
    # No session tickets: a resumed session would outlive the check of the certificate.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context


async def _renew_certificate(
    context: ssl.SSLContext, authority: Authority, names: tuple[str, ...], folder: Path
) -> None:
    issued_at = time.time()
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        if time.time() - issued_at < _RENEWAL_SECONDS:
            continue
        try:
            _load_certificate(context, authority, names, folder)
        except OSError as error:
            _log.warning("the fleet API's certificate could not be renewed, next try in an hour: %s", error)
        else:
            issued_at = time.time()


def _load_certificate(context: ssl.SSLContext, authority: Authority, names: tuple[str, ...], folder: Path) -> None:
    path = folder / "server.pem"
    write_private(path, authority.issue_server(names, time.time()).encode())
    context.load_cert_chain(path)


def _observe_names(host: str) -> tuple[str, ...]:
    """Names and addresses by which agents may dial this machine."""
    hostname = socket.gethostname().lower()
    names = [*_LOOPBACK, hostname, hostname.split(".")[0]]
    names += _observe_addresses() if _is_wildcard(host) else [host]
    # A certificate takes no other names; such a machine is dialled by its address.
    return tuple(name for name in names if name and name.isascii())


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def _observe_addresses() -> list[str]:
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


async def _bind(host: str, port: int) -> socket.socket:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ListenFailed(
            f"the fleet API can't listen on '{host}:{port}': {error.strerror or error}. "
            "Choose another address or a free port with `--fleet-listen HOST:PORT`."
        ) from None


def _render_url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        return f"https://{'127.0.0.1' if address.version == 4 else '[::1]'}:{port}"
    return f"https://{address}:{port}" if address.version == 4 else f"https://[{address}]:{port}"
