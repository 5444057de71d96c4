"""The real index, the real model and the real engine, fetched once into the shared cache."""

import asyncio
import hashlib
import io
import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.hub import HubSettings
from covey_agent.artifacts.index import IndexSettings, observe_index_settings
from covey_agent.artifacts.node import NodeArtifacts
from covey_agent.artifacts.pages import list_files
from covey_agent.artifacts.web import Patience, Web
from covey_agent.engines import native
from covey_agent.engines.environments import Environment, PinnedFile, Recipe
from covey_agent.engines.features import FIT, WATCHED
from covey_agent.engines.provision import NodeEngines, open_engines
from covey_agent.engines.recipes import LLAMA_SERVER, LLAMA_SERVERS, is_llama_server_fit, mlx_recipe
from covey_agent.ports import AgentError, EngineProgram, Transfer
from covey_api.engines import Compute, EngineName, LaneState
from covey_api.node import EngineOverride, NodeSpec, Provisioning
from covey_api.reasons import FailureCause
from kit.builders import SOURCE
from kit.cache import shared_cache
from kit.processes import wait_for
from kit.real_engines import mlx_packages

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

MODEL_BYTES = 98_362_432
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL = LLAMA_SERVER.files[0]
QUICK = Patience(connect_seconds=2, tries=2, backoff_seconds=0.05)
# Nothing listens there: whoever needs the network with it fails.
NOWHERE = IndexSettings(url="http://127.0.0.1:9/simple")
needs_mlx = pytest.mark.skipif(mlx_recipe() is None, reason="there are no wheels of MLX for this machine and Python")
needs_managed = pytest.mark.skipif(not is_llama_server_fit(), reason="the managed engine doesn't run here")


def ignore(transfer: Transfer) -> None:
    assert 0 <= transfer.done_bytes <= transfer.total_bytes


@asynccontextmanager
async def web_on(settings: IndexSettings) -> AsyncGenerator[Web]:
    web = Web(settings, QUICK if settings is NOWHERE else Patience())
    try:
        yield web
    finally:
        await web.close()


def real_index() -> IndexSettings:
    return observe_index_settings(os.environ, Path.home())


def engines_on(web: Web, cache: Cache, **environment: str) -> NodeEngines:
    return open_engines(web, cache, Downloader(web, cache), {"PATH": "/nonexistent"} | environment)


def ensure(folder: Path, settings: IndexSettings, spec: NodeSpec | None = None, **environment: str) -> EngineProgram:
    async def whole() -> EngineProgram:
        async with web_on(settings) as web:
            engines = engines_on(web, Cache(folder), **environment)
            return await engines.ensure(EngineName.LLAMA_SERVER, spec or NodeSpec(), ignore)

    return asyncio.run(whole())


def lanes(folder: Path, spec: NodeSpec | None = None, **environment: str) -> list[tuple[Compute, LaneState]]:
    async def whole() -> list[tuple[Compute, LaneState]]:
        async with web_on(NOWHERE) as web:
            engines = engines_on(web, Cache(folder), **environment)
            return [(lane.compute, lane.state) for lane in await engines.observe_lanes(spec or NodeSpec())]

    return asyncio.run(whole())


def spec_of(**override: object) -> NodeSpec:
    return NodeSpec(engines=(EngineOverride.model_validate({"engine": EngineName.LLAMA_SERVER} | override),))


def test_the_real_header_is_read_in_a_few_megabytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def whole() -> None:
        async with web_on(real_index()) as web:
            cache = Cache(tmp_path)
            artifacts = NodeArtifacts(web, cache, Downloader(web, cache), HubSettings())
            artifact, geometry = await artifacts.read_header(SOURCE, MODEL_SHA256)
            assert artifact.size_bytes == MODEL_BYTES
            assert artifact.digest == MODEL_SHA256
            assert (geometry.architecture, geometry.layer_count, geometry.vocabulary_size) == ("llama", 30, 49_152)
            assert geometry.kv_head_counts == (3,) * 30

    with caplog.at_level(logging.INFO):
        asyncio.run(whole())
    (received,) = re.findall(r"in (\d+) bytes of the wheel", caplog.text)
    assert int(received) < 8_000_000


