"""Keepers of a ring over real sockets: ranks that start in any order find each other, and all end as one."""

import asyncio
import contextlib
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from covey_agent.keeper.front import PORTS
from covey_agent.ports import AgentError, EngineExit, EngineProcess, Group, Neighbour
from covey_api.messages import CertificateRole, MemberDoor, render_front_name, render_member_name
from kit import ring_engine
from kit.ports import free_port
from kit.processes import processes_of, wait_for
from member_rig import ADDRESSES, ATTEMPT, FORM_SECONDS, ID, SECONDS, Fleet, Node, fleet, run, write_identity

STEP_SECONDS = 2.0


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    left = processes_of(tmp_path)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert not left, f"a test must leave no process behind; left {left}"


@dataclass
class Ring:
    fleet: Fleet
    nodes: list[Node]
    """By rank."""
    fronts: list[int]
    """Ports that are kept for them."""
    engines: dict[str, EngineProcess]

    async def start(self, rank: int, *, late: float = 0.0) -> None:
        """As its agent does; `late`: seconds until its engine listens and dials."""
        node, count, ring_port, local = self.nodes[rank], len(self.nodes), free_port(), free_port()
        after, before = (rank + 1) % count, (rank - 1) % count
        group = Group(
            str(rank),
            FORM_SECONDS,
            dials=(self._neighbour(after, local),),
            admits=(self._neighbour(before, 0),),
            ring_port=ring_port,
            front_port=self.fronts[rank],
            answers=rank == 0,
            lost_status=ring_engine.LOST,
            stuck_status=ring_engine.STUCK,
            step_seconds=STEP_SECONDS,
        )
        port = free_port()
        argv = [sys.executable, ring_engine.__file__, "--port", port, "--ring", ring_port, "--next", local]
        argv += ["--heard", self.heard(rank), "--late", late]
        self.engines[node.name] = await node.launch(group, port, tuple(map(str, argv)))

    def _neighbour(self, rank: int, local_port: int) -> Neighbour:
        name = self.nodes[rank].name
        return Neighbour(str(rank), name, ADDRESSES[name], self.fronts[rank], local_port)

    def heard(self, rank: int) -> Path:
        return self.nodes[rank].folder / f"rank-{rank}"

    async def wait_heard(self) -> None:
        """Every rank has heard the one before, and nobody else."""
        for rank in range(len(self.nodes)):
            words = f"from rank-{(rank - 1) % len(self.nodes)}\n"
            path = self.heard(rank)
            await asyncio.to_thread(wait_for, path.exists, f"rank {rank} has heard")
            assert path.read_text() == words

    def connect(self, identity: Path, name: str) -> ssl.SSLSocket:
        """To rank 0's front, as whoever holds this identity."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(identity / "authorities.pem")
        context.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
        peer = socket.create_connection((ADDRESSES[self.nodes[0].name], self.fronts[0]), timeout=SECONDS)
        return context.wrap_socket(peer, server_hostname=name, suppress_ragged_eofs=False)

    def talk(self, identity: Path, name: str) -> bytes:
        try:
            with self.connect(identity, name) as peer:
                peer.sendall(b"hello")
                return peer.recv(5)
        except OSError:
            return b""


@asynccontextmanager
async def ring(folder: Path, *names: str) -> AsyncGenerator[Ring]:
    """Nodes whose ranks' ports are kept, and nothing started."""
    async with fleet(folder) as here:
        nodes = [here.add(name) for name in names]
        yield Ring(here, nodes, [node.keepers.keep_port(ID) for node in nodes], {})


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
def test_ranks_that_start_in_any_order_find_the_next_and_are_found_by_the_one_before(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """The first one's keeper is there long before the others, the last one's engine long after its keeper."""

    async def story() -> None:
        async with ring(tmp_path, *names) as here:
            await here.start(0)
            await asyncio.sleep(1.5)
            for rank in range(1, len(names)):
                await here.start(rank, late=2.0)
            await here.wait_heard()
            assert [here.engines[node.name].front_port for node in here.nodes] == here.fronts

    run(story)


def test_gateways_and_the_last_rank_come_in_at_rank_0_each_to_its_own_port(tmp_path: Path) -> None:
    async def story() -> None:
        async with ring(tmp_path, "a", "b") as here:
            for rank in range(2):
                await here.start(rank)
            await here.wait_heard()
            authority, public = here.fleet.authority, render_front_name(ID, ATTEMPT)
            gateway = write_identity(tmp_path / "gateway", authority, CertificateRole.GATEWAY, "g")
            other = write_identity(tmp_path / "other", authority, CertificateRole.AGENT, "z")
            stream = render_member_name(ID, ATTEMPT, "0", MemberDoor.STREAM)
            assert await asyncio.to_thread(here.talk, gateway, public) == b"hello"
            for identity, name in ((gateway, stream), (here.nodes[1].identity, public), (other, stream)):
                assert await asyncio.to_thread(here.talk, identity, name) == b"", name
            words = ("only nodes come in", "only gateways come in", "it must be node 'b'; it is 'z'")
            log = here.nodes[0].log
            assert all(each in log for each in words), log
            # No gateway comes in where no requests are answered.
            here.nodes, here.fronts = here.nodes[::-1], here.fronts[::-1]
            assert await asyncio.to_thread(here.talk, gateway, public) == b""

    run(story)


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_ends_all_and_each_says_whose_end_it_was(
    tmp_path: Path, names: tuple[str, ...], rank: int
) -> None:
    """The others' engines notice by themselves, and end before or after they are told."""

    async def story() -> None:
        async with ring(tmp_path, *names) as here:
            for each in range(len(names)):
                await here.start(each)
            await here.wait_heard()
            died = here.nodes[rank].name
            psutil.Process(here.engines[died].pid).kill()
            words = f"member '{rank}' on node '{died}' lost its engine: it ended by SIGKILL"
            for node in here.nodes:
                end = await node.wait_exit()
                why = end.why.split(" (heard from")[0]  # the other one's word of it may be faster
                assert (end.ended_by, why) == (("Engine", "") if node.name == died else ("Neighbour", words)), end

    run(story)


@pytest.mark.parametrize(
    ("names", "stuck", "waiting"),
    [(("a", "b"), 1, [0]), (("a", "b"), 0, [1]), (("a", "b", "c"), 1, [0, 2]), (("a", "b", "c"), 2, [0])],
)
def test_a_rank_that_stands_still_is_named_by_its_own_keeper_and_by_all_others(
    tmp_path: Path, names: tuple[str, ...], stuck: int, waiting: list[int]
) -> None:
    """Whoever is not in `waiting` ends since the others' connections do, before it has waited for as long."""

    async def story() -> None:
        async with ring(tmp_path, *names) as here:
            for each in range(len(names)):
                await here.start(each)
            await here.wait_heard()
            engines = [psutil.Process(here.engines[name].pid) for name in names]
            engines[stuck].suspend()
            await asyncio.sleep(STEP_SECONDS)
            for rank in waiting:
                with contextlib.suppress(psutil.NoSuchProcess):  # the one before it has ended, and it with that one
                    engines[rank].send_signal(signal.SIGUSR1)
            ends = [await node.wait_exit() for node in here.nodes]
            said = "did not answer within 2 s while member '"
            assert ends[stuck].ended_by == "Stuck"
            assert ends[stuck].why.startswith(said), ends[stuck]
            for rank, end in enumerate(ends):
                if rank != stuck:
                    assert end.ended_by == "Neighbour", end
                    assert end.why.startswith(f"member '{stuck}' on node '{names[stuck]}' {said}"), end

    run(story)


def test_ranks_that_all_waited_in_vain_blame_nobody_that_ended_as_well(tmp_path: Path) -> None:
    async def story() -> None:
        async with ring(tmp_path, "a", "b") as here:
            for rank in range(2):
                await here.start(rank)
            await here.wait_heard()
            for name in ("a", "b"):
                psutil.Process(here.engines[name].pid).send_signal(signal.SIGUSR1)
            for node in here.nodes:
                end = await node.wait_exit()
                assert end.ended_by in ("Engine", "Neighbour"), end
                assert "did not answer" not in end.why

    run(story)


def test_a_rank_that_lost_its_ring_and_hears_of_nobodys_end_says_so_itself(tmp_path: Path) -> None:
    async def story() -> None:
        async with ring(tmp_path, "a", "b") as here:
            await here.start(0)
            # Its keeper is linked, and its engine never meets the ring.
            await here.start(1, late=600.0)
            first = psutil.Process(here.engines["a"].pid)
            await asyncio.to_thread(wait_for, first.is_running, "it runs")
            first.terminate()
            end = await here.nodes[0].wait_exit()
            assert (end.ended_by, end.why) == ("Engine", "")
            other = await here.nodes[1].wait_exit()
            assert other.why == "member '0' on node 'a' lost its engine: it ended by SIGTERM"

    run(story)


def test_a_rank_that_never_comes_is_named_and_its_neighbour_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    async def story() -> None:
        async with ring(tmp_path, "a", "b") as here:
            dialled = Neighbour("1", "b", ADDRESSES["b"], here.fronts[1], free_port())
            group = Group("0", 2, dials=(dialled,), admits=(Neighbour("1", "b"),), ring_port=free_port())
            await here.nodes[0].launch(group, free_port(), ("/bin/sleep", "600"))
            end = await here.nodes[0].wait_exit()
            assert end.ended_by == "Neighbour"
            assert "member '1' on node 'b' could not be reached in time" in end.why, end.why

    run(story)


def test_a_kept_port_is_nobody_elses_until_its_keeper_has_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as here:
            node = here.add("a")
            port = node.keepers.keep_port(ID)
            assert port in PORTS
            assert node.keepers.keep_port(ID) == port
            assert node.keepers.keep_port("00000000000000bb") != port
            with pytest.raises(OSError, match="in use"), socket.create_server((ADDRESSES["a"], port)):
                pass
            node.keepers.forget(ID)
            with socket.create_server((ADDRESSES["a"], port)) as taken:
                taken.listen()
                group = Group("0", FORM_SECONDS, admits=(Neighbour("1", "b"),), ring_port=1, front_port=port)
                with pytest.raises(AgentError, match=f"port {port} is in use"):
                    await node.launch(group, free_port(), ("/bin/sleep", "600"))

    run(story)


def test_silence_of_a_rank_that_was_never_there_costs_no_time_of_others(tmp_path: Path) -> None:
    """A stranger's crowd of handshakes does not push out the neighbour that waits for the engine."""

    async def story() -> None:
        async with ring(tmp_path, "a", "b") as here:
            await here.start(0, late=3.0)
            await here.start(1)
            until = time.monotonic() + 2.0
            crowd: list[socket.socket] = []
            while time.monotonic() < until and len(crowd) < 80:
                crowd.append(socket.create_connection((ADDRESSES["a"], here.fronts[0]), timeout=SECONDS))
                await asyncio.sleep(0.01)
            await here.wait_heard()
            for each in crowd:
                each.close()
            assert isinstance(await here.nodes[0].keepers.find(ID, ""), EngineProcess | EngineExit)

    run(story)
