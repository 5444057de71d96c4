"""The controller as a process: flags, sockets, files, signals, and one agent and one gateway over real mutual TLS.

Agent and gateway are the fleet client with the test kit's members: what they run is not real, everything else is.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from covey_api.instance import MemberPhase
from covey_api.messages import Assignments, CertificateRole, Demand, DemandAnswer, Endpoints, ReportAnswer
from covey_fleet_client.client import FleetClient
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.identity import load_identity
from covey_fleet_client.join import ensure_joined
from kit.worlds import FakeAgent, FakeGateway

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

EXAMPLE = Path(__file__).parents[2] / "examples" / "01-one-model"
SETTLE_SECONDS = 60.0
PLACEMENT = "placements/default/smollm2"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass(slots=True)
class Controller:
    """One controller on its own source and state; can be killed and started again."""

    source: Path
    state: Path
    listen: str = "127.0.0.1:0"
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.state.with_suffix(".log")

    def command(self, *extra: str) -> list[str]:
        flags = ["--source", str(self.source), "--state", str(self.state), "--fleet-listen", self.listen]
        return [sys.executable, "-m", "covey_controller", *flags, *extra]

    def start(self, *extra: str, pass_fds: tuple[int, ...] = ()) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command(*extra), stderr=log, pass_fds=pass_fds)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=30)

    def url(self) -> str:
        return str(json.loads((self.state / "controller" / "fleet.json").read_text())["url"])

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncGenerator[httpx.AsyncClient]:
        transport = httpx.AsyncHTTPTransport(uds=str(self.state / "control.sock"))
        async with httpx.AsyncClient(transport=transport, base_url="http://controller", timeout=10) as client:
            yield client

    async def get(self, path: str) -> dict[str, Any]:
        async with self.client() as client:
            answer = await client.get(f"/api/v1/{path}")
            assert answer.status_code == 200, answer.text
            return cast("dict[str, Any]", answer.json())

    async def wait_ready(self) -> None:
        async with asyncio.timeout(SETTLE_SECONDS):
            for _ in range(int(SETTLE_SECONDS * 20)):
                with contextlib.suppress(httpx.HTTPError):
                    async with self.client() as client:
                        if (await client.get("/readyz")).status_code == 200:
                            return
                await asyncio.sleep(0.05)

    async def wait_condition(self, reason: str) -> None:
        """Until the Placement's `Ready` has this reason."""
        seen = ""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            conditions = (await self.get(f"objects/{PLACEMENT}"))["status"].get("conditions", [])
            seen = next((str(each["reason"]) for each in conditions if each["type"] == "Ready"), "")
            if seen == reason:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"`Ready` must get the reason {reason}; it has '{seen}':\n{self.log.read_text()}")

    async def join(self, role: CertificateRole, folder: Path, name: str) -> FleetClient:
        async with self.client() as client:
            answer = await client.post("/api/v1/tokens", json={"role": role, "uses": 1, "ttlSeconds": 60})
        token = str(answer.json()["token"])
        identity = await ensure_joined(load_identity(folder), self.url(), role, name, token)
        return FleetClient(identity, self.url())


@pytest.fixture
def controller() -> Generator[Controller]:
    """Not started. Its folder is short: the path of a Unix socket must be."""
    folder = Path(tempfile.mkdtemp(prefix="covey-"))
    shutil.copytree(EXAMPLE, folder / "source")
    made = Controller(folder / "source", folder / "state")
    yield made
    if made.process is not None:
        made.end(signal.SIGKILL)
    shutil.rmtree(folder)


async def eventually(holds: Callable[[], bool], what: str) -> None:
    for _ in range(int(SETTLE_SECONDS / 0.05)):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {SETTLE_SECONDS:.0f} s: {what}")


def run_to_end(controller: Controller) -> subprocess.CompletedProcess[str]:
    return subprocess.run(controller.command(), capture_output=True, text=True, timeout=30, check=False)


