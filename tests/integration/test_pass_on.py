"""A replica that doesn't lead: connections passed on, refused while there is no leader, ended when it changes."""

import asyncio
import socket
import ssl
import time
from contextlib import aclosing, suppress
from pathlib import Path

import httpx
import pytest
from covey_api.messages import CertificateRole, ReportAnswer
from covey_controller.fleet_api.server import Replicas
from covey_controller.serving import listener as listener_module
from covey_controller.serving.passing import Passing
from covey_fleet_client.client import FleetClient
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.identity import load_identity
from covey_fleet_client.join import ensure_joined
from integration.fleet_rig import Rig, SteeredBoard, eventually, report, running_fleet
from kit.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

AGENT = CertificateRole.AGENT
LARGE_BYTES = 8_000_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Lead:
    """Who leads, as one replica sees it: itself, another at an address, or nobody."""

    def __init__(self) -> None:
        self.address: str | None = None
        self.is_mine = False

    def replicas(self) -> Replicas:
        return Replicas(elsewhere=lambda: self.address, is_leading=lambda: self.is_mine)


def address_of(rig: Rig) -> str:
    return rig.url.removeprefix("https://")


async def join_through(rig: Rig, leader: Rig, folder: Path) -> FleetClient:
    identity = await ensure_joined(load_identity(folder), rig.url, AGENT, "a", await leader.token(AGENT))
    return FleetClient(identity, rig.url)


async def test_agent_through_a_standby_is_the_leaders_by_its_own_certificate(tmp_path: Path) -> None:
    lead = Lead()
    async with running_fleet(tmp_path) as leader, running_fleet(tmp_path, replicas=lead.replicas()) as standby:
        lead.address = address_of(leader)
        async with await join_through(standby, leader, tmp_path / "a") as client:
            await client.post("nodes/a/report", report(), ReportAnswer)
            async with aclosing(client.stream("nodes/a/assignments")) as lines:
                await anext(lines)
                leader.board.publish()
                await anext(lines)
        assert [node for node, _ in leader.board.reports] == ["a"]
        assert standby.board.reports == []
        assert standby.board.readers == []


async def test_snapshots_pass_whole_and_a_slow_reader_holds_the_leader_back(tmp_path: Path) -> None:
    lead = Lead()
    board = SteeredBoard(padding_bytes=LARGE_BYTES)
    async with running_fleet(tmp_path, board) as leader, running_fleet(tmp_path, replicas=lead.replicas()) as standby:
        lead.address = address_of(leader)
        async with (
            await join_through(standby, leader, tmp_path / "a") as client,
            aclosing(client.stream("nodes/a/assignments")) as lines,
        ):
            for _ in range(3):
                assert len(await anext(lines)) > LARGE_BYTES
                board.publish()


async def test_without_a_leader_the_answer_is_503_and_the_connection_ends(tmp_path: Path) -> None:
    lead = Lead()
    async with running_fleet(tmp_path, replicas=lead.replicas()) as standby:
        context = ssl.create_default_context(cadata=standby.trust.current.bundle_pem)
        async with httpx.AsyncClient(verify=context, base_url=standby.url, timeout=30) as client:
            answer = await client.get("/fleet/v1/authority")
        assert answer.status_code == 503
        assert answer.json()["error"]["reason"] == "NotReady"
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["connection"] == "close"
        lead.address = f"127.0.0.1:{free_port()}"
        async with httpx.AsyncClient(verify=context, base_url=standby.url, timeout=30) as client:
            assert (await client.get("/fleet/v1/authority")).status_code == 503, "a leader that is gone is nobody"


