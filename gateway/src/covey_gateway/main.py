"""Composes the gateway: flags, socket, table or fleet link, signals, the end.

Where keys are needed (any address but loopback, without `--insecure`) nobody is served without one: a static table
without keys ends the process with words; with a controller the gateway listens, refuses every call and isn't ready
while there is no key. Rejected: to listen only once there is one (probes and clients would meet a closed port, and
nothing would tell them why), and to end (whatever starts it would start it again and again).
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import uvloop
from covey_api.pod_names import render_covey_name
from covey_fleet_client.files import ensure_private_folder
from covey_fleet_client.lifeline import watch_lifeline
from covey_fleet_client.machine import observe_machine
from covey_fleet_client.process import raise_file_limit, start_logging
from covey_fleet_client.tasks import flatten_errors

from covey_gateway.failures import StartError
from covey_gateway.fronts import Fronts
from covey_gateway.images import Images
from covey_gateway.kept_table import KeptTable
from covey_gateway.limits import DRAIN_SECONDS, ORPHAN_DRAIN_SECONDS
from covey_gateway.paths import Paths
from covey_gateway.routing.access import choose_policy
from covey_gateway.routing.cors import parse_origins
from covey_gateway.routing.table import RoutingTable, parse_endpoints
from covey_gateway.seeing import begin_access_log, serve_figures, trace_requests
from covey_gateway.server import GatewayServer, bind_socket
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import Engines

if TYPE_CHECKING:
    from covey_gateway.fleet import FleetLink
    from covey_gateway.tls import ServedCertificate, TlsDoor

DEFAULT_LISTEN = "127.0.0.1:52415"
_NO_KEYS = (
    "on '%s' others reach this gateway, and there is no access key: every call is refused until there is one. Make one "
    "with `covey key create NAME` (an AccessKey), listen on 127.0.0.1, or say `--insecure`."
)

_log = logging.getLogger("covey.gateway")


@dataclass(frozen=True, slots=True)
class Options:
    host: str
    port: int
    insecure: bool
    remote: bool
    table: Path | None
    controller_url: str
    token_file: Path | None
    authority_file: Path | None
    name: str
    state: Path
    lifeline: int | None
    image_hosts: tuple[str, ...]
    cors_origins: frozenset[bytes]
    tls: tuple[Path, Path] | None
    """Files of the certificate and of its key."""
    access_log: str
    otlp_endpoint: str
    metrics: tuple[str, int] | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 ended as asked, 1 could not serve, 2 wrong use."""
    options = parse_options(arguments)
    start_logging("gateway")
    raise_file_limit()
    code = 0
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_gateway(options))
    except* StartError as group:
        code = 1
        for error in flatten_errors(group):
            _log.error("%s", error)
    return code


