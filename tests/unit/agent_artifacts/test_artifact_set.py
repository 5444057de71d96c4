"""Models over several GGUF files of this machine: one geometry, one digest, and each way in which a set is no whole."""

import asyncio
import hashlib
from pathlib import Path

import pytest
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.local import LocalFiles
from covey_agent.artifacts.local_set import LocalSets, is_of_set
from covey_agent.ports import AgentError, Transfer
from covey_api.model import Geometry, ResolvedArtifact
from covey_api.reasons import FailureCause
from covey_planner.geometry.gguf import parse_gguf_geometry
from kit.gguf import Shape, build_model, build_set

SHAPE = Shape(layers=6)
NAMES = [f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The first of three files."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name, file in zip(NAMES, build_set(SHAPE, 3), strict=True):
        file.write(folder / name)
    return folder / NAMES[0]


@pytest.fixture
def sets(tmp_path: Path) -> LocalSets:
    return LocalSets(LocalFiles(Cache(tmp_path / "cache")))


def read(sets: LocalSets, path: Path, sha256: str = "") -> tuple[ResolvedArtifact, Geometry]:
    artifact, geometry = asyncio.run(sets.read_header(f"file://{path}", str(path), sha256))
    assert isinstance(geometry, Geometry)
    return artifact, geometry


def refusal(sets: LocalSets, path: Path, sha256: str = "") -> AgentError:
    with pytest.raises(AgentError) as refused:
        read(sets, path, sha256)
    return refused.value


def digest_of_list(folder: Path) -> str:
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in NAMES]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def test_a_set_is_one_artifact_with_the_geometry_of_the_whole(sets: LocalSets, model: Path) -> None:
    whole = build_model(SHAPE)
    artifact, geometry = read(sets, model)
    assert geometry == parse_gguf_geometry(whole.header, whole.file_bytes)
    assert (artifact.name, [file.name for file in artifact.files]) == (NAMES[0], NAMES)
    assert artifact.size_bytes == sum((model.parent / name).stat().st_size for name in NAMES)
    assert artifact.digest == digest_of_list(model.parent), "what `sha256sum *` prints of them"


def test_whichever_file_is_named_the_engine_gets_the_first(sets: LocalSets, model: Path) -> None:
    third = model.with_name(NAMES[2])
    artifact, _ = read(sets, third, digest_of_list(model.parent))
    told: list[Transfer] = []
    assert sets.digests() == frozenset()
    assert asyncio.run(sets.fetch(artifact, str(third), told.append)) == model
    assert [each.done_bytes for each in told] == [artifact.size_bytes]
    assert sets.digests() == {artifact.digest}


def test_missing_files_are_told_by_their_names(sets: LocalSets, model: Path) -> None:
    artifact, _ = read(sets, model)
    model.with_name(NAMES[1]).unlink()
    expected = f"must have all 3 files of the model on this node; it lacks '{NAMES[1]}'."
    assert refusal(sets, model).cause is FailureCause.ARTIFACT_UNAVAILABLE
    assert expected in refusal(sets, model).message
    with pytest.raises(AgentError, match="it lacks 'm-00002-of-00003"):
        asyncio.run(sets.fetch(artifact, str(model), lambda _: None))


def test_many_missing_files_are_counted(sets: LocalSets, tmp_path: Path) -> None:
    alone = build_set(SHAPE, 3)[0].write(tmp_path / "m-00001-of-00009.gguf")
    assert "it lacks 'm-00002-of-00009.gguf', 'm-00003-of-00009.gguf', 'm-00004-of-00009.gguf' and 5 more." in str(
        refusal(sets, alone).message
    )
    assert "must be one of at most 256 files" in refusal(sets, tmp_path / "m-00001-of-00300.gguf").message


def test_files_of_another_model_are_refused_by_what_they_say_of_themselves(sets: LocalSets, model: Path) -> None:
    build_set(Shape(layers=6), 2)[1].write(model.with_name(NAMES[1]))
    found = refusal(sets, model)
    assert found.cause is FailureCause.ARTIFACT_CORRUPT
    assert "file 2 must say `split.no` 1 and `split.count` 3; got `split.no` 1 and `split.count` 2" in found.message


def test_a_declared_digest_is_not_computed_while_a_header_is_waited_for(tmp_path: Path, model: Path) -> None:
    cache = Cache(tmp_path / "cache")
    sets = LocalSets(LocalFiles(cache))
    digest = digest_of_list(model.parent)
    artifact, _ = read(sets, model, digest)
    assert (artifact.name, artifact.digest, artifact.files) == (NAMES[0], digest, ())
    assert [cache.find_file_digest(str(model.with_name(name))) for name in NAMES] == [None] * 3
    assert asyncio.run(sets.fetch(artifact, str(model), lambda _: None)) == model
    assert sets.digests() == {digest}


def test_other_content_than_was_asked_for_or_stamped_is_refused(sets: LocalSets, model: Path) -> None:
    declared, _ = read(sets, model, "a" * 64)
    with pytest.raises(AgentError, match=f"must have sha256 {'a' * 64} over their list"):
        asyncio.run(sets.fetch(declared, str(model), lambda _: None))
    artifact, _ = read(sets, model)
    last = model.with_name(NAMES[2])
    last.write_bytes(last.read_bytes()[:-1] + b"\1")
    with pytest.raises(AgentError, match="must have sha256"):
        asyncio.run(sets.fetch(artifact, str(model), lambda _: None))
    assert sets.digests() == frozenset()


def test_names_that_count_wrong_are_refused() -> None:
    assert is_of_set(NAMES[0])
    assert not is_of_set("m.gguf")
    with pytest.raises(AgentError, match="number 1 to their count; got 4 of 3"):
        is_of_set("m-00004-of-00003.gguf")