def test_the_real_model_is_fetched_once_and_verified() -> None:
    async def whole() -> Path:
        async with web_on(real_index()) as web:
            cache = Cache(shared_cache())
            artifacts = NodeArtifacts(web, cache, Downloader(web, cache), HubSettings())
            artifact, _ = await artifacts.read_header(SOURCE, "")
            path = await artifacts.fetch(artifact, ignore)
            assert {artifact.digest, MODEL_SHA256} <= set(artifacts.digests())
            return path

    path = asyncio.run(whole())
    assert path.name == MODEL_SHA256
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == MODEL_SHA256


@pytest.fixture(scope="module")
def engine() -> EngineProgram:
    return ensure(shared_cache(), real_index())


@pytest.fixture
def offline(engine: EngineProgram, tmp_path: Path) -> Path:
    """A cache that has the engine's wheel and nothing else."""
    blobs = tmp_path / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    wheel = shared_cache() / "blobs" / "sha256" / LLAMA_SERVER.digest
    try:
        (blobs / LLAMA_SERVER.digest).hardlink_to(wheel)
    except OSError:
        shutil.copyfile(wheel, blobs / LLAMA_SERVER.digest)
    return tmp_path


@needs_managed
def test_the_managed_engine_answers(engine: EngineProgram) -> None:
    assert engine.version == LLAMA_SERVER.version
    assert engine.digest == LLAMA_SERVER.digest
    done = subprocess.run(
        [engine.path, "--version"], env=engine.environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "version:" in done.stdout + done.stderr
    assert lanes(shared_cache()) == [(Compute.CPU, LaneState.INSTALLED)] or len(lanes(shared_cache())) > 1


@needs_managed
def test_the_engine_is_built_offline_from_its_wheel_by_one_of_many_askers(offline: Path) -> None:
    assert lanes(offline) == [(Compute.CPU, LaneState.INSTALLABLE)]

    async def whole() -> None:
        async with web_on(NOWHERE) as web:
            # Two agents on one cache, each asked twice.
            agents = [engines_on(web, Cache(offline)) for _ in range(2)]
            programs = await asyncio.gather(
                *(agent.ensure(EngineName.LLAMA_SERVER, NodeSpec(), ignore) for agent in agents * 2)
            )
            assert len({program.path for program in programs}) == 1
            assert {program.path for program in programs} == {
                offline / "envs" / LLAMA_SERVER.digest / "packages" / LLAMA_SERVER.program
            }

    asyncio.run(whole())
    folder = offline / "envs" / LLAMA_SERVER.digest
    assert {path.name for path in folder.iterdir()} == {"packages", "complete"}


@needs_managed
def test_where_an_accelerator_is_seen_the_engine_is_there_before_lanes_are_told(offline: Path, tmp_path: Path) -> None:
    """Only the engine can list it: else the processor's lane would be all that the first replica is offered."""
    tools = tmp_path / "tools"
    tools.mkdir()
    Path(script(tools, "echo 'GPU-1, NVIDIA H200, 143771'")).rename(tools / "nvidia-smi")

    async def prepared(folder: Path, spec: NodeSpec | None, **environment: str) -> tuple[bool, list[LaneState]]:
        async with web_on(NOWHERE) as web:
            engines = engines_on(web, Cache(folder), **environment)
            is_prepared = await engines.prepare(spec, has_members=False)
            assert await engines.prepare(spec, has_members=False) is is_prepared
            return is_prepared, [lane.state for lane in await engines.observe_lanes(spec or NodeSpec())][-1:]

    seen = {"PATH": str(tools)}
    off = spec_of(provisioning=Provisioning.OFF)
    assert asyncio.run(prepared(offline, NodeSpec())) == (True, [LaneState.INSTALLABLE]), "no accelerator"
    assert asyncio.run(prepared(offline, None, **seen)) == (False, [LaneState.INSTALLABLE]), "nobody has wished it yet"
    assert asyncio.run(prepared(offline, off, **seen)) == (True, [])
    assert asyncio.run(prepared(tmp_path / "empty", NodeSpec(), **seen)) == (False, [LaneState.INSTALLABLE]), (
        "no index yet"
    )
    assert asyncio.run(prepared(offline, NodeSpec(), **seen)) == (True, [LaneState.INSTALLED])


@needs_managed
def test_a_half_made_environment_is_built_again(offline: Path) -> None:
    program = ensure(offline, NOWHERE)
    (offline / "envs" / LLAMA_SERVER.digest / "complete").unlink()
    program.path.write_bytes(b"half")
    assert lanes(offline) == [(Compute.CPU, LaneState.INSTALLABLE)]
    assert ensure(offline, NOWHERE).path.stat().st_size > 4


@needs_managed
def test_a_wheel_of_another_content_is_never_installed(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    with (blobs / LLAMA_SERVER.digest).open("wb") as file:
        file.truncate(WHEEL.size_bytes)
    # It is found out by its digest, so it is fetched anew, which fails here.
    with pytest.raises(AgentError, match="can't be reached") as raised:
        ensure(tmp_path, NOWHERE)
    assert raised.value.cause is FailureCause.ARTIFACT_UNAVAILABLE
    assert not (blobs / LLAMA_SERVER.digest).exists()
    assert not (tmp_path / "envs" / LLAMA_SERVER.digest / "complete").exists()


@needs_managed
def test_without_network_and_wheel_the_failure_is_the_indexs(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="can't be reached") as raised:
        ensure(tmp_path, NOWHERE)
    assert raised.value.cause is FailureCause.ARTIFACT_UNAVAILABLE


@needs_managed
def test_a_missing_library_is_named_with_its_package(offline: Path) -> None:
    program = ensure(offline, NOWHERE)
    renamed = 0
    for library in program.path.parent.glob("*.so*"):
        content = library.read_bytes()
        if b"libgomp.so.1\0" in content:
            library.write_bytes(content.replace(b"libgomp.so.1\0", b"libgomp.so.9\0"))
            renamed += 1
    assert renamed
    with pytest.raises(AgentError, match=r"needs the shared library 'libgomp\.so\.9'") as raised:
        ensure(offline, NOWHERE)
    assert raised.value.cause is FailureCause.MISSING_LIBRARY


@needs_managed
def test_what_the_build_can_do_is_read_from_its_own_help(engine: EngineProgram) -> None:
    assert engine.features == WATCHED | {FIT}


def test_engines_in_python_are_offered_where_the_node_names_them(tmp_path: Path) -> None:
    async def offered(spec: NodeSpec) -> set[tuple[EngineName, LaneState]]:
        async with web_on(NOWHERE) as web:
            lanes = await engines_on(web, Cache(tmp_path)).observe_lanes(spec)
            return {(lane.engine, lane.state) for lane in lanes if lane.engine is EngineName.MLX}

    recipe = mlx_recipe()
    if recipe is None or sys.platform == "darwin":
        pytest.skip("MLX is at home on macOS, and has wheels for few machines")
    named = NodeSpec(engines=(EngineOverride(engine=EngineName.MLX),))
    assert asyncio.run(offered(NodeSpec())) == set()
    assert asyncio.run(offered(named)) == {(EngineName.MLX, LaneState.INSTALLABLE)}


@needs_mlx
def test_an_environment_of_many_wheels_is_built_offline_from_blobs(tmp_path: Path) -> None:
    """As a node does whose peer has them: no index can be reached."""
    mlx_packages()
    recipe = mlx_recipe()
    assert recipe is not None
    (tmp_path / "blobs" / "sha256").mkdir(parents=True)
    for file in recipe.files:
        place = Path("blobs") / "sha256" / file.sha256
        (tmp_path / place).hardlink_to(shared_cache() / place)

    async def whole() -> EngineProgram:
        async with web_on(NOWHERE) as web:
            spec = NodeSpec(engines=(EngineOverride(engine=EngineName.MLX),))
            return await engines_on(web, Cache(tmp_path)).ensure(EngineName.MLX, spec, ignore)

    program = asyncio.run(whole())
    assert program.digest == recipe.digest
    assert program.command[1:3] == ("-I", "-S")
    folder = tmp_path / "envs" / recipe.digest
    assert {path.name for path in folder.iterdir()} == {"packages", "complete"}


def test_a_source_is_built_on_the_node_with_locked_tools_and_no_index(tmp_path: Path) -> None:
    """As llama-cpp-python is, which takes a compiler some minutes: here a module of one line."""
    cache = Cache(tmp_path)
    backend = asyncio.run(fetch_backend(cache))
    project = (
        '[build-system]\nrequires = ["flit_core>=3.2"]\nbuild-backend = "flit_core.buildapi"\n'
        '[project]\nname = "tiny"\nversion = "1.0"\ndescription = "x"\n'
    )
    archive = tmp_path / "tiny-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in {"pyproject.toml": project, "tiny.py": "WORD = 'built'\n"}.items():
            entry = tarfile.TarInfo(f"tiny-1.0/{name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    content = archive.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    (cache.blobs / sha256).write_bytes(content)
    source = PinnedFile("tiny", "1.0", archive.name, sha256, len(content))
    recipe = Recipe("Tiny", "1.0", (source,), 1_000_000, "tiny.py", "Nothing helps.", (backend,), python="here")

    async def build(recipe: Recipe) -> Path:
        async with web_on(NOWHERE) as web:
            return await Environment(recipe, web, cache, Downloader(web, cache)).ensure(ignore)

    assert (asyncio.run(build(recipe)) / "tiny.py").read_text() == "WORD = 'built'\n"
    with pytest.raises(AgentError, match="uv ended with") as raised:
        asyncio.run(build(replace(recipe, tools=())))
    assert raised.value.cause is FailureCause.NO_USABLE_ENGINE
    assert "Nothing helps." in raised.value.message


async def fetch_backend(cache: Cache) -> PinnedFile:
    """A build backend without requirements of its own."""
    async with web_on(real_index()) as web:
        listed = await list_files(web, "flit-core")
        found = next(file for file in listed if file.filename == "flit_core-3.12.0-py3-none-any.whl")
        pinned = PinnedFile("flit-core", "3.12.0", found.filename, found.sha256, found.size_bytes)
        remote = Remote(found.url, found.filename, found.sha256, found.size_bytes)
        await Downloader(web, cache).download(remote, ignore)
        return pinned


def test_provisioning_can_be_turned_off_in_two_ways(tmp_path: Path) -> None:
    off = spec_of(provisioning=Provisioning.OFF)
    for spec, environment in ((off, {}), (NodeSpec(), {"COVEY_NO_ENGINE_PROVISIONING": "1"})):
        assert lanes(tmp_path, spec, **environment) == []
        with pytest.raises(AgentError, match=r"provisioning is off|brew install") as raised:
            ensure(tmp_path, NOWHERE, spec, **environment)
        assert raised.value.cause is FailureCause.NO_USABLE_ENGINE


def test_a_disabled_engine_offers_nothing(tmp_path: Path) -> None:
    assert lanes(tmp_path, spec_of(disabled=True)) == []
    with pytest.raises(AgentError, match="is disabled"):
        ensure(tmp_path, NOWHERE, spec_of(disabled=True))


@needs_managed
def test_a_given_path_and_one_on_path_are_used(engine: EngineProgram, tmp_path: Path) -> None:
    given = ensure(tmp_path, NOWHERE, spec_of(path=str(engine.path)))
    assert (given.path, given.digest) == (engine.path, "")
    assert given.version
    found = ensure(tmp_path, NOWHERE, spec_of(provisioning=Provisioning.OFF), PATH=str(engine.path.parent))
    assert found.path == engine.path
    (state,) = {state for _, state in lanes(tmp_path, spec_of(path=str(engine.path)))}
    assert state is LaneState.INSTALLED


@pytest.mark.parametrize("name", ["missing", ".", "text"])
def test_a_given_path_that_is_no_program_is_a_loud_error(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / name)
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o644)
    with pytest.raises(AgentError, match=re.escape(f"got '{path}'")) as raised:
        ensure(tmp_path, NOWHERE, spec_of(path=path))
    assert raised.value.cause is FailureCause.NO_USABLE_ENGINE
    assert lanes(tmp_path, spec_of(path=path)) == []
    assert path in caplog.text


def script(folder: Path, body: str) -> str:
    path = folder / "llama-server"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


MISSES = "echo 'error while loading shared libraries: libgomp.so.1: cannot open shared object file' >&2; exit 127"


def test_a_program_that_cannot_start_is_told_before_anybody_wants_it_until_it_can(tmp_path: Path) -> None:
    spec = spec_of(path=script(tmp_path, MISSES))

    async def whole() -> None:
        async with web_on(NOWHERE) as web:
            engines = engines_on(web, Cache(tmp_path))
            offered = await engines.observe_lanes(spec)
            (told,) = engines.observe_unusable(spec)
            assert (told.engine, told.cause) == (EngineName.LLAMA_SERVER, FailureCause.MISSING_LIBRARY)
            assert "apt-get install libgomp1" in told.message
            assert offered, "what runs there by it would count as lost"
            script(tmp_path, "echo 'version: 1'")
            await engines.observe_lanes(spec)
            assert engines.observe_unusable(spec) == ()

    asyncio.run(whole())


def test_an_engine_that_could_not_be_had_is_told_until_the_nodes_spec_is_another(tmp_path: Path) -> None:
    """A Python without the library: it is offered, and found out when it is wanted."""
    override = EngineOverride(engine=EngineName.MLX, path=sys.executable)
    spec = NodeSpec(engines=(override.model_copy(update={"path": script(tmp_path, "echo no mlx_lm here; exit 3")}),))

    async def whole() -> None:
        async with web_on(NOWHERE) as web:
            engines = engines_on(web, Cache(tmp_path), COVEY_NO_ENGINE_PROVISIONING="1")
            await engines.observe_lanes(spec)
            assert [each.engine for each in engines.observe_unusable(spec)] == [], "nobody has tried it"
            with pytest.raises(AgentError):
                await engines.ensure(EngineName.MLX, spec, ignore)
            (told,) = engines.observe_unusable(spec)
            assert (told.engine, told.cause) == (EngineName.MLX, FailureCause.NO_USABLE_ENGINE)
            assert "no mlx_lm here" in told.message
            script(tmp_path, "echo 'version: 1'")
            await engines.ensure(EngineName.MLX, spec, ignore)
            assert engines.observe_unusable(spec) == ()

    asyncio.run(whole())


def test_a_machine_without_any_engine_says_so_and_one_that_has_another_doesnt_miss_it(tmp_path: Path) -> None:
    off = spec_of(provisioning=Provisioning.OFF)
    other = NodeSpec(engines=(EngineOverride(engine=EngineName.MLX, path=script(tmp_path, "echo 'version: 1'")),))

    async def told(spec: NodeSpec) -> list[tuple[EngineName, FailureCause]]:
        async with web_on(NOWHERE) as web:
            engines = engines_on(web, Cache(tmp_path), COVEY_NO_ENGINE_PROVISIONING="1")
            await engines.observe_lanes(spec)
            return [(each.engine, each.cause) for each in engines.observe_unusable(spec)]

    missing = [(EngineName.LLAMA_SERVER, FailureCause.NO_USABLE_ENGINE)]
    assert asyncio.run(told(off)) == missing, "the Node's spec names it"
    assert asyncio.run(told(NodeSpec())) == missing, "there is no other"
    assert asyncio.run(told(spec_of(disabled=True))) == []
    assert asyncio.run(told(other)) == []


@needs_managed
def test_two_versions_are_on_one_node_and_each_is_what_it_says() -> None:
    async def whole() -> list[EngineProgram]:
        async with web_on(real_index()) as web:
            engines = engines_on(web, Cache(shared_cache()))
            (lane,) = await engines.observe_lanes(NodeSpec())
            assert lane.versions == tuple(recipe.version for recipe in LLAMA_SERVERS)
            ensured = [
                await engines.ensure(EngineName.LLAMA_SERVER, NodeSpec(), ignore, version)
                for version in (*lane.versions, None)
            ]
            with pytest.raises(
                AgentError, match=r"can't install version '9\.9' .*; it can install 0\.10434\.0, 0\.10092\.0"
            ):
                await engines.ensure(EngineName.LLAMA_SERVER, NodeSpec(), ignore, "9.9")
            assert engines.observe_unusable(NodeSpec()) == (), "a wrong pin is no fault of the engine"
            return ensured

    newest, older, chosen = asyncio.run(whole())
    assert newest == chosen
    assert [newest.version, older.version] == [recipe.version for recipe in LLAMA_SERVERS]
    assert newest.path != older.path
    built = [
        subprocess.run([each.path, "--version"], env=each.environment, capture_output=True, text=True, timeout=60)
        for each in (newest, older)
    ]
    assert len({done.stderr + done.stdout for done in built}) == 2, "two builds"


@needs_managed
def test_a_given_program_is_used_whatever_is_pinned(tmp_path: Path) -> None:
    async def whole() -> EngineProgram:
        async with web_on(NOWHERE) as web:
            spec = spec_of(path=script(tmp_path, "echo 'version: 7'"))
            return await engines_on(web, Cache(tmp_path)).ensure(EngineName.LLAMA_SERVER, spec, ignore, "0.10092.0")

    assert asyncio.run(whole()).version == "7"


def test_a_program_that_fails_says_with_what(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="it ended with 3: no such model"):
        ensure(tmp_path, NOWHERE, spec_of(path=script(tmp_path, "echo no such model; exit 3")))


def test_a_probe_that_hangs_is_given_up_and_its_processes_end(tmp_path: Path) -> None:
    marker = 7_400_000 + os.getpid()
    path = script(tmp_path, f"sleep {marker} & sleep {marker}")
    assert lanes(tmp_path, spec_of(path=path)) == [(Compute.CPU, LaneState.INSTALLED)]

    def is_there() -> bool:
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        return f"sleep {marker}" in listed

    wait_for(lambda: not is_there(), "its processes end")


def test_listed_devices_become_lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_PROBE_SECONDS", 30.0)
    free = tmp_path / "free"
    free.write_text("23980")
    path = script(tmp_path, f'echo "version: 9 (x)"; echo "  Vulkan0: AMD Radeon (24560 MiB, $(cat {free}) MiB free)"')

    async def whole() -> None:
        async with web_on(NOWHERE) as web:
            engines = engines_on(web, Cache(tmp_path / "cache"))
            found = await engines.observe_lanes(spec_of(path=path))
            assert [(lane.compute, lane.pool, lane.version) for lane in found] == [
                (Compute.VULKAN, "Vulkan0", "9 (x)"),
                (Compute.CPU, "Host", "9 (x)"),
            ]
            assert [device.total_bytes for device in engines.devices] == [24560 * 2**20]
            free.write_text("80")
            await engines.observe_lanes(spec_of(path=path))
            assert engines.devices[0].available_bytes == 23980 * 2**20, "a list is kept for half a minute"
            await engines.refresh_devices()
            assert engines.devices[0].available_bytes == 80 * 2**20
            script(tmp_path, "sleep 60")
            monkeypatch.setattr(native, "_PROBE_SECONDS", 0.5)
            await engines.refresh_devices()
            assert engines.devices[0].available_bytes == 80 * 2**20, "what hangs now doesn't take the lane away"

    asyncio.run(whole())


def test_the_pins_program_is_what_the_index_publishes() -> None:
    async def whole() -> None:
        async with web_on(real_index()) as web:
            (file,) = [file for file in await list_files(web, WHEEL.project) if file.filename == WHEEL.filename]
        assert (file.sha256, file.size_bytes) == (LLAMA_SERVER.digest, WHEEL.size_bytes)

    asyncio.run(whole())