def parse_options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="covey gateway", description="Relay client requests to ready endpoints.")
    parser.add_argument("--version", action="version", version=f"%(prog)s, version {version('covey-gateway')}")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--controller", metavar="URL", help="https://HOST:PORT of the controller's fleet API")
    source.add_argument("--table", type=Path, metavar="FILE", help="a static table instead of a controller")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="a join token, or a pod's ServiceAccount token")
    parser.add_argument("--authority-file", type=Path, metavar="FILE", help="whom to show a ServiceAccount token (PEM)")
    parser.add_argument("--name", default="", help="name of the gateway, or of its pod (default: the host's)")
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="the state folder (default: COVEY_STATE or the user's)"
    )
    parser.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help=f"default {DEFAULT_LISTEN}")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve HTTPS with this certificate and its chain")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key; both are read again when they change")
    parser.add_argument("--insecure", action="store_true", help="serve without keys also where others reach it")
    parser.add_argument(
        "--remote",
        action="store_true",
        help="reach every engine by its node's front, as if none were here",
    )
    parser.add_argument(
        "--image-host",
        action="append",
        metavar="HOST",
        help="fetch images from HOST, HOST:PORT, *.DOMAIN or *; repeatable (default: COVEY_IMAGE_HOSTS, or nowhere)",
    )
    parser.add_argument(
        "--cors-origin",
        action="append",
        metavar="ORIGIN",
        help="let pages of this origin read answers; repeatable (default: COVEY_CORS_ORIGINS, or none)",
    )
    parser.add_argument(
        "--access-log",
        default=os.environ.get("COVEY_ACCESS_LOG", ""),
        metavar="FILE",
        help="a JSON line a request to FILE, - for standard output (default: COVEY_ACCESS_LOG, or off)",
    )
    parser.add_argument(
        "--otlp-endpoint",
        default=os.environ.get("COVEY_OTLP_ENDPOINT", ""),
        metavar="URL",
        help="send spans of requests to this OTLP receiver over HTTP (default: COVEY_OTLP_ENDPOINT, or off)",
    )
    parser.add_argument("--metrics-listen", metavar="HOST:PORT", help="answer GET /metrics there, to anybody")
    parser.add_argument("--lifeline", type=int, metavar="FD", help="end when this pipe ends")
    read = parser.parse_args(arguments)
    host, port = _parse_address(parser, "--listen", str(read.listen))
    if (read.tls_cert is None) is not (read.tls_key is None):
        parser.error("`--tls-cert` and `--tls-key` must be given together")
    try:
        cors_origins = parse_origins(read.cors_origin or os.environ.get("COVEY_CORS_ORIGINS", "").split())
    except ValueError as error:
        parser.error(f"`--cors-origin`: {error}")
    if b"*" in cors_origins and not choose_policy(host, read.insecure).needs_key:
        parser.error("`--cors-origin *` lets every page in the world ask; it is taken only where a key is needed")
    return Options(
        host=host,
        port=port,
        insecure=read.insecure,
        remote=read.remote,
        table=read.table,
        controller_url=read.controller or "",
        token_file=read.token_file,
        authority_file=read.authority_file,
        name=read.name,
        state=read.state or _default_state(),
        lifeline=read.lifeline,
        access_log=read.access_log,
        otlp_endpoint=_parse_receiver(parser, read.otlp_endpoint),
        metrics=_parse_address(parser, "--metrics-listen", read.metrics_listen) if read.metrics_listen else None,
        image_hosts=tuple(read.image_host or os.environ.get("COVEY_IMAGE_HOSTS", "").split()),
        cors_origins=cors_origins,
        tls=None if read.tls_cert is None else (read.tls_cert, read.tls_key),
    )


