"""`store://` sources: what nodes keep and nothing else has, over real sockets, certificates, caches and agents."""

import asyncio
import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_rig import given
from covey_agent.artifacts.adding import add_files, measure_added
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.entries import observe_entries
from covey_agent.artifacts.eviction import choose_evictions
from covey_agent.artifacts.pins import observe_pins
from covey_agent.ports import AgentError
from covey_api.messages import Ask, AskKind, Assignments
from covey_api.model import ResolvedArtifact
from covey_fleet_client.files import write_private
from fleet_rig import eventually
from kit.artifact_rig import ignore
from kit.checkpoints import build_checkpoint
from kit.gguf import Shape, build_model, build_set
from kit.processes import engine_double
from peer_rig import PeerNode, running_peers
from test_blobs_from_peers import FetchBoard, running_agents

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(180)]

SHAPE = Shape(embedding=512, feed_forward=1024, vocabulary=2000, layers=2)
UNKNOWN = "0" * 64


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A GGUF file of 4 MiB and more."""
    made = build_model(SHAPE)
    path = tmp_path / "tiny model.gguf"
    path.write_bytes(made.header + random.Random(7).randbytes(made.file_bytes - len(made.header)))
    return path


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """The first of three files."""
    folder = tmp_path / "split"
    folder.mkdir()
    for number, made in enumerate(build_set(SHAPE, 3), 1):
        made.write(folder / f"m-{number:05}-of-00003.gguf")
    return folder / "m-00001-of-00003.gguf"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-checkpoint"
    folder.mkdir()
    build_checkpoint(SHAPE, files=2).write(folder)
    (folder / "README.md").write_text("no engine loads this")
    return folder


async def put(node: PeerNode, path: Path) -> ResolvedArtifact:
    """As `covey cache add` does there."""
    artifact = add_files(node.cache, path, measure_added(path), ignore)
    await node.report()
    return artifact


@pytest.mark.parametrize("what", ["weights", "shards", "checkpoint"])
async def test_what_was_put_into_a_nodes_cache_is_read_and_fetched_by_the_others(
    tmp_path: Path, what: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(what)
    async with running_peers(tmp_path / "fleet") as fleet:
        store, node, other = [await fleet.add(name) for name in ("store", "n", "o")]
        added = await put(store, path)
        assert added.source == f"store://{added.sha256}#{path.name}"
        artifact, geometry = await node.artifacts.read_header(added.source, "")
        assert artifact == added
        assert not list(node.cache.blobs.iterdir()), "a header is read where it is"
        # The same of the file on the node itself, which has another reader.
        assert geometry == (await node.artifacts.read_header(path.as_uri(), ""))[1]
        found = await node.artifacts.fetch(artifact, ignore)
        assert _contents(found, path) == _contents(path, path)
        # Who fetched it gives it too, and knows it without asking.
        store.server.close()
        await node.report()
        fetched = await other.artifacts.fetch(artifact, ignore)
        assert _contents(fetched, path) == _contents(path, path)
        other.server.close()
        node.server.close()
        assert await other.artifacts.read_header(added.source, added.sha256 or "") == (artifact, geometry)


def _contents(found: Path, like: Path) -> dict[str, str]:
    """Digest of each file that an engine loads, by name."""
    return {
        (like.name if len(measure_added(like)) == 1 else each.name): digest_of(each)
        for each in (measure_added(found) if found.is_dir() or "-of-" in found.name else [found])
    }


async def test_a_header_takes_the_start_of_a_file_and_no_more(tmp_path: Path) -> None:
    made = build_model(SHAPE)
    large = tmp_path / "large.gguf"
    large.write_bytes(made.header + bytes(made.file_bytes - len(made.header)))
    async with running_peers(tmp_path / "fleet") as fleet:
        store, node = [await fleet.add(name) for name in ("store", "n")]
        added = await put(store, large)
        given_bytes: list[int] = []
        # Every piece that leaves passes here.
        wait = store.server.pace.wait
        store.server.pace.wait = lambda count: (given_bytes.append(count), wait(count))[1]
        await node.artifacts.read_header(added.source, "")
        assert sum(given_bytes) <= 1024 * 1024 < large.stat().st_size


async def test_a_digest_that_nobody_has_is_said_so_and_costs_no_turn(tmp_path: Path, weights: Path) -> None:
    source = f"store://{UNKNOWN}#gone.gguf"
    gone = ResolvedArtifact(source=source, name="gone.gguf", size_bytes=10, sha256=UNKNOWN)
    async with running_peers(tmp_path / "fleet") as fleet:
        store, node, other = [await fleet.add(name) for name in ("store", "n", "o")]
        for each in (node, other):
            with pytest.raises(AgentError, match=rf"'{source}' is in the cache of no node of this fleet"):
                await each.artifacts.read_header(source, "")
            # The second one waits for no turn of the first: there is no origin.
            with pytest.raises(AgentError, match=r"'gone\.gguf' of 'store://0+#gone\.gguf' is in the cache of no node"):
                async with asyncio.timeout(10):
                    await each.artifacts.fetch(gone, ignore)
        added = await put(store, weights)
        with pytest.raises(AgentError, match=rf"must have sha256 {UNKNOWN}; it names another"):
            await node.artifacts.read_header(added.source, UNKNOWN)
        with pytest.raises(AgentError, match=r"it names another\. Change the Model"):
            await node.artifacts.fetch(added.model_copy(update={"sha256": UNKNOWN}), ignore)


@dataclass
class Lying:
    """Gives one file for another one's digest."""

    path: Path

    def find_given(self, sha256: str) -> Path | None:
        return self.path


