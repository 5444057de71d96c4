"""Nodes that share blobs: real certificates, a real fleet API with the leader's own board, real caches and sockets.

Each node is the agent's own parts in this process, without a supervisor: it reports what it holds, and fetches what a
test asks for.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.given import GivenBlobs
from covey_agent.artifacts.hub import HubSettings
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.node import NodeArtifacts
from covey_agent.artifacts.web import SERVER, Patience, Web
from covey_agent.peers.directory import FleetDirectory
from covey_agent.peers.giving import Blobs
from covey_agent.peers.serving import BlobServer
from covey_agent.peers.sources import Peers
from covey_agent.ports import Fleet
from covey_agent.refused import RefusedFile
from covey_api.messages import CertificateRole, Report, ReportAnswer, Wanted, WantedAnswer
from covey_controller.board import FleetBoard
from covey_fleet_client.dialling import DialContext
from covey_fleet_client.machine import observe_machine
from fleet_rig import Rig, SteeredBoard, running_fleet
from kit.artifact_rig import QUICK, ignore

REPORT_SECONDS = 0.2


@dataclass
class PeerNode:
    """One node of the fleet."""

    name: str
    identity: Path
    cache: Cache
    web: Web
    downloader: Downloader
    artifacts: NodeArtifacts
    server: BlobServer
    directory: FleetDirectory
    fleet: Fleet
    sequence: int = 0
    claims: tuple[str, ...] = ()
    """Digests that it says it has, beside those it has."""
    refused: RefusedFile = field(init=False)

    def __post_init__(self) -> None:
        self.refused = RefusedFile(self.identity)

    async def report(self) -> None:
        self.sequence += 1
        report = Report(
            boot_id=self.name,
            sequence=self.sequence,
            version="0.1.0",
            full=True,
            machine=observe_machine(),
            blobs=tuple(sorted({*self.artifacts.digests(), *self.claims})),
            members=(),
            blobs_port=self.server.port,
        )
        await self.fleet.post(f"nodes/{self.name}/report", report, ReportAnswer)

    async def keep_reporting(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(REPORT_SECONDS)

    async def download(self, remote: Remote) -> Path:
        return await self.downloader.download(remote, ignore)


class LeadersBoard(SteeredBoard):
    """What reports say, and who has what, is the leader's own board's."""

    def __init__(self) -> None:
        super().__init__()
        self._leader = FleetBoard(time.monotonic)
        self._leader.begin(1)

    def on_report(self, node: str, report: Report) -> ReportAnswer:
        return self._leader.on_report(node, report)

    def on_beat(self, node: str, report: Report) -> ReportAnswer | None:
        return self._leader.on_beat(node, report)

    def on_wanted(self, node: str, wanted: Wanted) -> WantedAnswer:
        return self._leader.on_wanted(node, wanted)


@dataclass
class PeerFleet:
    rig: Rig
    folder: Path
    stack: AsyncExitStack
    group: asyncio.TaskGroup
    index: str
    nodes: dict[str, PeerNode] = field(default_factory=dict[str, PeerNode])
    tasks: list["asyncio.Task[None]"] = field(default_factory=list["asyncio.Task[None]"])

    async def add(
        self,
        name: str,
        choose_blobs: Callable[[Cache], Blobs] = GivenBlobs,
        patience: Patience = QUICK,
    ) -> PeerNode:
        """A node that has joined and reported. What it gives is `choose_blobs`'."""
        identity = (await self.rig.join(CertificateRole.AGENT, name)).folder
        fleet = await self.stack.enter_async_context(self.rig.client(CertificateRole.AGENT, name))
        cache, web = Cache(self.folder / name), Web(IndexSettings(url=self.index), patience)
        self.stack.push_async_callback(web.close)
        directory = FleetDirectory(name)
        self.stack.enter_context(directory.reached_by(fleet))
        observe_context = DialContext(identity).observe
        peers = Peers(directory, observe_context, web.pace, patience.stall_seconds, random.Random(name).random)
        self.stack.callback(peers.close)
        server = BlobServer(choose_blobs(cache), identity)
        server.listen("127.0.0.1", 0)
        self.stack.callback(server.close)
        downloader = Downloader(web, cache, peers)
        artifacts = NodeArtifacts(web, cache, downloader, HubSettings())
        self.stack.push_async_callback(artifacts.close)
        node = PeerNode(name, identity, cache, web, downloader, artifacts, server, directory, fleet)
        self.nodes[name] = node
        await node.report()
        self.tasks += [self.group.create_task(node.keep_reporting()), self.group.create_task(peers.run())]
        return node


@asynccontextmanager
async def running_peers(folder: Path, index: str = "http://127.0.0.1:1") -> AsyncGenerator[PeerFleet]:
    async with running_fleet(folder, LeadersBoard()) as rig, AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        fleet = PeerFleet(rig, folder, stack, group, index)
        try:
            yield fleet
        finally:
            for task in fleet.tasks:
                task.cancel()


def remote(url: str, name: str, sha256: str, size_bytes: int) -> Remote:
    return Remote(url, name, sha256, size_bytes, SERVER)


def patient(stall_seconds: float) -> Patience:
    return replace(QUICK, stall_seconds=stall_seconds)
