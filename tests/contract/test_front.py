"""The keeper's TLS front, over real sockets, with a real authority: who comes in, what is carried, what is refused."""

import asyncio
import os
import socket
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from covey_agent.keeper import front
from covey_agent.keeper.joining import FrontSettings
from covey_agent.keeper.keepers import ProcessKeepers
from covey_agent.ports import EngineProcess, Launch
from covey_api.messages import CertificateRole, render_front_name
from covey_controller.authority import Authority
from covey_fleet_client.files import ensure_private_folder, write_private
from covey_fleet_client.identity import load_identity
from kit import echo_engine
from kit.ports import free_port, own_address
from kit.processes import observe_pss_bytes, processes_of, wait_for
from kit.vaults import authority_in

ID = "00000000000000aa"
OTHER = "00000000000000bb"
ADDRESS = own_address()
SECONDS = 20.0


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(90):
            await story()

    asyncio.run(bounded())


def write_identity(folder: Path, authority: Authority, role: CertificateRole, name: str, issued: float = 0) -> Path:
    """What a join leaves in the folder."""
    ensure_private_folder(folder)
    key = load_identity(folder).key
    certificate = authority.issue_client(key.public_key(), role, name, issued or time.time())
    write_private(folder / "authorities.pem", authority.bundle_pem)
    write_private(folder / "certificate.pem", certificate)
    write_private(folder / "name", name)
    return folder


def client_context(identity: Path | None, authorities: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authorities / "authorities.pem")
    if identity is not None:
        context.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
    return context


@dataclass
class Site:
    """One node with one member whose engine echoes; and a gateway's identity."""

    folder: Path
    authority: Authority
    node: Path
    gateway: Path
    keepers: ProcessKeepers
    process: EngineProcess
    seen: Path

    @property
    def log(self) -> str:
        return (self.folder / "members" / ID / "front.log").read_text()

    @property
    def connections(self) -> int:
        """How many the engine has seen."""
        return self.seen.read_bytes().count(b".") if self.seen.exists() else 0

    def dial(self) -> socket.socket:
        return socket.create_connection((ADDRESS, self.process.front_port), timeout=SECONDS)

    def connect(self, identity: Path | None = None, *, name: str = "", is_anonymous: bool = False) -> ssl.SSLSocket:
        context = client_context(None if is_anonymous else identity or self.gateway, self.node)
        plain = self.dial()
        return context.wrap_socket(plain, server_hostname=name or render_front_name(ID, 3), suppress_ragged_eofs=False)

    def is_refused(self, identity: Path | None = None, *, name: str = "", is_anonymous: bool = False) -> bool:
        """A refusal of a certificate comes after the handshake of TLS 1.3: to the first read."""
        try:
            with self.connect(identity, name=name, is_anonymous=is_anonymous) as peer:
                peer.sendall(b"hello")
                peer.recv(5)
        except OSError:
            return True
        return False


@asynccontextmanager
async def site(folder: Path) -> AsyncGenerator[Site]:
    authority = authority_in(folder / "controller", time.time())
    node = write_identity(folder / "agent", authority, CertificateRole.AGENT, "a")
    gateway = write_identity(folder / "gateway", authority, CertificateRole.GATEWAY, "gw")
    keepers = ProcessKeepers(folder / "members", 60, lambda: FrontSettings(ADDRESS, node))
    port, seen = free_port(), folder / "seen"
    argv = (sys.executable, echo_engine.__file__, "--port", str(port), "--seen", str(seen))
    process = await keepers.start(ID, 3, port, Launch(argv, {"PATH": os.environ["PATH"]}, ()))
    await asyncio.to_thread(wait_for, lambda: is_listening(process.pid), "the engine listens")
    try:
        yield Site(folder, authority, node, gateway, keepers, process, seen)
    finally:
        await keepers.stop(ID, 2)
        await keepers.wait_exit(ID)
        await keepers.release(ID)


def is_listening(pid: int) -> bool:
    """Without dialling it: the engine counts connections."""
    return any(each.status == psutil.CONN_LISTEN for each in psutil.Process(pid).net_connections("tcp"))


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    left = processes_of(tmp_path)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert not left, f"a test must leave no process behind; left {left}"


