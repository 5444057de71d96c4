"""Keepers of one attempt over real sockets: what is carried between members, who comes in, and that all end as one."""

import asyncio
import itertools
import os
import signal
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from covey_agent.keeper import front
from covey_agent.keeper.joining import FrontSettings
from covey_agent.keeper.keepers import ProcessKeepers
from covey_agent.keeper.links import MAX_LINE_BYTES
from covey_agent.keeper.tunnel import MAX_STREAMS
from covey_agent.ports import AgentError, EngineExit, EngineProcess, Group, Launch, Neighbour
from covey_api.messages import CertificateRole, MemberDoor, render_front_name, render_member_name
from covey_fleet_client.files import write_private
from kit.ports import free_port
from kit.processes import observe_pss_bytes, processes_of, wait_for
from kit.vaults import authority_in
from member_rig import (
    ADDRESSES,
    ATTEMPT,
    FORM_SECONDS,
    ID,
    SECONDS,
    Fleet,
    Node,
    fleet,
    run,
    write_identity,
)

STREAM = render_member_name(ID, ATTEMPT, "1", MemberDoor.STREAM)
LINK = render_member_name(ID, ATTEMPT, "1", MemberDoor.LINK)


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    left = processes_of(tmp_path)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert not left, f"a test must leave no process behind; left {left}"