def _parse_address(parser: argparse.ArgumentParser, flag: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        parser.error(f"`{flag}` must be HOST:PORT with a port from 0 to 65535; got '{text}'")
    return host.strip("[]"), int(port)


def _parse_receiver(parser: argparse.ArgumentParser, text: str) -> str:
    """Without a login: an address ends up in logs."""
    if not text:
        return ""
    if not _is_receiver(text):
        parser.error(
            "`--otlp-endpoint` must be http://HOST:PORT or https://…; a login goes into OTEL_EXPORTER_OTLP_HEADERS"
        )
    if not _has_otlp():
        parser.error("`--otlp-endpoint` needs the extra `otlp`, which isn't installed here: `covey-gateway[otlp]`")
    return text.rstrip("/")


def _is_receiver(text: str) -> bool:
    try:
        found = urlsplit(text)
        found.port  # noqa: B018 - looked at only when it is asked for
    except ValueError:
        return False
    is_plain = not (found.query or found.fragment or "@" in found.netloc)
    return found.scheme in ("http", "https") and bool(found.hostname) and is_plain


def _has_otlp() -> bool:
    """Without loading it: that takes a while."""
    try:
        return all(find_spec(each) for each in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"))
    except ModuleNotFoundError:
        return False


def _default_state() -> Path:
    if configured := os.environ.get("COVEY_STATE"):
        return Path(configured)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local/state") / "covey"


class _Stop:
    """Why and how fast the gateway ends."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.drain_seconds = DRAIN_SECONDS

    def request(self, why: str, drain_seconds: float) -> None:
        if not self.requested.is_set():
            _log.info("%s: answers in flight get %.0f s", why, drain_seconds)
            self.drain_seconds = drain_seconds
            self.requested.set()

    async def follow_lifeline(self, descriptor: int) -> None:
        await watch_lifeline(descriptor)
        self.request("the parent is gone", ORPHAN_DRAIN_SECONDS)


async def run_gateway(options: Options) -> None:
    """Serve until asked to stop. StartError (in a group) when that isn't possible."""
    certificate = _load_certificate(options.tls)
    bound = bind_socket(options.host, options.port)
    address = _render_address(bound, "http" if certificate is None else "https")
    loop = asyncio.get_running_loop()
    stop = _Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.request, signal.Signals(number).name, DRAIN_SECONDS)
    traffic = Traffic(choose_policy(options.host, options.insecure, options.cors_origins), loop.time)
    async with asyncio.TaskGroup() as tasks:
        fronts = Fronts(options.state / "gateway") if options.table is None else None
        engines = Engines(loop, tasks.create_task, fronts)
        server = GatewayServer(traffic, engines, Images(tasks.create_task, options.image_hosts))
        paths = Paths(engines, traffic, loop.time)

        def apply(table: RoutingTable) -> None:
            had_table, was_open = traffic.has_table, traffic.is_ready
            engines.forget(traffic.apply_table(table))
            paths.look_again()
            if not traffic.is_ready and (was_open or not had_table):
                _log.warning(_NO_KEYS, options.host)
            elif traffic.is_ready and had_table and not was_open:
                _log.info("there is an access key: serving")

        background = [tasks.create_task(server.sweep())]
        if (logging_task := begin_access_log(options.access_log, traffic, tasks.create_task)) is not None:
            background.append(logging_task)
        if options.metrics is not None:
            background.append(tasks.create_task(serve_figures(*options.metrics, traffic)))
        if options.otlp_endpoint:
            background.append(tasks.create_task(trace_requests(options.otlp_endpoint, traffic)))
        if options.lifeline is not None:
            background.append(tasks.create_task(stop.follow_lifeline(options.lifeline)))
        if options.table is not None:
            from covey_gateway.table import load_table  # YAML is nothing that a gateway of a fleet reads

            table = load_table(options.table)
            if traffic.policy.needs_key and not table.keys:
                raise StartError(
                    f"on '{options.host}' others reach this gateway, so '{options.table}' must have `keys`, and it has "
                    "none. Add one, listen on 127.0.0.1, or say `--insecure`."
                )
            apply(table)
        kept = _open_state(options) if options.table is None else None
        machine = None if options.remote or kept is None else observe_machine()
        if kept is not None and (saved := kept.load()):
            apply(parse_endpoints(saved, machine))
        await server.start(bound, certificate and _make_door(certificate, tasks))
        _log.info("listening on %s", address)
        await server.app.load()
        link = None
        if kept is not None:
            # On a thread: TLS and an HTTP client take a moment to load, and clients are served meanwhile.
            await asyncio.to_thread(import_module, "covey_gateway.fleet")
            link = _build_link(options, traffic, apply, kept, address, machine)
            background.append(tasks.create_task(link.run()))
            background.append(tasks.create_task(paths.run()))
        await stop.requested.wait()
        await server.drain(stop.drain_seconds)
        if link is not None:
            await link.report_last()
        for task in background:
            task.cancel()


def _open_state(options: Options) -> KeptTable:
    folder = options.state / "gateway"
    try:
        ensure_private_folder(options.state)
        ensure_private_folder(folder)
    except OSError as error:
        raise StartError(f"the state folder can't be used: {error}") from None
    return KeptTable(folder)


def _build_link(
    options: Options,
    traffic: Traffic,
    apply: Callable[[RoutingTable], None],
    kept: KeptTable,
    address: str,
    machine: str | None,
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
    )


def _load_certificate(files: tuple[Path, Path] | None) -> "ServedCertificate | None":
    if files is None:
        return None
    from covey_gateway.tls import ServedCertificate  # TLS takes a moment to load

    return ServedCertificate(*files)


def _make_door(certificate: "ServedCertificate", tasks: asyncio.TaskGroup) -> "TlsDoor":
    from covey_gateway.tls import TlsDoor

    return TlsDoor(certificate, tasks.create_task)


def _render_address(bound: socket.socket, scheme: str) -> str:
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
