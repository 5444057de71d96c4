"""Folders of this machine as artifacts: what counts, what their digest is, what is refused."""

import asyncio
import hashlib
import subprocess
from pathlib import Path

import pytest
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.folder import LocalFolders, observe_folder
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.local import LocalFiles
from covey_agent.ports import AgentError, Transfer
from covey_api.model import Geometry, ResolvedArtifact
from covey_api.reasons import FailureCause
from kit.artifact_rig import rig_on
from kit.checkpoints import build_checkpoint
from kit.gguf import Shape


def ignore(transfer: Transfer) -> None:
    assert transfer.done_bytes == transfer.total_bytes


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    build_checkpoint(Shape()).write(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("not loaded")
    (folder / "modeling.py").write_text("not loaded either")
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> LocalFolders:
    return LocalFolders(LocalFiles(Cache(tmp_path / "cache")))


def read(folders: LocalFolders, path: Path, sha256: str = "") -> tuple[ResolvedArtifact, Geometry]:
    artifact, geometry = asyncio.run(folders.read_header(f"file://{path}", str(path), sha256))
    assert isinstance(geometry, Geometry)
    return artifact, geometry


def test_a_folder_is_the_files_that_an_engine_loads_and_their_list_is_its_digest(
    folders: LocalFolders, model: Path
) -> None:
    artifact, geometry = read(folders, model)
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert [file.name for file in artifact.files] == names
    assert artifact.size_bytes == sum((model / name).stat().st_size for name in names)
    printed = subprocess.run(["sha256sum", *names], cwd=model, capture_output=True, check=True).stdout
    assert artifact.digest == hashlib.sha256(printed).hexdigest()
    assert geometry.weights_bytes > 0


def test_it_is_fetched_where_it_is_and_then_counts_as_there(folders: LocalFolders, model: Path) -> None:
    artifact, _ = read(folders, model)
    assert folders.digests() == frozenset()
    assert asyncio.run(folders.fetch(artifact, str(model), ignore)) == model
    assert folders.digests() == {artifact.digest}


def test_one_file_more_or_changed_is_another_folder(folders: LocalFolders, model: Path) -> None:
    artifact, _ = read(folders, model)
    (model / "README.md").write_text("changed, and nobody minds")
    asyncio.run(folders.fetch(artifact, str(model), ignore))
    (model / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(AgentError, match="over its list of files") as raised:
        asyncio.run(folders.fetch(artifact, str(model), ignore))
    assert raised.value.cause is FailureCause.ARTIFACT_CORRUPT


def test_a_demanded_digest_is_held_against_the_folder(folders: LocalFolders, model: Path) -> None:
    artifact, _ = read(folders, model)
    assert read(folders, model, artifact.digest)[0] == artifact
    with pytest.raises(AgentError, match="must have sha256 0000"):
        read(folders, model, "0" * 64)


def test_a_folder_without_a_model_is_refused_in_words(folders: LocalFolders, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(AgentError, match="must hold 1 to 256 files"):
        observe_folder(str(empty))
    (empty / "mine.gguf").write_bytes(b"GGUF")
    with pytest.raises(AgentError, match=r"one file: name it, such as '.*/empty/mine\.gguf'"):
        observe_folder(str(empty))
    (empty / "tokenizer.json").write_text("{}")
    with pytest.raises(AgentError, match=r"config\.json"):
        read(folders, empty)
    with pytest.raises(AgentError, match="No such file"):
        observe_folder(str(tmp_path / "away"))


@pytest.mark.anyio
async def test_files_that_are_not_the_digests_own_are_not_fetched(tmp_path: Path, model: Path) -> None:
    """The list came from another node's answer; each file of it would verify."""
    async with rig_on(tmp_path / "cache", IndexSettings(url="http://127.0.0.1:1")) as rig:
        artifact, _ = await rig.artifacts.read_header(f"file://{model}", "")
        for file in artifact.files:
            rig.cache.add_blob(file.sha256, (model / file.name).read_bytes(), file.name)
        of_hub = artifact.model_copy(update={"source": "hf://org/model@main", "revision": "a" * 40})
        lie = of_hub.model_copy(update={"sha256": "d" * 64})
        with pytest.raises(AgentError, match="over its list of files") as raised:
            await rig.artifacts.fetch(lie, lambda _: None)
        assert raised.value.cause is FailureCause.ARTIFACT_CORRUPT
        assert (await rig.artifacts.fetch(of_hub, lambda _: None)).is_dir()