@dataclass
class Pool:
    """A driver on node a, its donors on the others."""

    fleet: Fleet
    driver: Node
    donors: list[Node]
    engines: dict[str, EngineProcess]
    ports: dict[str, int]
    """Where the driver's engine finds each donor's."""

    @property
    def donor(self) -> Node:
        return self.donors[0]

    @property
    def front_port(self) -> int:
        return self.engines[self.donor.name].front_port

    def dial(self) -> socket.socket:
        return socket.create_connection((ADDRESSES[self.donor.name], self.front_port), timeout=SECONDS)

    def connect(self, identity: Path, name: str = STREAM) -> ssl.SSLSocket:
        """To the first donor's front, as whoever holds this identity."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.driver.identity / "authorities.pem")
        context.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
        return context.wrap_socket(self.dial(), server_hostname=name, suppress_ragged_eofs=False)

    def is_refused(self, identity: Path, name: str = STREAM) -> bool:
        try:
            with self.connect(identity, name) as peer:
                peer.sendall(b"hello")
                return not peer.recv(5)
        except OSError:
            return True

    async def wait_linked(self) -> None:
        """Both ends of every link have spoken: a donor's keeper and the driver's have one connection more than now."""
        for donor in self.donors:
            await asyncio.to_thread(wait_for, lambda donor=donor: is_linked(donor), "the driver's link is there")


def is_linked(donor: Node) -> bool:
    connections = psutil.Process(donor.keeper_pid).net_connections("tcp")
    return any(each.status == psutil.CONN_ESTABLISHED for each in connections)


def donor_group(member: str = "1") -> Group:
    return Group(member, FORM_SECONDS, admits=(Neighbour("0", "a"),))


@asynccontextmanager
async def pool(folder: Path, *donors: str) -> AsyncGenerator[Pool]:
    async with fleet(folder) as here:
        driver, others = here.add("a"), [here.add(name) for name in donors or ("b",)]
        engines: dict[str, EngineProcess] = {}
        neighbours: list[Neighbour] = []
        for number, node in enumerate(others, 1):
            engines[node.name] = await node.start(donor_group(str(number)))
            address, port = ADDRESSES[node.name], engines[node.name].front_port
            neighbours.append(Neighbour(str(number), node.name, address, port, free_port()))
        engines["a"] = await driver.start(Group("0", FORM_SECONDS, dials=tuple(neighbours)))
        ports = {each.node: each.local_port for each in neighbours}
        found = Pool(here, driver, others, engines, ports)
        await found.wait_linked()
        yield found


def talk(port: int, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as peer:
        peer.sendall(sent)
        peer.shutdown(socket.SHUT_WR)
        read = b""
        while piece := peer.recv(65_536):
            read += piece
        return read


def test_a_drivers_engine_reaches_each_donors_engine_on_its_own_loopback(tmp_path: Path) -> None:
    async def story() -> None:
        async with pool(tmp_path, "b", "c") as here:
            for name, port in here.ports.items():
                sent = f"to {name}".encode() * 3000
                assert await asyncio.to_thread(talk, port, sent) == sent + b"%d in all" % len(sent)
            assert [node.seen for node in here.donors] == [b".", b"."]

    run(story)


def test_only_the_drivers_node_comes_in_and_only_for_this_attempt(tmp_path: Path) -> None:
    async def story() -> None:
        async with pool(tmp_path) as here:
            authority = here.fleet.authority
            other = write_identity(tmp_path / "other", authority, CertificateRole.AGENT, "z")
            gateway = write_identity(tmp_path / "gateway", authority, CertificateRole.GATEWAY, "a")
            stranger = authority_in(tmp_path / "elsewhere", time.time())
            foreign = write_identity(tmp_path / "foreign", stranger, CertificateRole.AGENT, "a")
            driver, early = here.driver.identity, render_member_name(ID, ATTEMPT - 1, "1", MemberDoor.STREAM)
            member = render_member_name(ID, ATTEMPT, "2", MemberDoor.STREAM)
            for identity, name, words in (
                (other, STREAM, "it must be node 'a'; it is 'z'"),
                (other, LINK, "it must be node 'a'; it is 'z'"),
                (here.donor.identity, STREAM, "it must be node 'a'; it is 'b'"),
                (gateway, STREAM, "only nodes come in; its certificate is of 'covey://gateway/a'"),
                (foreign, STREAM, "its certificate is not of this fleet"),
                (driver, early, f"it asks for '{early}'; here is '{STREAM}'"),
                (driver, member, f"it asks for '{member}'"),
                (driver, render_front_name(ID, ATTEMPT), f"it asks for '{render_front_name(ID, ATTEMPT)}'"),
                (driver, LINK, "its member has a link here already"),
            ):
                assert await asyncio.to_thread(here.is_refused, identity, name), words
                await asyncio.to_thread(wait_for, lambda words=words: words in here.donor.log, words)
            assert here.donor.seen == b""
            assert await asyncio.to_thread(talk, here.ports["b"], b"x") == b"x1 in all"

    run(story)


def test_a_driver_gives_no_byte_to_whoever_listens_in_a_donors_place(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as here:
            driver, thief = here.add("a"), here.add("c")
            taken = await thief.start(Group("1", FORM_SECONDS, admits=(Neighbour("0", "a"),)))
            port = free_port()
            await driver.start(
                Group("0", FORM_SECONDS, dials=(Neighbour("1", "b", ADDRESSES["c"], taken.front_port, port),))
            )
            with suppress(OSError):
                assert await asyncio.to_thread(talk, port, b"leave\n") == b""
            words = "it must be node 'b'; it is 'c'"
            await asyncio.to_thread(wait_for, lambda: words in driver.log, words)
            assert thief.seen.strip(b".") == b"", "its engine writes down what it reads"

    run(story)


def test_garbage_silence_and_crowds_at_a_donors_front_cost_its_driver_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with pool(tmp_path) as here:

            def crowd() -> None:
                with ExitStack() as stack:
                    for _ in range(front.MAX_HANDSHAKES + 1):
                        stack.enter_context(here.dial())
                    babbler = stack.enter_context(here.dial())
                    babbler.sendall(os.urandom(4096))
                    with suppress(OSError):
                        assert babbler.recv(4096)[:1] in (b"", b"\x15")  # an alert at most
                    assert talk(here.ports["b"], b"x") == b"x1 in all"
                assert "may be in their handshake" in here.donor.log
                assert "the handshake failed" in here.donor.log

            await asyncio.to_thread(crowd)

    run(story)


def test_a_swarm_of_connections_and_one_of_slow_bytes_are_outlived(tmp_path: Path) -> None:
    """The slow one sends a handshake that never ends, and the crowd doesn't push out whoever is in."""

    async def story() -> None:
        async with pool(tmp_path) as here:

            def swarm() -> None:
                with ExitStack() as stack:
                    inside = dial_local(stack, here.ports["b"])
                    inside.sendall(b"a")
                    assert inside.recv(1) == b"a"
                    held: deque[socket.socket] = deque()
                    for _ in range(1000):
                        held.append(here.dial())
                        if len(held) > 200:
                            held.popleft().close()
                    for each in held:
                        each.close()
                    inside.sendall(b"b")
                    assert inside.recv(1) == b"b"
                    assert is_dropped(stack.enter_context(here.dial()))
                assert talk(here.ports["b"], b"x") == b"x1 in all"
                assert observe_pss_bytes(here.donor.keeper_pid) < 40_000_000

            await asyncio.to_thread(swarm)

    run(story)


def is_dropped(slow: socket.socket) -> bool:
    """Whether a handshake of one byte at a time is cut off."""
    slow.settimeout(0.2)
    until = time.monotonic() + SECONDS
    with suppress(ConnectionError):
        for letter in itertools.cycle(b"\x16\x03\x01\x40\x00" + bytes(16_384)):
            slow.send(bytes((letter,)))
            with suppress(TimeoutError):
                if not slow.recv(1):
                    return True
            if time.monotonic() > until:
                return False
    return True


