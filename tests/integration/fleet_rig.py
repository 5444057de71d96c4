"""A fleet API on a real socket with real TLS, over a board that tests steer; and clients for it."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from covey_api.messages import (
    KEEPALIVE_SECONDS,
    Ask,
    AskAnswer,
    AskKind,
    Assignments,
    Cancel,
    CertificateRole,
    Demand,
    DemandAnswer,
    Endpoints,
    Order,
    Report,
    ReportAnswer,
    Wanted,
    WantedAnswer,
)
from covey_api.node import NodeSpec
from covey_controller.credentials import open_credentials
from covey_controller.denials import Denials
from covey_controller.fleet_api.server import ALONE, Replicas, serve_fleet
from covey_controller.stores.files.vault import FilesVault
from covey_controller.tokens import Tokens
from covey_controller.trust import Trust
from covey_fleet_client.client import FleetClient
from covey_fleet_client.identity import Identity, load_identity
from covey_fleet_client.join import ensure_joined


class SteeredBoard:
    """Board with one snapshot per kind; `publish` sends a new one, `padding_bytes` makes each that much longer."""

    def __init__(self, padding_bytes: int = 0) -> None:
        self.reports: list[tuple[str, Report]] = []
        self.beats: list[tuple[str, Report]] = []
        """Reports without news that came whole in one read."""
        self.demands: list[tuple[str, Demand]] = []
        self.answers: list[tuple[str, AskAnswer]] = []
        self.readers: list[str] = []
        self._asks = (Ask(id="1", kind=AskKind.HEADER, source="x" * padding_bytes),) if padding_bytes else ()
        self._serial = 1
        self._changed = asyncio.Event()

    @property
    def order(self) -> Order:
        return Order(term=1, serial=self._serial)

    def publish(self) -> None:
        self._serial += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def on_report(self, node: str, report: Report) -> ReportAnswer:
        self.reports.append((node, report))
        return ReportAnswer(term=1, serial=self._serial)

    def on_beat(self, node: str, report: Report) -> ReportAnswer | None:
        if report.full or report.members is not None:
            return None
        self.beats.append((node, report))
        return ReportAnswer(term=1, serial=self._serial)

    def on_demand(self, gateway: str, demand: Demand) -> DemandAnswer:
        self.demands.append((gateway, demand))
        return DemandAnswer(term=self.order.term, serial=self.order.serial)

    def on_cancel(self, gateway: str, cancel: Cancel) -> int:
        return 0

    def on_answer(self, node: str, answer: AskAnswer) -> None:
        self.answers.append((node, answer))

    def on_wanted(self, node: str, wanted: Wanted) -> WantedAnswer:
        return WantedAnswer()

    def may_be_there(self, gateway: str) -> bool:
        return True

    async def watch_assignments(self, node: str, boot: str) -> AsyncIterator[Assignments | None]:
        async for serial in self._serials(node):
            yield None if serial is None else self._assignments(node, serial)

    async def watch_endpoints(self, gateway: str) -> AsyncIterator[Endpoints | None]:
        async for serial in self._serials(gateway):
            yield None if serial is None else Endpoints(term=1, serial=serial)

    def _assignments(self, node: str, serial: int) -> Assignments:
        return Assignments(term=1, serial=serial, complete=True, node=node, spec=NodeSpec(), asks=self._asks)

    async def _serials(self, reader: str) -> AsyncGenerator[int | None]:
        self.readers.append(reader)
        try:
            yield self._serial
            while True:
                try:
                    async with asyncio.timeout(KEEPALIVE_SECONDS):
                        await self._changed.wait()
                except TimeoutError:
                    yield None
                else:
                    yield self._serial
        finally:
            self.readers.remove(reader)


@dataclass(slots=True)
class Rig:
    folder: Path
    url: str
    board: SteeredBoard
    trust: Trust
    tokens: Tokens
    denials: Denials
    server: "asyncio.Task[None]" = field(repr=False)

    async def token(self, role: CertificateRole, uses: int = 1, ttl_seconds: int = 60) -> str:
        return await self.tokens.mint(role, uses, ttl_seconds, time.time())

    async def join(self, role: CertificateRole, name: str) -> Identity:
        identity = load_identity(self.folder / f"{role}-{name}")
        return await ensure_joined(identity, self.url, role, name, await self.token(role))

    @asynccontextmanager
    async def client(self, role: CertificateRole, name: str) -> AsyncGenerator[FleetClient]:
        async with FleetClient(await self.join(role, name), self.url) as client:
            yield client


@asynccontextmanager
async def running_fleet(
    folder: Path, board: SteeredBoard | None = None, replicas: Replicas = ALONE
) -> AsyncGenerator[Rig]:
    """Two on one folder are two replicas: they share the vault."""
    state = folder / "controller"
    credentials = await open_credentials(FilesVault(state))
    trust, tokens, denials = credentials.trust, credentials.tokens, credentials.denials
    board = board or SteeredBoard()
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        server = group.create_task(
            serve_fleet(
                board,
                trust,
                tokens,
                denials,
                folder=state,
                host="127.0.0.1",
                port=0,
                on_listening=listening.set_result,
                replicas=replicas,
            )
        )
        yield Rig(folder, await listening, board, trust, tokens, denials, server)
        server.cancel()


async def eventually(is_so: Callable[[], bool], timeout_seconds: float = 60) -> None:
    """Return once it is so; TimeoutError otherwise."""
    async with asyncio.timeout(timeout_seconds):
        while not is_so():  # noqa: ASYNC110 - what is waited for is seen from outside only
            await asyncio.sleep(0.01)


def report(**changes: object) -> Report:
    fields: dict[str, object] = {"boot_id": "b", "sequence": 1, "version": "0.1.0", "full": True}
    return Report.model_validate(fields | changes)


def demand(gateway: str) -> Demand:
    return Demand(gateway=gateway, address="http://127.0.0.1:52415")
