"""Nodes of a fleet with keepers and nothing else: no agent, no controller."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from covey_agent.keeper.joining import FrontSettings
from covey_agent.keeper.keepers import ProcessKeepers
from covey_agent.keeper.records import KeeperRecord, read_record
from covey_agent.ports import EngineExit, EngineProcess, Group, Launch
from covey_api.messages import CertificateRole
from covey_controller.authority import Authority
from covey_fleet_client.files import ensure_private_folder, write_private
from covey_fleet_client.identity import load_identity
from kit import echo_engine
from kit.ports import free_port, own_address
from kit.processes import wait_for
from kit.vaults import authority_in

ID = "00000000000000aa"
ATTEMPT = 3
ADDRESSES = {"a": own_address(2), "b": own_address(3), "c": own_address(4)}
SECONDS = 30.0
FORM_SECONDS = 60.0


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await story()

    asyncio.run(bounded())


def write_identity(folder: Path, authority: Authority, role: CertificateRole, name: str) -> Path:
    ensure_private_folder(folder)
    certificate = authority.issue_client(load_identity(folder).key.public_key(), role, name, time.time())
    write_private(folder / "authorities.pem", authority.bundle_pem)
    write_private(folder / "certificate.pem", certificate)
    return folder


@dataclass
class Node:
    """One node of the fleet with its keepers."""

    name: str
    folder: Path
    identity: Path
    keepers: ProcessKeepers

    @property
    def member(self) -> Path:
        return self.folder / "members" / ID

    @property
    def log(self) -> str:
        path = self.member / "front.log"
        return path.read_text() if path.exists() else ""

    @property
    def seen(self) -> bytes:
        """A byte for each connection that its engine has seen."""
        path = self.folder / "seen"
        return path.read_bytes() if path.exists() else b""

    @property
    def keeper_pid(self) -> int:
        record = read_record(self.member / "keeper.json", KeeperRecord)
        assert record is not None
        return record.pid

    async def start(self, group: Group, attempt: int = ATTEMPT) -> EngineProcess:
        port = free_port()
        argv = (sys.executable, echo_engine.__file__, "--port", str(port), "--seen", str(self.folder / "seen"))
        process = await self.launch(group, port, argv, attempt)
        await asyncio.to_thread(wait_for, lambda: is_listening(process.pid), "the engine listens")
        return process

    async def launch(self, group: Group, port: int, argv: tuple[str, ...], attempt: int = ATTEMPT) -> EngineProcess:
        launch = Launch(argv, {"PATH": os.environ["PATH"]}, (), group=group)
        return await self.keepers.start(ID, attempt, port, launch)

    async def wait_exit(self) -> EngineExit:
        async with asyncio.timeout(SECONDS):
            return await self.keepers.wait_exit(ID)

    async def end(self) -> None:
        """Whatever runs here."""
        if isinstance(await self.keepers.find(ID, ""), EngineProcess):
            await self.keepers.stop(ID, 1)
            await self.keepers.wait_exit(ID)
        await self.keepers.release(ID)


def is_listening(pid: int) -> bool:
    return any(each.status == psutil.CONN_LISTEN for each in psutil.Process(pid).net_connections("tcp"))


@dataclass
class Fleet:
    folder: Path
    authority: Authority
    stack: AsyncExitStack

    def add(self, name: str) -> Node:
        folder = self.folder / name
        identity = write_identity(folder / "agent", self.authority, CertificateRole.AGENT, name)
        keepers = ProcessKeepers(folder / "members", 60, lambda: FrontSettings(ADDRESSES[name], identity))
        node = Node(name, folder, identity, keepers)
        self.stack.callback(keepers.close)
        self.stack.push_async_callback(node.end)
        return node


@asynccontextmanager
async def fleet(folder: Path) -> AsyncGenerator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(folder, authority_in(folder / "controller", time.time()), stack)