async def live_agent(controller: Controller, agent: FakeAgent, folder: Path) -> None:
    """Join, follow the stream, answer asks, report; dial again when the controller went away."""
    await asyncio.to_thread(folder.mkdir)
    client = await controller.join(CertificateRole.AGENT, folder, agent.name)
    latest: Assignments | None = None

    async def follow(client: FleetClient) -> None:
        nonlocal latest
        async with contextlib.aclosing(client.stream(f"nodes/{agent.name}/assignments")) as lines:
            async for line in lines:
                latest = Assignments.model_validate_json(line)
                for ask in latest.asks:
                    await client.put(f"nodes/{agent.name}/asks/{ask.id}", agent.answer(ask))

    async def report(client: FleetClient) -> None:
        for sequence in range(10_000):
            if latest is not None:
                agent.follow(latest)
            message = agent.report().model_copy(update={"sequence": sequence})
            await client.post(f"nodes/{agent.name}/report", message, ReportAnswer)
            await asyncio.sleep(0.2)

    while True:
        with contextlib.suppress(FleetError, ExceptionGroup):
            async with client, asyncio.TaskGroup() as group:
                group.create_task(follow(client))
                group.create_task(report(client))
        await asyncio.sleep(0.2)
        client = FleetClient(load_identity(folder), controller.url())


async def live_gateway(controller: Controller, gateway: FakeGateway, folder: Path) -> None:
    await asyncio.to_thread(folder.mkdir)
    client = await controller.join(CertificateRole.GATEWAY, folder, gateway.name)
    async with client, contextlib.aclosing(client.stream("endpoints")) as lines:
        async for line in lines:
            gateway.follow(Endpoints.model_validate_json(line))
            demand: Demand = gateway.demand()
            await client.post("demand", demand, DemandAnswer)


async def test_line_from_yaml_to_a_routed_endpoint_and_back(controller: Controller, tmp_path: Path) -> None:
    controller.start()
    await controller.wait_ready()
    agent, gateway = FakeAgent("a"), FakeGateway("g")
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(live_agent(controller, agent, tmp_path / "agent")),
            group.create_task(live_gateway(controller, gateway, tmp_path / "gateway")),
        ]
        await controller.wait_condition("Serving")
        why = await controller.get(f"why/{PLACEMENT}")
        assert "instance/smollm2-0 on node 'a'" in why["text"]
        assert why["data"]["replicas"] == 1
        events = (await controller.get("events/instances/default/smollm2-0"))["items"]
        assert events[0]["reason"] == "InstanceCreated"
        age = datetime.now(UTC) - datetime.fromisoformat(events[0]["seen"])
        assert timedelta(seconds=-1) < age < timedelta(minutes=10)
        await eventually(lambda: len(gateway.routed) == 1, "the gateway routes to it")
        (controller.source / "placement.yaml").unlink()
        await eventually(lambda: not agent.members, "the agent has let go of the member")
        assert not gateway.routed
        assert len(agent.started) == 1
        for task in tasks:
            task.cancel()
    assert controller.end() == 0
    assert not (controller.state / "control.sock").exists()


@pytest.mark.parametrize("is_store_lost", [False, True], ids=["store kept", "store lost"])
async def test_killed_controller_converges_and_restarts_no_engine(
    controller: Controller, tmp_path: Path, is_store_lost: bool
) -> None:
    controller.start()
    await controller.wait_ready()
    agent = FakeAgent("a")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(live_agent(controller, agent, tmp_path / "agent"))
        await controller.wait_condition("Serving")
        controller.end(signal.SIGKILL)
        before = agent.applied_term
        if is_store_lost:
            for path in (controller.state / "controller").glob("store-*"):
                path.unlink()
        controller.listen = controller.url().removeprefix("https://")
        controller.start()
        await eventually(lambda: agent.applied_term > before and agent.is_complete, "the agent follows a new term")
        await controller.wait_condition("Serving")
        task.cancel()
    assert len(agent.started) == 1
    assert controller.end() == 0