def test_more_connections_of_the_engine_than_there_is_room_for_are_closed_and_the_others_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with pool(tmp_path) as here:

            def fill() -> None:
                with ExitStack() as stack:
                    held = [dial_local(stack, here.ports["b"]) for _ in range(MAX_STREAMS)]
                    for peer in held:
                        peer.sendall(b"a")
                    for peer in held:
                        assert peer.recv(1) == b"a"
                    more = dial_local(stack, here.ports["b"])
                    with suppress(ConnectionResetError):
                        assert more.recv(1) == b""
                    held[0].sendall(b"b")
                    assert held[0].recv(1) == b"b"

            await asyncio.to_thread(fill)
            assert f"at most {MAX_STREAMS} are carried at a time" in here.driver.log

    run(story)


def dial_local(stack: ExitStack, port: int) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SECONDS))


def test_a_deaf_donor_stalls_its_driver_and_no_memory_grows(tmp_path: Path) -> None:
    async def story() -> None:
        async with pool(tmp_path) as here:

            def stall() -> int:
                with socket.create_connection(("127.0.0.1", here.ports["b"]), timeout=SECONDS) as peer:
                    peer.sendall(b"deaf\n")
                    peer.settimeout(0.5)
                    sent = 0
                    with suppress(TimeoutError):
                        while sent < 256 * 1024 * 1024:
                            sent += peer.send(bytes(65_536))
                    for node in (here.driver, here.donor):
                        assert observe_pss_bytes(node.keeper_pid) < 40_000_000
                    assert talk(here.ports["b"], b"x") == b"x1 in all"
                    return sent

            assert await asyncio.to_thread(stall) < 64 * 1024 * 1024

    run(story)


@pytest.mark.parametrize("who", ["a", "b"])
def test_a_member_whose_engine_dies_ends_all_and_each_says_whose_end_it_was(tmp_path: Path, who: str) -> None:
    """No agent and no controller has a part in it: the claims are given up before."""

    async def story() -> None:
        async with pool(tmp_path, "b", "c") as here:
            nodes = {node.name: node for node in (here.driver, *here.donors)}
            members = {"a": "0", "b": "1", "c": "2"}
            for node in nodes.values():
                node.keepers.close()
            psutil.Process(here.engines[who].pid).kill()
            for name, node in nodes.items():
                await asyncio.to_thread(wait_for, (node.member / "exit.json").exists, f"member {name} has ended")
            found = {name: await node.keepers.find(ID, "") for name, node in nodes.items()}
            for node in nodes.values():
                await node.end()
            ends = {name: await node.keepers.find(ID, "") for name, node in nodes.items()}
            assert all(found.values())
            for name, end in ends.items():
                assert isinstance(end, EngineExit)
                if name == who:
                    assert (end.ended_by, end.status, end.why) == ("Engine", -signal.SIGKILL, "")
                else:
                    assert end.ended_by == "Neighbour", end
                    words = f"member '{members[who]}' on node '{who}' lost its engine: it ended by SIGKILL"
                    told = "" if "a" in (who, name) else " (heard from member '0' on node 'a')"
                    assert end.why == words + told

    run(story)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_keeper_that_is_gone_or_silent_ends_the_others(tmp_path: Path, number: signal.Signals) -> None:
    async def story() -> None:
        async with pool(tmp_path) as here:
            keeper = psutil.Process(here.donor.keeper_pid)
            keeper.send_signal(number)
            end = await here.driver.wait_exit()
            assert end.ended_by == "Neighbour"
            words = "closed its link without a word" if number is signal.SIGKILL else "said nothing for 5 s"
            assert f"member '1' on node 'b' {words}" in end.why
            if number is signal.SIGSTOP:
                keeper.send_signal(signal.SIGCONT)
                assert "member '0' on node 'a'" in (await here.donor.wait_exit()).why

    run(story)


def test_a_member_that_is_stopped_as_asked_takes_the_others_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with pool(tmp_path) as here:
            await here.driver.keepers.stop(ID, 1)
            assert (await here.driver.wait_exit()).ended_by == "Stop"
            end = await here.donor.wait_exit()
            assert (end.ended_by, end.why) == (
                "Neighbour",
                "member '0' on node 'a' was stopped (Stop): it ended by SIGTERM",
            )

    run(story)


def test_a_removed_node_is_out_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with pool(tmp_path) as here:
            latest = time.time() + 5
            write_private(here.driver.identity / "refused-gateways.json", f'{{"nodes": {{"b": {latest}}}}}')
            end = await here.driver.wait_exit()
            assert end.why == "member '1' on node 'b' is out: node 'b' was removed from the fleet"

    run(story)