async def test_what_has_another_digest_is_taken_from_nobody(tmp_path: Path, weights: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    shutil.copy(weights, wrong)
    with wrong.open("ab") as file:
        file.truncate(file.tell() - 1)
        file.write(b"x")
    async with running_peers(tmp_path / "fleet") as fleet:
        liar, node = await fleet.add("liar", lambda cache: Lying(wrong)), await fleet.add("n")
        added = await put(liar, weights)
        # A header is its word; the file is not.
        artifact, _ = await node.artifacts.read_header(added.source, "")
        with pytest.raises(AgentError, match="is in the cache of no node of this fleet that can be reached"):
            await node.artifacts.fetch(artifact, ignore)
        assert not list(node.cache.blobs.iterdir())
        store = await fleet.add("store")
        await put(store, weights)
        assert digest_of(await node.artifacts.fetch(artifact, ignore)) == artifact.sha256


class AskingBoard(FetchBoard):
    """Asks one of its nodes too."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.asks: dict[str, tuple[Ask, ...]] = {}

    def _assignments(self, node: str, serial: int) -> Assignments:
        return super()._assignments(node, serial).model_copy(update={"asks": self.asks.get(node, ())})


def run_covey(words: Iterable[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-m", "covey", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def covey(words: Iterable[str], **variables: str) -> str:
    done = run_covey(words, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def refused(words: Iterable[str], **variables: str) -> str:
    done = run_covey(words, **variables)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


async def test_a_command_on_a_node_asks_the_fleet_for_what_its_machine_lacks(
    tmp_path: Path, weights: Path, shards: Path
) -> None:
    state, cache = tmp_path / "state", tmp_path / "cache"
    state.mkdir()
    variables = {"COVEY_CACHE": str(cache), "COVEY_STATE": str(state)}
    async with running_peers(tmp_path / "fleet") as fleet:
        store, node = [await fleet.add(name) for name in ("store", "n")]
        one, three = await put(store, weights), await put(store, shards)
        gone = f"store://{UNKNOWN}#gone.gguf"

        async def ask(run: Callable[..., str], *words: str) -> str:
            return await asyncio.to_thread(run, words, **variables)

        for verb in ("fit", "pull"):
            said = await ask(refused, verb, one.source)
            assert f"'{one.source}' is not in this machine's cache, and no other node can be asked for it: " in said
            assert f"this machine is no node of a fleet by '{state / 'agent'}'" in said
        (state / "agent").symlink_to(node.identity)
        assert "weights" in await ask(covey, "fit", one.source)
        assert not list((cache / "blobs" / "sha256").iterdir()), "a header is read where it is"
        for artifact, path in ((one, weights), (three, shards)):
            said, _, found = (await ask(covey, "pull", artifact.source)).partition("\n")
            assert said.endswith(f"sha256 {artifact.sha256}")
            assert _contents(Path(found), path) == _contents(path, path)
        for verb in ("fit", "pull"):
            assert f"'{gone}' is in the cache of no node of this fleet" in await ask(refused, verb, gone)
        write_private(node.identity / "controller", "https://127.0.0.1:1\n")
        assert "the controller at 'https://127.0.0.1:1' doesn't say which" in await ask(refused, "fit", gone)
        (node.identity / "certificate.pem").write_bytes((store.identity / "certificate.pem").read_bytes())
        assert "is not valid now" in await ask(refused, "fit", gone)


async def test_a_file_put_into_a_running_stores_cache_reaches_the_node_that_needs_it(
    tmp_path: Path, weights: Path
) -> None:
    board = AskingBoard(given(engine_double(tmp_path)))
    board.kept = {"s": ()}
    async with running_agents(tmp_path, board, "sn") as (_, rigs):
        await eventually(lambda: all((rig.cache / "blobs" / "sha256").is_dir() for rig in rigs.values()), 60)
        source = await asyncio.to_thread(covey, ("cache", "add", str(weights), "--cache", str(rigs["s"].cache)))
        digest = digest_of(weights)
        assert source == f"store://{digest}#{weights.name}"

        def ask(number: int) -> None:
            board.asks = {"n": (Ask(id=f"header-{number}", kind=AskKind.HEADER, source=source),)}
            board.publish()

        def answered() -> ResolvedArtifact | None:
            """The store's next report tells that it has it."""
            number = len(board.answers)
            if number and (found := board.answers[-1][1].artifact):
                return found
            if not board.asks or board.asks["n"][0].id != f"header-{number}":
                ask(number)
            return None

        await eventually(lambda: answered() is not None, 60)
        artifact = answered()
        assert artifact is not None
        board.wishes = (rigs["n"].assign(artifact=artifact),)
        board.kept = {"s": (artifact,)}
        board.publish()
        blob = rigs["n"].cache / "blobs" / "sha256" / digest
        await eventually(blob.exists, 60)
        assert digest_of(blob) == digest
    # By hand until a person lets go, whatever room is needed.
    cache = Cache(rigs["s"].cache)
    assert observe_pins(cache.pins).by_digest[digest] == "whoever put it here"
    assert choose_evictions(observe_entries(cache), 1, 1e12) == []
    covey(("cache", "release", source, "--cache", str(cache.folder)))
    assert digest not in observe_pins(cache.pins).by_digest