def test_front_carries_a_gateways_bytes_both_ways_and_both_ends(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            assert here.process.front_port in front.PORTS

            def talk() -> None:
                with closing(Halves(here)) as peer:
                    assert (peer.tls.getpeercert() or {})["subjectAltName"] == (("URI", "covey://agent/a"),)
                    for size in (1, 16_384, 100_000):
                        sent = os.urandom(size)
                        peer.send(sent)
                        assert peer.read(size) == sent
                    last = os.urandom(20_000)
                    peer.send(last, is_last=True)
                    assert peer.read(1_000_000) == last + b"136385 in all"

            await asyncio.to_thread(talk)
            assert here.connections == 1
            assert here.log == ""

    run(story)


class Halves:
    """TLS whose directions end one by one, which Python's sockets don't offer: over memory BIOs."""

    def __init__(self, here: Site) -> None:
        self._plain = here.dial()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = client_context(here.gateway, here.node)
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=render_front_name(ID, 3))
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._exchange()

    def _exchange(self) -> None:
        self._plain.sendall(self._outgoing.read())
        if received := self._plain.recv(65_536):
            self._incoming.write(received)
        else:
            self._incoming.write_eof()

    def send(self, content: bytes, *, is_last: bool = False) -> None:
        self.tls.write(content)
        if is_last:
            with suppress(ssl.SSLWantReadError):
                self.tls.unwrap()
        self._plain.sendall(self._outgoing.read())

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer at the other end's `close_notify`."""
        read = b""
        while len(read) < size:
            try:
                piece = self.tls.read(size - len(read))
            except ssl.SSLWantReadError:
                self._exchange()
            except ssl.SSLZeroReturnError:
                break
            else:
                read += piece
                if not piece:
                    break
        return read

    def close(self) -> None:
        self._plain.close()


def test_front_passes_on_that_the_engine_closed_its_side_and_carries_the_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:

            def talk() -> None:
                with closing(Halves(here)) as peer:
                    peer.send(b"leave\n")
                    assert peer.read(100) == b"bye"
                    peer.send(b"still here")
                    peer.send(b", and again", is_last=True)

            await asyncio.to_thread(talk)
            expected = b".still here, and again!"
            await asyncio.to_thread(wait_for, lambda: here.seen.read_bytes() == expected, "the engine read all")

    run(story)


def test_peers_that_are_no_gateway_of_this_fleet_are_refused_before_the_engine_hears_of_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            stranger = authority_in(tmp_path / "elsewhere", time.time())
            foreign = write_identity(tmp_path / "foreign", stranger, CertificateRole.GATEWAY, "gw")
            agent = write_identity(tmp_path / "other-agent", here.authority, CertificateRole.AGENT, "b")
            aged = write_identity(
                tmp_path / "aged", here.authority, CertificateRole.GATEWAY, "gw", time.time() - 100 * 86_400
            )
            for identity, words in (
                (None, "it shows no certificate"),
                (agent, "only gateways come in; its certificate is of 'covey://agent/b'"),
                (here.node, "only gateways come in; its certificate is of 'covey://agent/a'"),
                (foreign, "its certificate is not of this fleet"),
                (aged, "certificate has expired"),
            ):
                assert await asyncio.to_thread(here.is_refused, identity, is_anonymous=identity is None), words
                await asyncio.to_thread(wait_for, lambda words=words: words in here.log, words)
            assert here.connections == 0

    run(story)


@pytest.mark.parametrize("name", [render_front_name(ID, 2), render_front_name(OTHER, 3), "localhost"])
def test_a_stale_table_never_reaches_another_engine(tmp_path: Path, name: str) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            assert await asyncio.to_thread(here.is_refused, name=name)
            words = f"it asks for '{name}'; here is '{render_front_name(ID, 3)}'"
            await asyncio.to_thread(wait_for, lambda: words in here.log, words)
            assert here.connections == 0

    run(story)


def test_who_says_nothing_is_closed_in_time_and_a_crowd_of_them_keeps_no_gateway_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:

            def crowd() -> None:
                with ExitStack() as stack:
                    silent = [stack.enter_context(here.dial()) for _ in range(front.MAX_HANDSHAKES + 1)]
                    assert not here.is_refused()
                    assert "may be in their handshake" in here.log
                    for each in silent:
                        assert each.recv(1) == b""
                assert "it must show who it is in time" in here.log
                assert not here.is_refused()

            await asyncio.to_thread(crowd)
            assert here.connections == 2

    run(story)


def test_more_connections_than_there_is_room_for_are_refused_and_the_others_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:

            def fill() -> None:
                with ExitStack() as stack:
                    held = [stack.enter_context(here.connect()) for _ in range(front.MAX_CARRIERS)]
                    for peer in held:
                        peer.sendall(b"a")
                    for peer in held:
                        assert peer.recv(1) == b"a"
                    assert here.is_refused()
                    held[0].sendall(b"b")
                    assert held[0].recv(1) == b"b"

            await asyncio.to_thread(fill)
            assert f"at most {front.MAX_CARRIERS} connections" in here.log
            assert here.connections == front.MAX_CARRIERS

    run(story)


