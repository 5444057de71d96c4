"""The controller's process: flags, signals, logging, and the composition of store, board, loop and both APIs.

It decides nothing. It ends on SIGTERM, SIGINT, or when its parent is gone; whatever runs on nodes goes on meanwhile.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import uvloop
from covey_fleet_client.files import ensure_private_folder, write_private
from covey_fleet_client.lifeline import watch_lifeline
from covey_fleet_client.machine import observe_machine
from covey_fleet_client.process import raise_file_limit, start_logging
from covey_fleet_client.tasks import flatten_errors

from covey_controller.addresses import parse_address
from covey_controller.board import FleetBoard
from covey_controller.control_api.server import serve_control
from covey_controller.control_api.webhook import PATH, serve_webhook
from covey_controller.credentials import open_credentials
from covey_controller.explain import HistoryExplainer
from covey_controller.fleet_api.server import serve_fleet
from covey_controller.history import History
from covey_controller.kube_options import KubeOptions, add_kube_flags, parse_kube_options
from covey_controller.loop import ReconcileLoop
from covey_controller.metrics.figures import ControllerMetrics
from covey_controller.metrics.measured_store import MeasuredStore
from covey_controller.metrics.observing import observe_controller
from covey_controller.metrics.server import serve_metrics
from covey_controller.ports import VaultUnavailable
from covey_controller.serving.listener import ListenFailed
from covey_controller.source_options import FilesOptions, Webhook, add_source_flags, parse_files_options
from covey_controller.stores.files.documents import parse_with_secrets
from covey_controller.stores.files.store import FilesStore
from covey_controller.stores.files.vault import FilesVault

log = logging.getLogger(__name__)

# On loopback, as everything is until somebody says otherwise.
DEFAULT_LISTEN = "127.0.0.1:52414"
CONTROLLER_FOLDER = "controller"
DONE, FAILED = 0, 1


class Stop(Exception):
    """The process was asked to end."""


@dataclass(frozen=True, slots=True)
class Options:
    state: Path
    host: str
    port: int
    metrics: tuple[str, int] | None
    """Where figures are read; None: nowhere."""
    lifeline: int | None
    store: FilesOptions | KubeOptions

    @property
    def folder(self) -> Path:
        """The controller's own folder in the state folder."""
        return self.state / CONTROLLER_FOLDER


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    start_logging("controller")
    raise_file_limit()
    failed = False
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_controller(options))
    except* (OSError, ValueError, ListenFailed, VaultUnavailable) as errors:
        failed = True
        for error in flatten_errors(errors):
            log.error("%s", error)
    return FAILED if failed else DONE


def parse_options(arguments: Sequence[str] | None) -> Options:
    """The flags of docs/concepts/architecture.md. Wrong ones end the process with code 2."""
    parser = argparse.ArgumentParser(prog="covey controller", description="The controller of a Covey fleet.")
    parser.add_argument("--version", action="version", version=f"%(prog)s, version {version('covey-controller')}")
    add_source_flags(parser)
    add_kube_flags(parser)
    parser.add_argument("--state", required=True, type=Path, help="the state folder")
    parser.add_argument(
        "--fleet-listen",
        default=DEFAULT_LISTEN,
        metavar="HOST:PORT",
        help="address of the fleet API; port 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument("--metrics-listen", metavar="HOST:PORT", help="answer /metrics there, without TLS")
    parser.add_argument("--lifeline", type=int, metavar="FD", help="end when this pipe's last writer is gone")
    given = parser.parse_args(arguments)
    if given.kube is (given.source is not None):
        parser.error("either `--source SOURCE` or `--kube` must be given")
    host, port = parse_address(parser, "--fleet-listen", given.fleet_listen)
    metrics = parse_address(parser, "--metrics-listen", given.metrics_listen) if given.metrics_listen else None
    state = Path(os.path.abspath(given.state))
    if given.kube:
        store = parse_kube_options(parser, given)
    else:
        store = parse_files_options(parser, given, state / CONTROLLER_FOLDER)
    return Options(state, host, port, metrics, given.lifeline, store)


async def run_controller(options: Options) -> None:
    """Until it is asked to end. OSError, ValueError or ListenFailed when it can't start."""
    ensure_private_folder(options.state)
    ensure_private_folder(options.folder)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_wait_stop(options.lifeline))
            match options.store:
                case KubeOptions() as store:
                    run_kube = import_kube()
                    group.create_task(run_kube(store, options.host, options.port, options.metrics, options.folder))
                case FilesOptions() as store:
                    group.create_task(run_files(options, store))
    except* Stop:
        log.info("ended; what runs on nodes goes on")


