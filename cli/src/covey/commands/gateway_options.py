"""Options of `covey up` and `covey join` that are their gateway's own flags."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import click

from covey.errors import CommandError, ExitCode

Command = TypeVar("Command", bound=Callable[..., Any])

# The gateway's own, where nothing else is said.
DRAIN_SECONDS = 10

_FILE = click.Path(path_type=Path, dir_okay=False)
_OPTIONS = (
    click.option("--tls-cert", type=_FILE, help="The gateway speaks HTTPS, with this certificate and its chain (PEM)."),
    click.option("--tls-key", type=_FILE, help="Its key; both are read again when they change."),
    click.option("--cors-origin", multiple=True, metavar="ORIGIN", help="Web pages that may read answers; repeatable."),
    click.option("--access-log", type=_FILE, help="The gateway writes a JSON line a request to this file."),
    click.option("--otlp-endpoint", metavar="URL", help="The gateway sends spans of requests there (OTLP over HTTP)."),
    click.option(
        "--workers", type=click.IntRange(1, 64), metavar="N", help="The gateway serves by N processes, a core each."
    ),
    click.option(
        "--drain-seconds",
        type=click.IntRange(0, 3600),
        metavar="N",
        help="How long the gateway lets answers in flight end when it is stopped; 10 if not given.",
    ),
)
_NAMES = (
    "tls_cert",
    "tls_key",
    "cors_origin",
    "access_log",
    "otlp_endpoint",
    "metrics_listen",
    "workers",
    "drain_seconds",
)
# Where the gateway takes these from, too.
_VARIABLES = ("COVEY_CORS_ORIGINS", "COVEY_ACCESS_LOG", "COVEY_OTLP_ENDPOINT")


def gateway_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_gateway_flags(
    given: dict[str, Any], listen: str, *, is_open: bool = False, is_own_environment: bool = True
) -> tuple[str, ...]:
    """The gateway's flags, taken out of all that was given. What it would refuse is refused here, before anything
    starts: it would be started again and again. `listen` is empty where none is started; `is_open`: it serves without
    keys, whoever reaches it; `is_own_environment`: it will have this process's."""
    flags = tuple(_render({name: given.pop(name) for name in _NAMES if name in given}))
    if flags and not listen:
        raise CommandError(f"{flags[0]} is the gateway's, and --no-gateway starts none", ExitCode.WRONG_USE)
    if listen and (
        flags
        or not _is_own_address(listen)
        or (is_own_environment and any(os.environ.get(name) for name in _VARIABLES))
    ):
        opened = ["--insecure"] if is_open else []
        _check(["--controller", "https://unused", "--listen", listen, *opened, *flags])
    return flags


def check_gateway_flags(parameters: Mapping[str, Any]) -> None:
    """The same of all parameters of `covey up` or `covey join`, before it is started by somebody else."""
    listen = parameters.get("listen") or f"127.0.0.1:{parameters.get('port')}"
    given = dict(parameters)
    if "port" in given:
        del given["metrics_listen"]  # the controller's, there
    listen = "" if given.get("no_gateway") else listen
    take_gateway_flags(given, listen, is_open=bool(given.get("insecure")), is_own_environment=False)


def _is_own_address(listen: str) -> bool:
    """The usual one, which needs no closer look: the gateway is loaded for nobody who says nothing of it."""
    host, _, port = listen.rpartition(":")
    return host == "127.0.0.1" and port.isascii() and port.isdigit() and int(port[:6]) < 65_536


def _check(arguments: list[str]) -> None:
    from covey_gateway.failures import StartError  # the gateway is loaded for nobody who says nothing of it
    from covey_gateway.main import parse_options

    said = StringIO()
    try:
        with redirect_stderr(said):
            options = parse_options(arguments)
        if options.tls is not None:
            from covey_gateway.tls import ServedCertificate

            ServedCertificate(*options.tls)
        if options.access_log:
            from covey_gateway.seeing import check_access_log

            check_access_log(options.access_log)
    except SystemExit:  # its parser has said why, in the last line
        words = said.getvalue().strip().rpartition("error: ")[2]
        raise CommandError(words, ExitCode.WRONG_USE) from None
    except StartError as error:
        raise CommandError(str(error), ExitCode.WRONG_USE) from None


def _render(given: Mapping[str, Any]) -> list[str]:
    flags: list[str] = []
    for name, value in given.items():
        values = value if name == "cors_origin" else [] if value is None or value == "" else [value]
        for each in values:
            flags += [
                f"--{name.replace('_', '-')}",
                str(each.expanduser().absolute() if isinstance(each, Path) else each),
            ]
    return flags


def find_drain_seconds(words: Sequence[str]) -> int:
    """What the gateway takes for answers in flight, by its flags or by a command that has them."""
    joined = [word.partition("=")[2] for word in words if word.startswith("--drain-seconds=")]
    apart = [words[number + 1] for number, word in enumerate(words[:-1]) if word == "--drain-seconds"]
    return int((joined or apart or [str(DRAIN_SECONDS)])[-1])


def choose_scheme(flags: tuple[str, ...]) -> str:
    return "https" if "--tls-cert" in flags else "http"