@pytest.mark.parametrize("what", [b"deaf\n", b"flood\n"])
def test_a_slow_side_stalls_the_other_and_no_memory_grows(tmp_path: Path, what: bytes) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            keeper = psutil.Process(here.process.pid).ppid()

            def stall() -> int:
                with here.connect() as peer:
                    peer.sendall(what)
                    peer.settimeout(0.5)
                    sent = 0
                    with suppress(TimeoutError, ssl.SSLWantWriteError):
                        while what == b"deaf\n" and sent < 256 * 1024 * 1024:
                            sent += peer.send(bytes(65_536))
                    time.sleep(0.5)
                    assert observe_pss_bytes(keeper) < 40_000_000
                    # Others are carried meanwhile, and so is who asks.
                    assert not here.is_refused()
                    return sent

            assert await asyncio.to_thread(stall) < 64 * 1024 * 1024
            await asyncio.to_thread(wait_for, lambda: open_sockets(here.process.pid) <= 2, "the engine sees the end")

    run(story)


def open_sockets(pid: int) -> int:
    return len(psutil.Process(pid).net_connections("tcp"))


def test_a_peer_that_vanishes_ends_the_engines_connection_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:

            def vanish() -> None:
                peer = here.connect()
                peer.sendall(b"a")
                assert peer.recv(1) == b"a"
                socket.socket(fileno=peer.detach()).close()  # no close_notify

            await asyncio.to_thread(vanish)
            await asyncio.to_thread(wait_for, lambda: open_sockets(here.process.pid) == 1, "only its listener is left")

    run(story)


def test_a_renewed_certificate_is_shown_to_new_connections_while_old_ones_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:

            def renew() -> None:
                with here.connect() as old:
                    before = old.getpeercert(binary_form=True)
                    write_identity(here.node, here.authority, CertificateRole.AGENT, "a")
                    with here.connect() as new:
                        assert new.getpeercert(binary_form=True) != before
                    # A power cut left half a file: what was read before holds.
                    (here.node / "certificate.pem").write_text("-----BEGIN")
                    assert not here.is_refused()
                    assert "the one before is used" in here.log
                    old.sendall(b"on")
                    assert old.recv(2) == b"on"

            await asyncio.to_thread(renew)

    run(story)


def test_a_removed_gateway_is_refused_and_its_open_connections_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            other = write_identity(tmp_path / "other", here.authority, CertificateRole.GATEWAY, "gw2")

            def remove() -> None:
                with here.connect() as peer, here.connect(other) as stays:
                    for each in (peer, stays):
                        each.sendall(b"a")
                        assert each.recv(1) == b"a"
                    latest = time.time() - 86_400 + 5
                    write_private(here.node / "refused-gateways.json", f'{{"gateways": {{"gw": {latest}}}}}')
                    with pytest.raises(OSError, match=r"EOF|reset"):
                        peer.recv(1)
                    assert here.is_refused()
                    stays.sendall(b"b")
                    assert stays.recv(1) == b"b"
                # Joined again, later: its new certificate is good.
                write_identity(here.gateway, here.authority, CertificateRole.GATEWAY, "gw", time.time() + 60)
                assert not here.is_refused()

            await asyncio.to_thread(remove)
            assert "gateway 'gw' was removed from the fleet" in here.log

    run(story)


def test_a_dead_engines_front_is_closed_before_its_port_is_anybody_elses(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            psutil.Process(here.process.pid).kill()
            await here.keepers.wait_exit(ID)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.to_thread(here.connect)

    run(story)


def test_another_agent_finds_the_front_where_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:

            async def adopt(peer: ssl.SSLSocket) -> None:
                here.keepers.close()
                found = await here.keepers.find(ID, "")
                assert found == here.process
                await asyncio.to_thread(peer.sendall, b"a")
                assert await asyncio.to_thread(peer.recv, 1) == b"a"

            with await asyncio.to_thread(here.connect) as peer:
                await adopt(peer)

    run(story)


def test_a_full_range_costs_the_front_and_not_the_engine(tmp_path: Path) -> None:
    async def story() -> None:
        taken: list[socket.socket] = []
        for port in front.PORTS:
            with suppress(OSError):
                taken.append(socket.create_server((ADDRESS, port)))
        try:
            async with site(tmp_path) as here:
                assert here.process.front_port == 0
                assert "all ports from 52500 to 52599 are in use" in here.log
        finally:
            for each in taken:
                each.close()

    run(story)


@pytest.mark.parametrize("address", ["a.host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_this_machines_own_is_listened_for_everywhere(tmp_path: Path, address: str) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            keepers = ProcessKeepers(tmp_path / "members", 60, lambda: FrontSettings(address, here.node))
            port = free_port()
            argv = (sys.executable, echo_engine.__file__, "--port", str(port), "--seen", str(tmp_path / "seen2"))
            process = await keepers.start(OTHER, 1, port, Launch(argv, {"PATH": os.environ["PATH"]}, ()))
            for host in ("127.0.0.1", "127.0.0.3"):
                socket.create_connection((host, process.front_port), timeout=SECONDS).close()
            await keepers.stop(OTHER, 2)
            await keepers.wait_exit(OTHER)
            await keepers.release(OTHER)

    run(story)
