"""Composes the gateway: flags, socket, table or fleet link, signals, the end.

Where keys are needed (any address but loopback, without `--insecure`) nobody is served without one: a static table
without keys ends the process with words; with a controller the gateway listens, refuses every call and isn't ready
while there is no key. Rejected: to listen only once there is one (probes and clients would meet a closed port, and
nothing would tell them why), and to end (whatever starts it would start it again and again).
"""

import asyncio
import logging
import sys
from collections.abc import Coroutine, Sequence
from importlib import import_module
from typing import Any

import uvloop
from covey_fleet_client.machine import observe_machine
from covey_fleet_client.process import raise_file_limit, start_logging
from covey_fleet_client.tasks import flatten_errors

from covey_gateway.composing import (
    Stop,
    apply_told,
    build_link,
    load_certificate,
    make_door,
    open_state,
    render_address,
    require_keys,
)
from covey_gateway.failures import StartError
from covey_gateway.fronts import Fronts
from covey_gateway.images import Images
from covey_gateway.options import Options, parse_options
from covey_gateway.paths import Paths
from covey_gateway.routing.access import choose_policy
from covey_gateway.routing.table import RoutingTable, parse_endpoints
from covey_gateway.seeing import begin_access_log, serve_figures, trace_requests
from covey_gateway.server import GatewayServer, bind_socket
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import Engines

__all__ = ["main", "parse_options", "run_gateway"]

_log = logging.getLogger("covey.gateway")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 ended as asked, 1 could not serve, 2 wrong use."""
    options = parse_options(arguments)
    start_logging("gateway")
    raise_file_limit()
    code = 0
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_choose_run(options, tuple(sys.argv[1:] if arguments is None else arguments)))
    except* StartError as group:
        code = 1
        for error in flatten_errors(group):
            _log.error("%s", error)
    return code


def _choose_run(options: Options, arguments: tuple[str, ...]) -> Coroutine[Any, Any, None]:
    """`arguments`: what a worker is started with, too."""
    if options.worker:
        from covey_gateway.workers.worker import run_worker

        return run_worker(options)
    if options.workers > 1:
        from covey_gateway.workers.parent import run_parent

        return run_parent(options, arguments)
    return run_gateway(options)


async def run_gateway(options: Options) -> None:
    """Serve until asked to stop. StartError (in a group) when that isn't possible."""
    certificate = load_certificate(options.tls)
    bound = bind_socket(options.host, options.port)
    address = render_address(bound, "http" if certificate is None else "https")
    loop = asyncio.get_running_loop()
    stop = Stop(options.drain_seconds)
    stop.follow_signals()
    traffic = Traffic(choose_policy(options.host, options.insecure, options.cors_origins), loop.time)
    async with asyncio.TaskGroup() as tasks:
        fronts = Fronts(options.state / "gateway") if options.table is None else None
        engines = Engines(loop, tasks.create_task, fronts)
        server = GatewayServer(traffic, engines, Images(tasks.create_task, options.image_hosts))
        paths = Paths(engines, traffic, loop.time)

        def apply(table: RoutingTable) -> None:
            engines.forget(apply_told(traffic, table, options.host))
            paths.look_again()

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
            require_keys(options, traffic.policy, table)
            apply(table)
        kept = open_state(options) if options.table is None else None
        machine = None if options.remote or kept is None else observe_machine()
        if kept is not None and (saved := kept.load()):
            apply(parse_endpoints(saved, machine))
        await server.start(bound, certificate and make_door(certificate, tasks))
        _log.info("listening on %s", address)
        await server.app.load()
        link = None
        if kept is not None:
            # On a thread: TLS and an HTTP client take a moment to load, and clients are served meanwhile.
            await asyncio.to_thread(import_module, "covey_gateway.fleet")
            link = build_link(options, traffic, apply, kept, address, machine, engines.share)
            background.append(tasks.create_task(link.run()))
            background.append(tasks.create_task(paths.run()))
        await stop.requested.wait()
        await server.drain(stop.drain_seconds)
        if link is not None:
            await link.report_last()
        for task in background:
            task.cancel()
