"""`covey up [SOURCE]`: everything on this machine, in the foreground, until Ctrl-C."""

import asyncio
import errno
import os
import socket
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from covey_api.text import escape_controls
from covey_fleet_client.files import describe_refusal
from covey_fleet_client.tasks import flatten_errors
from rich.console import Console

from covey.commands.gateway_options import gateway_options, take_gateway_flags
from covey.commands.options import state_option
from covey.commands.source_options import parse_source, render_source_flags, source_options
from covey.control import Control
from covey.errors import CommandError
from covey.paths import CACHE_VARIABLE, SERVICE_VARIABLE
from covey.up.front import describe_end, say, show_lines, watch_signals
from covey.up.group import AlreadyRunning, hold_state_folder
from covey.up.parent import Parent, Settings
from covey.up.progress import Outcome, wait_until_settled

DEFAULT_PORT = 52415


def _check_address(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """The controller would refuse it too, and be started again and again."""
    if text is not None:
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65_535:
            raise click.BadParameter(f"must be HOST:PORT with a port from 0 to 65535; got '{text}'")
    return text


@click.command()
@click.argument("source", default=".")
@click.option("--wait", is_flag=True, help="Show progress until every placement serves, then how to use it.")
@click.option("--headless", is_flag=True, help="No bars and no colours; each part's log lines as they come.")
@click.option("--port", type=click.IntRange(1, 65_535), default=DEFAULT_PORT, show_default=True, help="Gateway's port.")
@click.option("--allow-empty", is_flag=True, help="An empty source deletes everything (else it deletes nothing).")
@source_options
@gateway_options
@click.option(
    "--metrics-listen",
    metavar="HOST:PORT",
    callback=_check_address,
    help="Where the controller answers Prometheus; the gateway's figures are at /metrics of its own port.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=CACHE_VARIABLE,
    help=f"Folder for models and engines; also {CACHE_VARIABLE}.",
)
@state_option
def up(
    source: str,
    wait: bool,
    headless: bool,
    port: int,
    allow_empty: bool,
    metrics_listen: str | None,
    cache: Path | None,
    state: Path,
    **flags: Any,
) -> None:
    """Run Covey on this machine, as YAML files say.

    SOURCE is a folder or a file (by default the present folder), or a git repository, which is followed:
    git+https://HOST/REPO#PATH@REF, git+ssh://USER@HOST/REPO#PATH@REF, git+file:///FOLDER#PATH@REF.
    PATH and REF may be left out: the whole repository, its default branch.
    """
    found = parse_source(source)
    gateway_flags = take_gateway_flags(flags, f"127.0.0.1:{port}")
    settings = Settings(
        source=found,
        state=state.expanduser().absolute(),
        cache=cache.expanduser().absolute() if cache else None,
        port=port,
        allow_empty=allow_empty,
        source_flags=render_source_flags(found, flags),
        gateway_flags=gateway_flags,
        metrics_listen=metrics_listen or "",
    )
    try:
        with hold_state_folder(settings) as was_killed:
            if not was_killed:  # else the gateway of the one that was killed may still be ending
                _require_free_port(port)
            _run_to_end(settings, wait=wait, headless=headless, follows_killed=was_killed)
    except AlreadyRunning as running:
        _report_running(running, settings, is_port_named=_is_named("port"))


def _is_named(parameter: str) -> bool:
    return click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def _require_free_port(port: int) -> None:
    """Before anything starts: else another process's answers on the port would be taken for this Covey's."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the gateway does: a port in TIME_WAIT is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            found = (
                "is taken by another process (another 'covey up'?)" if is_taken else f"can't be used: {error.strerror}"
            )
            raise CommandError(
                f"port {port} on 127.0.0.1 {found}; stop what uses it, or choose another with --port"
            ) from error


def _run_to_end(settings: Settings, *, wait: bool, headless: bool, follows_killed: bool) -> None:
    try:
        asyncio.run(_run(settings, wait=wait, headless=headless, follows_killed=follows_killed))
    except* CommandError as errors:
        raise flatten_errors(errors)[0] from None
    except* OSError as errors:
        raise CommandError(describe_refusal(flatten_errors(errors)[0])) from None


def _report_running(running: AlreadyRunning, settings: Settings, *, is_port_named: bool) -> None:
    record = running.record
    if record.get("source") == str(settings.source):
        if is_port_named and record.get("gatewayUrl") != settings.gateway_url:
            raise CommandError(
                f"Covey is already running here (pid {record.get('pid')}), at {record.get('gatewayUrl')}: `--port "
                f"{settings.port}` changes nothing. Stop it first, or name another folder with --state"
            )
        if os.environ.get(SERVICE_VARIABLE):  # a clean end would stay one, once whoever runs has gone
            words = f"Covey is already running here (pid {record.get('pid')}), and not as this service"
            raise CommandError(f"{words}: once that one is stopped, this one takes its place at its next try")
        click.echo(f"Covey is already running here (pid {record.get('pid')}): {record.get('gatewayUrl')}")
        return
    raise CommandError(
        f"state folder '{settings.state}' belongs to a running 'covey up' (pid {record.get('pid', 'unknown')}, source "
        f"'{record.get('source', 'unknown')}'). Stop it, or name another folder with --state."
    )


async def _run(settings: Settings, *, wait: bool, headless: bool, follows_killed: bool) -> None:
    console = Console(stderr=True, force_terminal=False if headless else None)
    parent = Parent(settings, show_lines(console, everything=headless), follows_killed=follows_killed)
    watch_signals(parent.ending, parent.hurry, console)
    say(console, f"Starting Covey from '{settings.source}' with state in '{settings.state}'.")
    try:
        async with parent.run():
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(_report_start(settings, console, wait=wait))
                await parent.ending.wait()
                waiting.cancel()
            say(console, "Stopping: the gateway, the agent with its engines, the controller.")
    finally:
        say(console, describe_end(settings.state, is_asked=parent.ending.is_set(), left_engines=parent.left_engines))


async def _report_start(settings: Settings, console: Console, *, wait: bool) -> None:
    if not wait:
        say(console, f"Gateway: {settings.gateway_url}   (Ctrl-C stops everything)")
        return
    with Control(settings.state) as control:
        outcomes = await wait_until_settled(control, console)
        where = await asyncio.to_thread(_describe_places, control, settings)
    click.echo("\n".join([*where, *_describe_outcomes(outcomes), *_describe_use(outcomes, settings)]))
    sys.stdout.flush()


def _describe_places(control: Control, settings: Settings) -> list[str]:
    instances = [
        f"  {item['metadata']['name']}: {item['spec']['model']} on node '{item['spec']['members'][0]['node']}', "
        f"{item['spec']['engine']}/{item['spec']['compute']}, window {item['spec']['options']['contextTokens']} tokens"
        for item in control.list_objects("instances")
    ]
    return [
        f"Source:   {settings.source}",
        f"State:    {settings.state} (logs in {settings.state / 'log'})",
        "Instances:" if instances else "Instances: none yet",
        *instances,
    ]


def _describe_outcomes(outcomes: list[Outcome]) -> list[str]:
    return [
        f"Placement '{outcome.name}' is not serving: {outcome.reason}: {escape_controls(outcome.message)}"
        for outcome in outcomes
        if not outcome.ready
    ]


def _describe_use(outcomes: list[Outcome], settings: Settings) -> list[str]:
    ready = [outcome.model for outcome in outcomes if outcome.ready]
    lines = ["", f"Covey serves at {settings.gateway_url}"]
    if not outcomes:
        words = f"Nothing is asked for: '{settings.source}' holds no valid Placement. See: covey get source"
        return [*lines, words, "", "Ctrl-C stops everything."]
    if not ready:
        return [*lines, "No model is ready. See: covey why placement/NAME", "", "Ctrl-C stops everything."]
    model = ready[0]
    # Bounded: a small model may ramble until its window is full.
    asked = '"messages":[{"role":"user","content":"Say hello."}]'
    body = f'{{"model":"{model}","stream":true,"max_tokens":64,{asked}}}'
    return [
        *lines,
        "",
        f"curl -N {settings.gateway_url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        "",
        "from openai import OpenAI",
        f'client = OpenAI(base_url="{settings.gateway_url}/v1", api_key="unused-on-this-machine")',
        'messages = [{"role": "user", "content": "Say hello."}]',
        f'for chunk in client.chat.completions.create(model="{model}", stream=True, max_tokens=64, messages=messages):',
        '    print(chunk.choices[0].delta.content or "", end="", flush=True)',
        "",
        "Ctrl-C stops everything.",
    ]
