"""The gateway's flags."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from covey_gateway.limits import DRAIN_SECONDS, MAX_DRAIN_SECONDS
from covey_gateway.routing.access import choose_policy
from covey_gateway.routing.cors import parse_origins

DEFAULT_LISTEN = "127.0.0.1:52415"
MAX_WORKERS = 64


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
    workers: int
    """Processes that serve."""
    drain_seconds: int
    """For answers in flight when it ends."""
    worker: str
    """What makes this process one of several: `covey_gateway.workers.worker`. Empty: it is none."""


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
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes that serve as one gateway, a core each (default 1)",
    )
    parser.add_argument(
        "--drain-seconds",
        type=int,
        default=DRAIN_SECONDS,
        metavar="N",
        help=f"how long answers in flight may take to end after SIGTERM or SIGINT (default {DRAIN_SECONDS})",
    )
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)  # of such a process, from its parent
    parser.add_argument("--lifeline", type=int, metavar="FD", help="end when this pipe ends")
    read = parser.parse_args(arguments)
    host, port = _parse_address(parser, "--listen", str(read.listen))
    if not 1 <= read.workers <= MAX_WORKERS:
        parser.error(f"`--workers` must be from 1 to {MAX_WORKERS}; got {read.workers}")
    if not 0 <= read.drain_seconds <= MAX_DRAIN_SECONDS:
        parser.error(f"`--drain-seconds` must be from 0 to {MAX_DRAIN_SECONDS}; got {read.drain_seconds}")
    if read.worker and not read.worker.startswith("{"):
        parser.error("`--worker` is what the gateway starts its own processes with; how many: `--workers N`")
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
        workers=read.workers,
        drain_seconds=read.drain_seconds,
        worker=read.worker,
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