@pytest.mark.parametrize("side", ["driver", "donor"])
def test_a_group_that_does_not_form_in_time_says_who_was_missing(tmp_path: Path, side: str) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as here:
            if side == "donor":
                node = here.add("b")
                await node.start(Group("1", 2, admits=(Neighbour("0", "a"),)))
                expected = "member '0' on node 'a' did not come in time"
            else:
                node, missing = here.add("a"), free_port()
                await node.start(Group("0", 2, dials=(Neighbour("1", "b", ADDRESSES["b"], missing, free_port()),)))
                where = f"{ADDRESSES['b']}:{missing} from 127.0.0.1"
                met = "Connection refused: its machine answers and nothing listens there"
                expected = f"member '1' on node 'b' could not be reached in time ({where}: {met}"
            end = await node.wait_exit()
            assert end.ended_by == "Neighbour"
            assert end.why.startswith(expected), end.why

    run(story)


def test_all_who_are_missing_when_the_time_to_meet_is_over_are_named_with_what_was_met(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as here:
            # It takes connections, and answers none: as a machine that hangs.
            with socket.create_server((ADDRESSES["c"], 0)) as silent:
                silent_port, missing = silent.getsockname()[1], free_port()
                dials = (
                    Neighbour("1", "b", ADDRESSES["b"], missing, free_port()),
                    Neighbour("2", "c", ADDRESSES["c"], silent_port, free_port()),
                )
                node = here.add("a")
                await node.start(Group("0", 7, dials=dials))
                end = await node.wait_exit()
            first, second = end.why.split("; ")
            assert first.startswith(f"member '1' on node 'b' could not be reached in time ({ADDRESSES['b']}:{missing}")
            assert second.startswith(
                f"member '2' on node 'c' could not be reached in time ({ADDRESSES['c']}:{silent_port}"
            )
            assert "it took the connection and did not answer within 5 s" in second

    run(story)


@pytest.mark.parametrize("line", [b"x" * (MAX_LINE_BYTES + 1), b"end for \x1b[2J fun\n"])
def test_what_a_driver_says_on_its_link_is_bounded_and_made_plain(tmp_path: Path, line: bytes) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as here:
            driver, donor = here.add("a"), here.add("b")
            engine = await donor.start(donor_group())
            pool = Pool(here, driver, [donor], {"b": engine}, {})

            def say() -> None:
                with pool.connect(driver.identity, LINK) as peer:
                    assert peer.recv(1) == b"\n"
                    peer.sendall(line)
                    with suppress(OSError):
                        while peer.recv(4096):
                            continue

            await asyncio.to_thread(say)
            end = await donor.wait_exit()
            assert end.why in (
                "member '0' on node 'a' said what is no word of a link",
                "member '0' on node 'a' for ?[2J fun",
            )

    run(story)


def test_who_is_no_rank_is_not_ended_by_a_word_that_it_stands_still(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as here:
            driver, donor = here.add("a"), here.add("b")
            engine = await donor.start(donor_group())
            pool = Pool(here, driver, [donor], {"b": engine}, {})

            def say() -> None:
                with pool.connect(driver.identity, LINK) as link:
                    for _ in range(4):
                        link.sendall(b"wait\n")
                        time.sleep(1)
                    link.sendall(b"end of it\n")

            await asyncio.to_thread(say)
            assert (await donor.wait_exit()).why == "member '0' on node 'a' of it"

    run(story)


def test_a_member_of_several_without_an_address_is_refused_in_words(tmp_path: Path) -> None:
    async def story() -> None:
        keepers = ProcessKeepers(tmp_path / "members", 60)
        with pytest.raises(AgentError, match="an address that other nodes reach"):
            await keepers.start(ID, 1, free_port(), Launch(("/bin/true",), {}, (), group=donor_group()))

    run(story)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a link's address without a link is listened on")
def test_a_donor_that_its_driver_could_not_reach_is_refused_in_words(tmp_path: Path) -> None:
    async def story() -> None:
        authority = authority_in(tmp_path / "controller", time.time())
        identity = write_identity(tmp_path / "agent", authority, CertificateRole.AGENT, "b")
        # Of a link, and without the name of one: no socket is bound to it.
        keepers = ProcessKeepers(tmp_path / "members", 60, lambda: FrontSettings("fe80::1", identity))
        with pytest.raises(AgentError, match="the other members must reach this one: no front on 'fe80::1'"):
            await keepers.start(ID, 1, free_port(), Launch(("/bin/sleep", "60"), {}, (), group=donor_group()))

    run(story)


def test_a_tunnels_port_that_another_process_has_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            async with fleet(tmp_path) as here:
                neighbour = Neighbour("1", "b", ADDRESSES["b"], free_port(), port)
                with pytest.raises(AgentError, match=f"'127.0.0.1:{port}': Address already in use"):
                    await here.add("a").start(Group("0", FORM_SECONDS, dials=(neighbour,)))

    run(story)
