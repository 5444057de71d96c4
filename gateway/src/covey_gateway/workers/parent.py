"""The parent of a gateway's workers: it holds the address and the shared memory, speaks with the controller, and serves
nobody, so that it lives when a worker is ended for its memory.

    controller ◀─ one table, one demand ─▶ parent ◀─ tables, demands ─▶ worker … worker
                                               shared memory: columns
"""

import asyncio
import logging
import socket
import sys
from importlib import import_module

from covey_fleet_client.machine import observe_machine

from covey_gateway.composing import (
    Stop,
    apply_told,
    build_link,
    load_certificate,
    open_state,
    render_address,
    require_keys,
)
from covey_gateway.fronts import Fronts
from covey_gateway.options import Options
from covey_gateway.paths import Paths
from covey_gateway.routing.access import choose_policy
from covey_gateway.routing.table import RoutingTable, parse_endpoints
from covey_gateway.seeing import check_access_log, serve_figures
from covey_gateway.server import bind_socket
from covey_gateway.upstream import Engines
from covey_gateway.workers.memory import Memory, make_file
from covey_gateway.workers.shared import share
from covey_gateway.workers.staff import Staff
from covey_gateway.workers.whole import Whole

# Whether connections to an address are spread by the kernel over all sockets that listen there.
SPREADS = sys.platform == "linux"

_log = logging.getLogger("covey.gateway")


def hold_address(host: str, port: int) -> socket.socket:
    """A socket with the address, for this gateway's workers alone. StartError when it is taken.

    Where the kernel spreads connections each worker has a socket of its own there, and this one never listens. Nobody
    else's is shared: it is bound alone first.
    """
    alone = bind_socket(host, port)
    if not SPREADS:
        return alone
    with alone:
        found: int = alone.getsockname()[1]
    return bind_socket(host, found, is_shared=True)


async def run_parent(options: Options, arguments: tuple[str, ...]) -> None:
    """Serve by workers until asked to stop. StartError (in a group) when that isn't possible."""
    certificate = load_certificate(options.tls)
    if options.access_log:
        check_access_log(options.access_log)
    bound = hold_address(options.host, options.port)
    address = render_address(bound, "http" if certificate is None else "https")
    loop = asyncio.get_running_loop()
    stop = Stop(options.drain_seconds)
    stop.follow_signals()
    memory_file = make_file()
    memory = Memory(memory_file, options.workers, None)
    async with asyncio.TaskGroup() as tasks:
        staff = Staff(arguments, memory, memory_file, loop.time, tasks.create_task)
        policy = choose_policy(options.host, options.insecure, options.cors_origins)
        traffic = Whole(policy, loop.time, share(memory, staff.wakes, loop.time), staff)
        staff.on_news = traffic.tell_news
        staff.cancels = traffic.cancels
        fronts = Fronts(options.state / "gateway") if options.table is None else None
        engines = Engines(loop, tasks.create_task, fronts)
        paths = Paths(engines, traffic, loop.time)

        def apply(table: RoutingTable) -> None:
            apply_told(traffic, table, options.host)
            paths.look_again()

        background: list[asyncio.Task[None]] = []
        if options.metrics is not None:
            background.append(tasks.create_task(serve_figures(*options.metrics, traffic)))
        if options.lifeline is not None:
            background.append(tasks.create_task(stop.follow_lifeline(options.lifeline)))
        if options.table is not None:
            from covey_gateway.table import parse_table, read_table

            content = read_table(options.table)
            table = parse_table(content, str(options.table))
            require_keys(options, policy, table)
            apply(table)
            staff.tell_static(content.decode(), str(options.table), table.order)
        kept = open_state(options) if options.table is None else None
        machine = None if options.remote or kept is None else observe_machine()
        if kept is not None and (saved := kept.load()):
            apply(parse_endpoints(saved, machine))
            staff.tell_table(saved)
        await staff.start(bound.getsockname()[1], None if SPREADS else bound.fileno())
        _log.info("listening on %s", address)
        link = None
        if kept is not None:
            await asyncio.to_thread(import_module, "covey_gateway.fleet")
            link = build_link(options, traffic, apply, kept, address, machine, staff.tell_gateways, staff.tell_table)
            background.append(tasks.create_task(link.run()))
            background.append(tasks.create_task(paths.run()))
        await stop.requested.wait()
        bound.close()
        await staff.end("the gateway ends", stop.drain_seconds)
        if link is not None:
            await link.report_last()
        for task in background:
            task.cancel()
        engines.close()
