"""A real agent whose address isn't 127.0.0.1, and a gateway that goes to its engine by the front."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from covey_api.instance import MemberPhase
from covey_api.messages import CertificateRole, JoinAnswer, JoinRequest, MemberReport, render_front_name
from covey_fleet_client.client import FleetClient
from covey_fleet_client.identity import load_identity
from covey_fleet_client.machine import observe_machine
from covey_gateway.fronts import Fronts
from covey_gateway.routing.table import Front, Target
from integration.agent_rig import NODE, A, AgentRig, running_rig
from integration.gateway_rig import Gateway, asked, connected, running_gateway, target
from kit.ports import own_address
from kit.processes import assert_none_left

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(180)]

ADDRESS = own_address()


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@dataclass
class Site:
    """One engine on the node, and a gateway that is elsewhere."""

    rig: AgentRig
    gateway: Gateway
    member: MemberReport
    identity: Path

    @property
    def target(self) -> Target:
        front = Front(ADDRESS, self.member.front_port, render_front_name(A, 1), NODE)
        # Straight there is nothing: whatever arrives has come by the front.
        return replace(target(1, A, key=f"key-of-{A}"), front=front)

    @property
    def log(self) -> str:
        return (self.rig.members / A / "front.log").read_text()

    @property
    def requests(self) -> int:
        """How many the engine has answered, its agent's included."""
        return (self.rig.members / A / "output.log").read_text().count("POST")


@asynccontextmanager
async def site(folder: Path) -> AsyncGenerator[Site]:
    async with running_rig(folder) as rig:
        rig.start("--address", ADDRESS)
        rig.board.wish(rig.assign())
        member = await rig.wait_phase(MemberPhase.READY)
        identity = await rig.fleet.join(CertificateRole.GATEWAY, "gw")
        async with running_gateway(is_routed=False, fronts=Fronts(identity.folder)) as gateway:
            here = Site(rig, gateway, member, identity.folder)
            gateway.route(here.target)
            yield here
    assert_none_left(folder / "state")


async def renew(folder: Path, url: str) -> int:
    """A renewal as the part itself does it when it is due; the new certificate's serial number."""
    identity = load_identity(folder)
    request = JoinRequest(role=identity.role, name=identity.name, signing_request=identity.render_signing_request())
    async with FleetClient(identity, url) as client:
        answer = await client.post("renew", request, JoinAnswer)
    accepted = identity.accept(answer, identity.role, identity.name, time.time())
    assert accepted.certificate is not None
    return accepted.certificate.serial_number


async def test_a_stream_passes_the_front_while_both_certificates_are_renewed(tmp_path: Path) -> None:
    async with site(tmp_path) as here, connected(here.gateway) as client:
        assert here.rig.board.last is not None
        assert (here.rig.board.last.address, here.rig.board.last.machine) == (ADDRESS, observe_machine())
        await client.ask(stream=True)
        status, _ = await client.read_head()
        assert status == 200
        first = await client.read_chunk()
        assert b"data: " in first
        for folder in (here.rig.state / "agent", here.identity):
            before = load_identity(folder).certificate
            assert before is not None
            assert await renew(folder, here.rig.fleet.url) != before.serial_number
        # A new connection, by the new certificates, while the old one streams on.
        other = await asked(here.gateway, stream=False)
        assert (other.status, other.content["choices"][0]["message"]["content"]) == (200, "a" * 999)
        rest = b""
        while piece := await client.read_chunk():
            rest += piece
        assert rest.endswith(b"data: [DONE]\n\n")
        assert here.log == ""


async def test_an_adopted_keeper_keeps_its_front_and_its_connections(tmp_path: Path) -> None:
    async with site(tmp_path) as here, connected(here.gateway) as client:
        await client.ask(stream=True)
        await client.read_head()
        here.rig.kill()
        here.rig.start("--address", ADDRESS)
        again = await here.rig.wait_phase(MemberPhase.READY)
        assert (again.front_port, again.pid, again.restarts) == (here.member.front_port, here.member.pid, 0)
        rest = b""
        while piece := await client.read_chunk():
            rest += piece
        assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_gateway_goes_to_no_other_node_and_no_other_attempt(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        before = here.requests
        assert here.target.front is not None
        for changes, words in (
            ({"node": "b"}, "not of node 'b'"),
            ({"name": render_front_name(A, 2)}, "another attempt or Instance is served there"),
        ):
            wrong = replace(here.target, id=words, front=replace(here.target.front, **changes))
            assert words in await here.gateway.engines.probe(wrong, 0)
            here.gateway.route(wrong)
            assert (await asked(here.gateway, "x-covey-hold: 0")).status == 503
        assert here.requests == before
        assert f"it asks for '{render_front_name(A, 2)}'" in here.log


async def test_a_removed_gateway_loses_its_way_within_seconds_and_has_it_again_once_it_joined(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        assert (await asked(here.gateway)).status == 200
        await here.rig.fleet.denials.deny(CertificateRole.GATEWAY, "gw", time.time())
        words = "gateway 'gw' was removed from the fleet"
        deadline = time.monotonic() + 20
        while words not in here.log:
            assert time.monotonic() < deadline, "the front must refuse it"
            await here.gateway.engines.probe(here.target, 0.2)
        assert "after the handshake" in await here.gateway.engines.probe(here.target, 0.25)
        before = here.requests
        assert (await asked(here.gateway, "x-covey-hold: 0")).status == 503
        assert here.requests == before
        for name in ("certificate.pem", "name"):
            (here.identity / name).unlink()
        await here.rig.fleet.join(CertificateRole.GATEWAY, "gw")
        assert await here.gateway.engines.probe(here.target, 0.25) == ""


async def test_a_loopback_address_opens_no_front(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        rig.start()
        rig.board.wish(rig.assign())
        member = await rig.wait_phase(MemberPhase.READY)
        assert rig.board.last is not None
        assert (member.front_port, rig.board.last.address) == (0, "127.0.0.1")
        assert not (rig.members / A / "front.log").exists()


async def test_an_address_that_can_be_none_is_refused_with_words(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        process = rig.start("--address", "127.0.0.2:52500")
        assert await asyncio.to_thread(process.wait, 20) == 2
        assert "`--address` must be a host name or an IP address, without a port" in rig.log.read_text()
