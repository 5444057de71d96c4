"""Agents of many nodes and a gateway in one process, over the fleet API: what they cost is not the controller's.

They start no engine, and report as agents do: all of it when something changed, and in between that they live and how
much memory is free.
Usage: `simulated_agents.py URL FOLDER NAME…`; FOLDER holds `authorities.pem`, and a pod's token `NAME.token` for each
and for the gateway `gateway`.
"""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from covey_api.engines import HOST_POOL
from covey_api.messages import (
    REPORT_SECONDS,
    Assignments,
    CertificateRole,
    DemandAnswer,
    Endpoints,
    PoolReading,
    ReportAnswer,
)
from covey_fleet_client.client import FleetClient
from covey_fleet_client.errors import FleetError
from covey_fleet_client.identity import load_identity
from covey_fleet_client.join import Admission, ensure_admitted
from kit import builders
from kit.worlds import FakeAgent, FakeGateway

# Of all that join at once: each is two TLS handshakes.
JOINING = asyncio.Semaphore(4)
RETRY_SECONDS = 1.0


async def join(url: str, folder: Path, role: CertificateRole, name: str) -> FleetClient:
    admission = Admission(folder / f"{name}.token", folder / "authorities.pem")
    async with JOINING:
        identity = await ensure_admitted(load_identity(folder / name), url, role, name, admission)
    return FleetClient(identity, url)


async def wait(changed: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(REPORT_SECONDS):
            await changed.wait()
    changed.clear()


class LiveAgent:
    """One connection of an agent."""

    def __init__(self, agent: FakeAgent, fleet: FleetClient) -> None:
        self._agent = agent
        self._fleet = fleet
        self._latest: Assignments | None = None
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        async for line in lines_of(self._fleet, f"nodes/{self._agent.name}/assignments"):
            self._latest = Assignments.model_validate_json(line)
            for ask in self._latest.asks:
                answer = self._agent.answer(ask)
                await self._fleet.put(f"nodes/{self._agent.name}/asks/{ask.id}", answer)
            self._changed.set()

    async def report(self) -> None:
        told = None
        for sequence in itertools.count(1):
            if self._latest is not None:
                self._agent.follow(self._latest)
            found = self._agent.report()
            unchanged = {"full": False, "facts": None, "lanes": None, "blobs": None, "members": None}
            free = PoolReading(name=HOST_POOL, available_bytes=2**33 + sequence * 2**12)
            spoken = {"sequence": sequence, "readings": (free,)}
            message = found.model_copy(update=spoken | (unchanged if found == told else {}))
            answer = await self._fleet.post(f"nodes/{self._agent.name}/report", message, ReportAnswer)
            is_news, told = found != told, None if answer.resend else found
            if not is_news and not answer.resend:
                await wait(self._changed)


async def lines_of(fleet: FleetClient, path: str) -> AsyncIterator[bytes]:
    async with aclosing(fleet.stream(path)) as lines:
        async for line in lines:
            yield line


async def live_agent(url: str, folder: Path, name: str) -> None:
    simulated = FakeAgent(name, total_bytes=256 * builders.GIB)
    while True:
        try:
            async with await join(url, folder, CertificateRole.AGENT, name) as fleet, asyncio.TaskGroup() as group:
                agent = LiveAgent(simulated, fleet)
                group.create_task(agent.follow())
                group.create_task(agent.report())
        except* FleetError:
            await asyncio.sleep(RETRY_SECONDS)


async def live_gateway(url: str, folder: Path) -> None:
    while True:
        try:
            await gateway_once(url, folder)
        except* FleetError:
            await asyncio.sleep(RETRY_SECONDS)


async def gateway_once(url: str, folder: Path) -> None:
    gateway, changed = FakeGateway("gateway"), asyncio.Event()

    async def follow(fleet: FleetClient) -> None:
        async for line in lines_of(fleet, "endpoints"):
            gateway.follow(Endpoints.model_validate_json(line))
            changed.set()

    async with await join(url, folder, CertificateRole.GATEWAY, "gateway") as fleet, asyncio.TaskGroup() as group:
        group.create_task(follow(fleet))
        while True:
            await fleet.post("demand", gateway.demand(), DemandAnswer)
            await wait(changed)


async def run(url: str, folder: Path, names: list[str]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(live_gateway(url, folder))
        for name in names:
            group.create_task(live_agent(url, folder, name))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