async def test_connections_end_when_the_leader_changes_and_the_next_ones_meet_the_new_leader(tmp_path: Path) -> None:
    """Replica `one` leads, then `two`: an agent at each replica follows."""
    first, second = Lead(), Lead()
    async with (
        running_fleet(tmp_path, replicas=first.replicas()) as one,
        running_fleet(tmp_path, replicas=second.replicas()) as two,
    ):
        first.is_mine, second.address = True, address_of(one)
        direct = await join_through(one, one, tmp_path / "a")
        passed = await join_through(two, one, tmp_path / "b")
        async with direct, passed:
            ends = [asyncio.ensure_future(read_to_end(client)) for client in (direct, passed)]
            await eventually(lambda: len(one.board.readers) == 2)
            first.is_mine, second.is_mine = False, True
            first.address, second.address = address_of(two), None
            async with asyncio.timeout(30):
                assert {(await end).kind for end in ends} == {FleetErrorKind.UNREACHABLE}
            ends = [asyncio.ensure_future(read_to_end(client)) for client in (direct, passed)]
            await eventually(lambda: len(two.board.readers) == 2)
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)


async def test_leader_that_lost_its_lease_and_knows_no_other_lets_its_clients_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone can't reach the API server: who leads now, it never hears, and its clients would stay with it."""
    monkeypatch.setattr(listener_module, "OTHER_LEADS_SECONDS", 6.0)
    lead = Lead()
    async with running_fleet(tmp_path, replicas=lead.replicas()) as one:
        lead.is_mine = True
        async with await join_through(one, one, tmp_path / "a") as client:
            end = asyncio.ensure_future(read_to_end(client))
            await eventually(lambda: len(one.board.readers) == 1)
            lead.is_mine = False
            await asyncio.sleep(0.5)
            lead.is_mine = True
            await asyncio.sleep(8)
            assert not end.done(), "a lease that is taken again soon costs nobody anything"
            lead.is_mine = False
            async with asyncio.timeout(60):
                assert (await end).kind is FleetErrorKind.UNREACHABLE


async def read_to_end(client: FleetClient) -> FleetError:
    try:
        async with aclosing(client.stream("nodes/a/assignments")) as lines:
            async for _ in lines:
                pass
    except FleetError as error:
        return error
    raise AssertionError("a stream ends by an error only")


async def echo_after_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers only once its peer has ended its side."""
    content = await reader.read()
    writer.write(content)
    with suppress(OSError):
        await writer.drain()
    writer.close()


async def pass_one(passing: Passing, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bool]:
    """A connection that was passed on, from its client's side."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listening))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        accepted, _ = await accepting
    accepted.setblocking(False)
    is_passed = await passing.begin(accepted, address)
    if not is_passed:
        accepted.close()
    return reader, writer, is_passed


async def test_end_of_one_side_is_passed_on_and_the_other_side_still_answers() -> None:
    server = await asyncio.start_server(echo_after_end, "127.0.0.1", 0, limit=2**24)
    async with server:
        host, port = server.sockets[0].getsockname()
        reader, writer, _ = await pass_one(Passing(1), f"{host}:{port}")
        writer.write(b"x" * LARGE_BYTES)
        writer.write_eof()
        async with asyncio.timeout(60):
            assert await reader.read() == b"x" * LARGE_BYTES
        writer.close()


async def test_one_connection_too_many_is_closed_and_there_is_room_again_when_one_ends() -> None:
    server = await asyncio.start_server(echo_after_end, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        passing = Passing(1)
        _, first, _ = await pass_one(passing, f"{host}:{port}")
        second, writer, _ = await pass_one(passing, f"{host}:{port}")
        async with asyncio.timeout(30):
            assert await second.read() == b""
        writer.close()
        first.close()
        await eventually(lambda: passing.count == 0)
        third, writer, is_passed = await pass_one(passing, f"{host}:{port}")
        assert is_passed
        writer.write_eof()
        async with asyncio.timeout(30):
            assert await third.read() == b""
        writer.close()


async def test_leader_that_takes_no_connection_is_given_up_within_the_deadline() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        clients = [socket.socket() for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(deaf.getsockname())
        begun = time.monotonic()
        _, writer, is_passed = await pass_one(Passing(1), f"127.0.0.1:{deaf.getsockname()[1]}")
        assert not is_passed
        assert time.monotonic() - begun < 30
        writer.close()
        for client in clients:
            client.close()


async def test_all_ends_at_once_when_asked() -> None:
    server = await asyncio.start_server(echo_after_end, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        passing = Passing(2)
        reader, writer, _ = await pass_one(passing, f"{host}:{port}")
        passing.end_except(None)
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        await eventually(lambda: passing.count == 0)
