"""`covey join URL`: this machine serves for a controller elsewhere, in the foreground, until Ctrl-C."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import click
from covey_fleet_client.calls import parse_controller_url
from covey_fleet_client.errors import FleetError
from covey_fleet_client.files import describe_refusal
from covey_fleet_client.tasks import flatten_errors
from rich.console import Console

from covey.commands.gateway_options import gateway_options, take_gateway_flags
from covey.commands.options import state_option
from covey.errors import CommandError, ExitCode
from covey.paths import CACHE_VARIABLE
from covey.up.front import describe_end, say, show_lines, watch_signals
from covey.up.group import AlreadyRunning, hold_state_folder
from covey.up.joined import JoinedParent, JoinSettings, join_fleet

TOKEN_VARIABLE = "COVEY_TOKEN"  # noqa: S105 - the name of a variable
DEFAULT_LISTEN = "127.0.0.1:52415"


@click.command()
@click.argument("url")
@click.option(
    "--token-file", type=click.Path(path_type=Path, dir_okay=False), help=f"Holds the token; also {TOKEN_VARIABLE}."
)
@click.option("--name", default="", help="Name of the Node and its gateway; by default as before, else the machine's.")
@click.option("--no-gateway", is_flag=True, help="The agent alone: clients reach this machine's models elsewhere.")
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, help="Address of the gateway, HOST:PORT.")
@click.option("--insecure", is_flag=True, help="The gateway serves without keys also where others reach it.")
@gateway_options
@click.option("--metrics-listen", metavar="HOST:PORT", help="Where the gateway answers Prometheus, whoever asks.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=CACHE_VARIABLE,
    help=f"Folder for models and engines; also {CACHE_VARIABLE}.",
)
@state_option
def join(
    url: str,
    token_file: Path | None,
    name: str,
    no_gateway: bool,
    listen: str,
    insecure: bool,
    cache: Path | None,
    state: Path,
    **gateway_flags: Any,
) -> None:
    """Serve on this machine for the controller at URL.

    URL is its fleet API, https://HOST:PORT. A token (`covey token create --role machine` there) is needed once.
    """
    flags = take_gateway_flags(gateway_flags, "" if no_gateway else listen, is_open=insecure)
    settings = JoinSettings(
        controller=_parse_url(url),
        state=state.expanduser().absolute(),
        cache=cache.expanduser().absolute() if cache else None,
        name=name,
        listen="" if no_gateway else listen,
        is_open=insecure,
        gateway_flags=flags,
    )
    try:
        with hold_state_folder(settings):
            _join(settings, token_file)
            _run_to_end(settings)
    except AlreadyRunning as running:
        words = f"state folder '{settings.state}' belongs to a running Covey (pid {running.record.get('pid')})"
        raise CommandError(f"{words}. Stop it, or name another folder with --state.") from None


def _join(settings: JoinSettings, token_file: Path | None) -> None:
    try:
        join_fleet(settings, _find_token(token_file, is_needed=settings.needs_token()))
    except OSError as error:  # a full disk, or a folder of another user
        raise CommandError(f"the state folder can't be used: {describe_refusal(error)}") from None


def _parse_url(url: str) -> str:
    """Before anything starts: who has joined already would retry a wrong one forever, and its engines run on."""
    try:
        return parse_controller_url(url)
    except FleetError as error:
        raise CommandError(str(error), ExitCode.WRONG_USE) from error


def _find_token(path: Path | None, *, is_needed: bool) -> str | None:
    """From the file, the environment, or whoever is asked; never from the command line, which others can read."""
    if path is not None:
        try:
            return path.read_text().strip()
        except FileNotFoundError as error:
            if not is_needed:  # who has joined may throw the token away, and a service's words stay as they were
                return None
            raise CommandError(f"cannot read '{path}': {error}", ExitCode.WRONG_USE) from error
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read '{path}': {error}", ExitCode.WRONG_USE) from error
    if given := os.environ.pop(TOKEN_VARIABLE, ""):  # parts and engines must not inherit it
        return given
    if not is_needed:
        return None
    if not sys.stdin.isatty():
        words = "a token is needed to join for the first time"
        raise CommandError(f"{words}: give --token-file or {TOKEN_VARIABLE}", ExitCode.WRONG_USE)
    return str(click.prompt("Join token", hide_input=True, err=True))


def _run_to_end(settings: JoinSettings) -> None:
    try:
        asyncio.run(_run(settings))
    except* CommandError as errors:
        raise flatten_errors(errors)[0] from None
    except* OSError as errors:
        raise CommandError(describe_refusal(flatten_errors(errors)[0])) from None


async def _run(settings: JoinSettings) -> None:
    console = Console(stderr=True)
    parent = JoinedParent(settings, show_lines(console, everything=False))
    watch_signals(parent.ending, parent.hurry, console)
    try:
        async with parent.run():
            where = f", and clients at {settings.gateway_url}" if settings.listen else ""
            say(console, f"Serving for {settings.controller}{where}   (Ctrl-C stops everything)")
            await parent.ending.wait()
            say(console, "Stopping: the gateway, the agent with its engines.")
    finally:
        say(console, describe_end(settings.state, is_asked=parent.ending.is_set(), left_engines=parent.left_engines))