async def test_deleted_node_is_drained_then_refused_until_it_joins_again(
    controller: Controller, tmp_path: Path
) -> None:
    async def is_known() -> bool:
        return any(each["metadata"]["name"] == "a" for each in (await controller.get("objects/nodes"))["items"])

    async def wait_known(wanted: bool) -> None:
        for _ in range(int(SETTLE_SECONDS / 0.05)):
            if await is_known() is wanted:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"node 'a' must {'be known' if wanted else 'be gone'} within {SETTLE_SECONDS:.0f} s")

    async def read_to_end(client: FleetClient) -> None:
        with contextlib.suppress(FleetError):
            async with contextlib.aclosing(client.stream("nodes/a/assignments")) as lines:
                async for _ in lines:
                    pass

    async def is_refused(client: FleetClient) -> bool:
        try:
            await client.post("nodes/a/report", FakeAgent("a").report(), ReportAnswer)
        except FleetError as error:
            return error.kind is FleetErrorKind.DENIED
        return False

    controller.start()
    await controller.wait_ready()
    agent = FakeAgent("a")
    async with asyncio.TaskGroup() as group:
        living = group.create_task(live_agent(controller, agent, tmp_path / "agent"))
        await controller.wait_condition("Serving")
        async with FleetClient(load_identity(tmp_path / "agent"), controller.url()) as old:
            reading = group.create_task(read_to_end(old))
            async with controller.client() as client:
                answer = await client.post("/api/v1/delete", json={"keys": [{"kind": "Node", "name": "a"}]})
                assert answer.status_code == 200, answer.text
            await wait_known(False)
            phases = [member.phase for member in agent.members.values()]
            assert set(phases) <= {MemberPhase.STOPPED}, "what it ran was drained first"
            async with asyncio.timeout(30):
                await reading
            assert await is_refused(old)
        await asyncio.sleep(1)
        assert not await is_known()
        controller.end(signal.SIGKILL)
        controller.start()
        await controller.wait_ready()
        async with FleetClient(load_identity(tmp_path / "agent"), controller.url()) as old:
            assert await is_refused(old)
        living.cancel()
    async with asyncio.TaskGroup() as group:
        living = group.create_task(live_agent(controller, FakeAgent("a"), tmp_path / "again"))
        await wait_known(True)
        await controller.wait_condition("Serving")
        living.cancel()


async def test_controller_ends_by_itself_when_its_parent_is_gone(controller: Controller) -> None:
    reader, writer = os.pipe()
    controller.start("--lifeline", str(reader), pass_fds=(reader,))
    os.close(reader)
    await controller.wait_ready()
    os.close(writer)
    assert controller.process is not None
    assert controller.process.wait(timeout=30) == 0


def test_source_that_is_not_there_is_wrong_use_in_words(controller: Controller) -> None:
    controller.source = controller.source / "missing"
    done = run_to_end(controller)
    assert done.returncode == 2
    assert f"`--source` must be a directory or a file; there is no '{controller.source}'" in done.stderr


async def test_address_that_is_taken_fails_in_one_line(controller: Controller) -> None:
    controller.start()
    await controller.wait_ready()
    second = Controller(
        controller.source, controller.state.parent / "second", controller.url().removeprefix("https://")
    )
    done = await asyncio.to_thread(run_to_end, second)
    assert done.returncode == 1
    assert "the fleet API can't listen" in done.stderr
    assert "Traceback" not in done.stderr
    assert controller.end() == 0


async def test_log_and_state_hold_no_secret_and_files_are_private(controller: Controller) -> None:
    controller.start()
    await controller.wait_ready()
    folder = controller.state / "controller"
    secret = (folder / "fleet.secret").read_text().strip()
    assert secret not in controller.log.read_text()
    assert {path.stat().st_mode & 0o077 for path in [controller.state, folder, *folder.iterdir()]} == {0}
    assert controller.end() == 0
