"""The fleet's authority is replaced while a member is connected: it learns of each step and never loses its place."""

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

import pytest
from covey_api.messages import CertificateRole, ReportAnswer
from covey_controller.trust import RotationStep
from covey_fleet_client.client import FleetClient
from covey_fleet_client.errors import FleetError
from covey_fleet_client.identity import Identity, load_identity
from integration.fleet_rig import Rig, eventually, report, running_fleet

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

AGENT = CertificateRole.AGENT


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def start_again(rig: Rig, folder: Path) -> Identity:
    """A member that starts: it renews if the fleet's authorities are others, and serves."""
    async with FleetClient(load_identity(folder), rig.url) as client:
        watching = asyncio.ensure_future(client.watch_certificate())
        await eventually(lambda: load_identity(folder).authorities == rig.trust.current.bundle)
        await client.post("nodes/a/report", report(), ReportAnswer)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return load_identity(folder)


async def test_member_that_hears_of_each_step_follows_and_its_stream_is_never_broken(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, rig.client(AGENT, "a") as long_lived:
        folder = rig.folder / "agent-a"
        async with aclosing(long_lived.stream("nodes/a/assignments")) as lines:
            await anext(lines)
            old = rig.trust.current
            for expected in (RotationStep.ANNOUNCED, RotationStep.SIGNING, RotationStep.FINISHED):
                assert await rig.trust.rotate(time.time()) is expected
                joined = await start_again(rig, folder)
                rig.board.publish()
                await anext(lines)
        assert joined.authorities == rig.trust.current.bundle
        assert joined.certificate is not None
        joined.certificate.verify_directly_issued_by(rig.trust.current.certificate)
        assert old.certificate not in joined.authorities


async def test_member_that_missed_the_steps_is_refused_and_joins_again_by_a_new_token(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig:
        missed = await rig.join(AGENT, "a")
        for _ in range(3):
            await rig.trust.rotate(time.time())
        async with FleetClient(missed, rig.url) as client:
            with pytest.raises(FleetError, match="doesn't vouch for"):
                await client.post("nodes/a/report", report(), ReportAnswer)
        again = await rig.join(AGENT, "a")
        async with FleetClient(again, rig.url) as client:
            await client.post("nodes/a/report", report(), ReportAnswer)
