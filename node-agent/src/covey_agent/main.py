"""The agent's process: flags, composition, signals. It decides nothing about members.

How it ends: SIGTERM or the end of the lifeline ends the agent and leaves every keeper running; SIGINT stops every
member first. A crash is as SIGTERM.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from importlib.metadata import version
from pathlib import Path

import httpx
from covey_api.instance import InstanceSpec
from covey_api.model import ResolvedArtifact
from covey_api.node import NodeDownloads, NodeSharing, NodeSpec
from covey_api.pod_names import render_covey_name
from covey_api.units import parse_quantity
from covey_fleet_client.dialling import DialContext
from covey_fleet_client.files import describe_refusal, ensure_private_folder
from covey_fleet_client.identity import load_identity, render_name
from covey_fleet_client.lifeline import watch_lifeline
from covey_fleet_client.machine import observe_machine
from covey_fleet_client.process import raise_file_limit, start_logging
from covey_fleet_client.standing import StandingFile

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.eviction import evict
from covey_agent.artifacts.given import GivenBlobs
from covey_agent.artifacts.hub import observe_hub_settings
from covey_agent.artifacts.index import observe_index_settings
from covey_agent.artifacts.node import NodeArtifacts, digests_of
from covey_agent.artifacts.pins import Pins, sweep_pins
from covey_agent.artifacts.reserving import reserve_artifact
from covey_agent.artifacts.web import Patience, Web
from covey_agent.asks import Asks
from covey_agent.capturing import Captures
from covey_agent.engines.adapter import Adapter
from covey_agent.engines.descriptions import DESCRIPTIONS
from covey_agent.engines.provision import NodeEngines, open_engines
from covey_agent.facts.machine import MachineFacts
from covey_agent.keeper.keepers import ProcessKeepers
from covey_agent.keeping import Keeping
from covey_agent.kept_file import KeptFile, observe_boot_id
from covey_agent.membership import Membership
from covey_agent.options import Options, parse_options
from covey_agent.peers.directory import FleetDirectory
from covey_agent.peers.serving import BlobServer
from covey_agent.peers.sources import Peers
from covey_agent.performer import Outside
from covey_agent.recorder import Recorder
from covey_agent.refused import RefusedFile
from covey_agent.reports import Reporter, Self
from covey_agent.runtime import Runtime
from covey_agent.single import AlreadyRunning, take_folder
from covey_agent.stop_all import stop_all
from covey_agent.supervisor.state import State
from covey_agent.surveys import Survey
from covey_agent.trust.provenance import IndexProvenances
from covey_agent.trust.signatures import SignatureFiles, SignedArtifacts
from covey_agent.trust.verifier import open_verifier
from covey_agent.whereabouts import Whereabouts

logger = logging.getLogger(__name__)

# SIGINT: SIGTERM to engines, five seconds, SIGKILL, their ends seen; what still isn't over then is left to its keeper.
CLOSE_SECONDS = 9.0
# The address is a look at this machine's routes; a name server may take longer, and nothing waits for that.
ADDRESS_SECONDS = 2.0
# A connection for each question to an engine: one that is kept would hold a thread of it, and would still be answered
# where nobody else gets in any more.
ANEW = httpx.Limits(max_connections=100, max_keepalive_connections=0)


def main() -> int:
    options = parse_options(sys.argv[1:])
    start_logging("agent")
    raise_file_limit()
    folder = options.state / "agent"
    try:
        ensure_private_folder(options.state)
        ensure_private_folder(folder)
        lock = take_folder(folder)
    except (AlreadyRunning, OSError) as error:
        logger.error("%s", describe_refusal(error) if isinstance(error, OSError) else error)
        return 1
    try:
        if options.stop_all:
            return 1 if asyncio.run(stop_all(folder / "members")) else 0
        return asyncio.run(run_agent(options, folder))
    finally:
        os.close(lock)


async def run_agent(options: Options, folder: Path) -> int:
    """Until told to end. Exit status 0, or 1 when members could not be stopped in time."""
    node = render_covey_name(options.name) if options.name else ""
    try:
        node = node or load_identity(folder).name or render_name(socket.gethostname())
    except OSError as error:
        logger.error("the state folder can't be used: %s", describe_refusal(error))
        return 1
    async with AsyncExitStack() as stack:
        whereabouts = Whereabouts(options.address, options.controller, folder)
        members, boot_id, jitter = folder / "members", observe_boot_id(), secrets.SystemRandom().random
        try:
            cache, pins = await asyncio.to_thread(open_cache, options.cache, members)
        except OSError as error:
            logger.error("the artifact cache can't be used: %s", describe_refusal(error))
            return 1
        stack.callback(pins.close)
        web = Web(observe_index_settings(os.environ, Path.home()), Patience())
        stack.push_async_callback(web.close)
        directory = FleetDirectory(node)
        peers = Peers(directory, DialContext(folder).observe, web.pace, web.patience.stall_seconds, jitter)
        stack.callback(peers.close)
        blobs = BlobServer(GivenBlobs(cache), folder)
        stack.callback(blobs.close)
        downloader = Downloader(web, cache, peers)
        outside, engines = await open_outside(stack, options, web, cache, downloader, folder, whereabouts)
        changed = asyncio.Event()
        recorder = Recorder(members, boot_id)

        def record(before: State, after: State, now: float) -> None:
            recorder.observe(before, after, now)
            web.pace.limit(limit_of(after.spec.downloads))
            web.is_offline = after.spec.offline
            blobs.pace.limit(limit_of(after.spec.sharing))
            hold_needed(after)

        def hold_needed(state: State) -> None:
            """What members run, or will, stays in the cache, and what is kept for the fleet."""
            needed = (digest for member in state.members.values() for digest in needs_of(member.spec))
            pins.hold(keeping.digests.union(needed))

        def reserve(artifact: ResolvedArtifact) -> AbstractAsyncContextManager[None]:
            return reserve_artifact(cache, artifact)

        keeping = Keeping(outside.artifacts, folder, lambda: hold_needed(runtime.state), changed.set, reserve)
        runtime = Runtime(outside, members, KeptFile(folder), boot_id, changed.set, record)
        machine = observe_machine()

        def observe_spec() -> NodeSpec | None:
            return runtime.state.spec if runtime.state.order else None

        def observe_members() -> bool:
            return bool(runtime.state.members)

        survey = Survey(
            engines, outside.facts, observe_spec, observe_members, runtime.spec_changed, changed.set, machine
        )
        this = Self(node, secrets.token_hex(8), version("covey-agent"), machine, whereabouts, lambda: blobs.port)
        standing = StandingFile(folder).note
        reporter = Reporter(
            this, runtime, survey, outside.artifacts, outside.facts, changed, lambda: keeping.unkept, standing
        )
        asks = Asks(node, outside.artifacts, Captures(node, runtime, outside, members))
        membership = Membership(node, runtime, reporter, asks, RefusedFile(folder), jitter, directory, keeping)
        with suppress(TimeoutError):  # an engine that is started before it is known listens on every address
            async with asyncio.timeout(ADDRESS_SECONDS):
                await whereabouts.find()
        logger.info("agent of node '%s' runs; state in '%s'", node, folder)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(runtime.run())
            others = [
                group.create_task(survey.run()),
                group.create_task(open_blobs(whereabouts, blobs, options.blobs_port, changed.set)),
                group.create_task(peers.run()),
                group.create_task(keeping.run()),
                group.create_task(membership.run(folder, options.controller, options.admission)),
            ]
            status = await end(runtime, running, await wait_for_end(options.lifeline))
            for task in (running, *others):
                task.cancel()
        return status


def needs_of(spec: InstanceSpec) -> frozenset[str]:
    """Digests of what its engine loads, and of the files of that: another set may share them, and be evicted."""
    artifacts = (spec.artifact, *(each.artifact for each in spec.companions))
    return frozenset(digest for each in artifacts for digest in digests_of(each))


def limit_of(section: NodeDownloads | NodeSharing) -> int | None:
    """Bytes a second for all that this node fetches, or gives."""
    limit = section.bytes_per_second
    return None if limit is None else parse_quantity(limit)


async def open_blobs(whereabouts: Whereabouts, blobs: BlobServer, port: int, on_change: Callable[[], None]) -> None:
    """Give blobs to other nodes where they reach this one, once that is known; `on_change`: it is another."""
    await whereabouts.find()
    blobs.listen(whereabouts.address, port)

    def move() -> None:
        blobs.move(whereabouts.address, port)
        on_change()

    await whereabouts.watch(move)


def open_cache(folder: Path, members: Path) -> tuple[Cache, Pins]:
    """The cache, and this agent's list of what must stay in it. OSError where it can't be written to. Blocking."""
    cache = Cache(folder, evict)
    sweep_pins(cache.pins)
    return cache, Pins(cache.pins, members)


async def open_outside(
    stack: AsyncExitStack,
    options: Options,
    web: Web,
    cache: Cache,
    downloader: Downloader,
    folder: Path,
    whereabouts: Whereabouts,
) -> tuple[Outside, NodeEngines]:
    """The adapters of the agent's ports, closed with the stack."""
    hub = observe_hub_settings(os.environ, Path.home())
    fetched = NodeArtifacts(web, cache, downloader, hub)
    stack.push_async_callback(fetched.close)
    verifier = open_verifier(web, cache, downloader)
    artifacts = SignedArtifacts(fetched, SignatureFiles(web, cache, hub), verifier)
    engines = open_engines(web, cache, downloader, os.environ, IndexProvenances(web, verifier))
    keepers = ProcessKeepers(folder / "members", options.orphan_grace_seconds, lambda: whereabouts.front)
    stack.callback(keepers.close)
    await keepers.end_left()
    loopback = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, limits=ANEW))
    adapters = {each.engine: Adapter(each, loopback) for each in DESCRIPTIONS}
    facts = MachineFacts(options.cache, lambda: engines.devices)
    return Outside(artifacts, engines, facts, keepers, adapters), engines


async def wait_for_end(lifeline: int | None) -> signal.Signals | None:
    """The signal that ends this process; None: the parent is gone."""
    loop = asyncio.get_running_loop()
    ending: asyncio.Future[signal.Signals | None] = loop.create_future()

    def end_by(cause: signal.Signals | None) -> None:
        if not ending.done():
            ending.set_result(cause)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end_by, number)
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(watch_lifeline(lifeline)) if lifeline is not None else None
        if watch is not None:
            watch.add_done_callback(lambda task: None if task.cancelled() else end_by(None))
        cause = await ending
        if watch is not None:
            watch.cancel()
    return cause


async def end(runtime: Runtime, members: asyncio.Task[None], cause: signal.Signals | None) -> int:
    """Do what the cause asks for before the process ends; the exit status."""
    if cause is not signal.SIGINT:
        logger.info("ending by %s; engines run on under their keepers", cause.name if cause else "the parent's end")
        return 0
    logger.info("ending by SIGINT; stopping every engine")
    await runtime.close()
    await asyncio.wait((members,), timeout=CLOSE_SECONDS)
    if members.done():
        logger.info("every engine has ended")
        return 0
    logger.error("engines must end within %.0f s; what still runs is ended by its keeper", CLOSE_SECONDS)
    return 1
