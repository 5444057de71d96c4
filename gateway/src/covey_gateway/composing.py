"""What a gateway is put together from, whether one process serves or several do."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from covey_api.messages import Endpoints
from covey_api.pod_names import render_covey_name
from covey_fleet_client.files import ensure_private_folder
from covey_fleet_client.lifeline import watch_lifeline

from covey_gateway.failures import StartError
from covey_gateway.kept_table import KeptTable
from covey_gateway.limits import ORPHAN_DRAIN_SECONDS
from covey_gateway.options import Options
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.table import RoutingTable
from covey_gateway.traffic import Traffic

if TYPE_CHECKING:
    from covey_gateway.fleet import FleetLink
    from covey_gateway.tls import ServedCertificate, TlsDoor

_NO_KEYS = (
    "on '%s' others reach this gateway, and there is no access key: every call is refused until there is one. Make one "
    "with `covey key create NAME` (an AccessKey), listen on 127.0.0.1, or say `--insecure`."
)

_log = logging.getLogger("covey.gateway")


class Stop:
    """Why and how fast the gateway ends."""

    def __init__(self, drain_seconds: float) -> None:
        self.requested = asyncio.Event()
        self.drain_seconds = drain_seconds

    def follow_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request, signal.Signals(number).name, self.drain_seconds)

    def request(self, why: str, drain_seconds: float) -> None:
        if not self.requested.is_set():
            _log.info("%s: answers in flight get %.0f s", why, drain_seconds)
            self.drain_seconds = drain_seconds
            self.requested.set()

    async def follow_lifeline(self, descriptor: int) -> None:
        await watch_lifeline(descriptor)
        self.request("the parent is gone", ORPHAN_DRAIN_SECONDS)


def open_state(options: Options) -> KeptTable:
    folder = options.state / "gateway"
    try:
        ensure_private_folder(options.state)
        ensure_private_folder(folder)
    except OSError as error:
        raise StartError(f"the state folder can't be used: {error}") from None
    return KeptTable(folder)


def build_link(
    options: Options,
    traffic: Traffic,
    apply: Callable[[RoutingTable], None],
    kept: KeptTable,
    address: str,
    machine: str | None,
    share: Callable[[int], None],
    pass_down: Callable[[Endpoints], None] = lambda _: None,
) -> "FleetLink":
    # TLS and an HTTP client are 15 MB that a gateway with a static table has no use for.
    from covey_fleet_client.identity import read_name, render_name
    from covey_fleet_client.join import Admission

    from covey_gateway.fleet import FleetLink

    # The name that it joined by: a machine that is called otherwise since then needs no new certificate.
    name = render_covey_name(options.name) if options.name else read_name(kept.folder)
    return FleetLink(
        traffic,
        apply,
        kept,
        options.controller_url,
        Admission(options.token_file, options.authority_file),
        name or render_name(socket.gethostname()),
        address,
        machine,
        share,
        pass_down,
    )


def load_certificate(files: tuple[Path, Path] | None) -> "ServedCertificate | None":
    if files is None:
        return None
    from covey_gateway.tls import ServedCertificate  # TLS takes a moment to load

    return ServedCertificate(*files)


def make_door(certificate: "ServedCertificate", tasks: asyncio.TaskGroup) -> "TlsDoor":
    from covey_gateway.tls import TlsDoor

    return TlsDoor(certificate, tasks.create_task)


def render_address(bound: socket.socket, scheme: str) -> str:
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def apply_told(traffic: Traffic, table: RoutingTable, host: str) -> frozenset[str]:
    """Route by this table; say when that opens or closes the gateway. Gives the ids of endpoints that left."""
    had_table, was_open = traffic.has_table, traffic.is_ready
    left = traffic.apply_table(table)
    if not traffic.is_ready and (was_open or not had_table):
        _log.warning(_NO_KEYS, host)
    elif traffic.is_ready and had_table and not was_open:
        _log.info("there is an access key: serving")
    return left


def require_keys(options: Options, policy: AccessPolicy, table: RoutingTable) -> None:
    """StartError where a static table has none and nobody would be served."""
    if policy.needs_key and not table.keys:
        raise StartError(
            f"on '{options.host}' others reach this gateway, so '{options.table}' must have `keys`, and it has "
            "none. Add one, listen on 127.0.0.1, or say `--insecure`."
        )