def import_kube() -> Callable[[KubeOptions, str, int, tuple[str, int] | None, Path], Coroutine[None, None, None]]:
    """ValueError names the extra if it isn't installed."""
    try:
        from covey_controller.kube import run_kube
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("kopf", "aiohttp"):
            raise
        raise ValueError(
            f"`--kube` needs the extra `covey-controller[kube]`; there is no module '{error.name}'. "
            "Install it: uv pip install 'covey-controller[kube]'"
        ) from None
    return run_kube


async def run_files(options: Options, files: FilesOptions) -> None:
    """Files mode, until cancelled."""
    credentials = await open_credentials(FilesVault(options.folder))
    parse = partial(parse_with_secrets, keys=files.keys)
    store = FilesStore(files.source, options.folder, parse, allow_empty=files.allow_empty)
    board, history = FleetBoard(asyncio.get_running_loop().time, observe_machine()), History()
    metrics = ControllerMetrics(lambda: observe_controller(loop, board, history))
    surroundings = credentials.surround(metrics.record_turn, allow_empty=files.allow_empty)
    loop = ReconcileLoop(MeasuredStore(store, metrics), board, history, surroundings)
    fleet = partial(
        serve_fleet,
        board,
        credentials.trust,
        credentials.tokens,
        credentials.denials,
        folder=options.folder,
        host=options.host,
        port=options.port,
        on_listening=partial(_publish_address, options.folder / "fleet.json"),
    )
    control = partial(
        serve_control,
        options.state / "control.sock",
        HistoryExplainer(history, board),
        board,
        store,
        credentials.tokens,
        credentials.trust,
        credentials.denials,
        is_ready=lambda: loop.is_leading,
        on_listening=lambda: log.info("control API on '%s'", options.state / "control.sock"),
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(store.run())
        group.create_task(loop.run())
        group.create_task(credentials.trust.watch())
        group.create_task(fleet())
        group.create_task(control())
        if files.webhook is not None:
            group.create_task(_serve_webhook(files.webhook, store))
        if options.metrics is not None:
            group.create_task(serve_metrics(*options.metrics, metrics.registry))


async def _serve_webhook(webhook: Webhook, store: FilesStore) -> None:
    await serve_webhook(
        webhook.host,
        webhook.port,
        webhook.secret,
        store.refresh_source,
        on_listening=lambda where: log.info("webhook on 'http://%s%s'", where, PATH),
    )


async def _wait_stop(lifeline: int | None) -> None:
    """Raise Stop at SIGTERM, SIGINT, or the parent's end."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(_set_when_parent_gone(lifeline, asked)) if lifeline is not None else None
        await asked.wait()
        if waiting is not None:
            waiting.cancel()
    raise Stop


async def _set_when_parent_gone(descriptor: int, asked: asyncio.Event) -> None:
    await watch_lifeline(descriptor)
    log.info("the parent is gone")
    asked.set()


def _publish_address(path: Path, url: str) -> None:
    """Where this machine reaches the fleet API, for whoever starts the other parts."""
    write_private(path, json.dumps({"url": url}).encode())
    log.info("fleet API on %s", url)
