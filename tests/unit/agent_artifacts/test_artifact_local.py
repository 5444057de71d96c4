"""`file://` sources."""

import asyncio
import hashlib
import os
from pathlib import Path

import pytest
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.local import LocalFiles
from covey_agent.ports import AgentError, Transfer
from covey_api.model import ResolvedArtifact
from covey_api.reasons import FailureCause
from kit.gguf import Shape, build_model


def read_header(cache: Cache, path: Path, sha256: str = "") -> ResolvedArtifact:
    return asyncio.run(LocalFiles(cache).read_header(f"file://{path}", str(path), sha256))[0]


def fetch(cache: Cache, artifact: ResolvedArtifact, path: Path) -> Path:
    told: list[Transfer] = []
    found = asyncio.run(LocalFiles(cache).fetch(artifact, str(path), told.append))
    assert told[-1].done_bytes == artifact.size_bytes
    return found


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return build_model(Shape()).write(tmp_path / "weights.gguf")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_a_file_is_used_where_it_is_and_hashed_once(cache: Cache, weights: Path) -> None:
    artifact = read_header(cache, weights)
    assert artifact.sha256 == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert artifact.size_bytes == weights.stat().st_size
    assert fetch(cache, artifact, weights) == weights
    assert cache.digests() == (artifact.sha256,)
    # Remembered across a restart: another content of the same size, time and inode isn't read again.
    before = weights.stat()
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    with weights.open("r+b") as file:
        file.write(content)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert read_header(Cache(cache.folder), weights).sha256 == artifact.sha256
    # A new time: it is read again.
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert Cache(cache.folder).digests() == ()
    assert read_header(Cache(cache.folder), weights).sha256 == hashlib.sha256(content).hexdigest()


def test_a_demanded_digest_is_taken_for_the_header_and_checked_at_the_fetch(cache: Cache, weights: Path) -> None:
    artifact = read_header(cache, weights, "d" * 64)
    assert artifact.digest == "d" * 64
    with pytest.raises(AgentError, match=r"must have sha256 dddd.*; it has") as raised:
        fetch(cache, artifact, weights)
    assert raised.value.cause is FailureCause.ARTIFACT_CORRUPT


def refusal(cache: Cache, path: Path) -> AgentError:
    with pytest.raises(AgentError) as raised:
        read_header(cache, path)
    return raised.value


def test_what_is_no_file_is_said(cache: Cache, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "No such file or directory" in refusal(cache, tmp_path / "missing").message
    for path in (tmp_path, tmp_path / "pipe"):
        assert "must be a regular file" in refusal(cache, path).message
    assert refusal(cache, tmp_path).cause is FailureCause.ARTIFACT_UNAVAILABLE


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>please log in</html>", "an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "a Git LFS pointer"),
        (b"PK\x03\x04" + bytes(100), "a ZIP archive"),
        (b"root:secret-hash:0:0" * 10, "can't be read as GGUF"),
    ],
)
def test_what_is_no_gguf_is_said_without_quoting_it(cache: Cache, tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    error = refusal(cache, path)
    assert error.cause is FailureCause.ARTIFACT_CORRUPT
    assert words in error.message
    assert "secret-hash" not in error.message


def test_a_header_that_is_cut_off_is_said(cache: Cache, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(build_model(Shape()).header[:500])
    error = refusal(cache, path)
    assert error.cause is FailureCause.ARTIFACT_CORRUPT
    assert str(path) in error.message


def test_a_cancelled_asker_leaves_the_digest_to_the_next_one(cache: Cache, weights: Path) -> None:
    async def scenario() -> str:
        files = LocalFiles(cache)
        first = asyncio.ensure_future(files.observe_digest(str(weights)))
        await asyncio.sleep(0)
        first.cancel()
        return await files.observe_digest(str(weights))

    assert asyncio.run(scenario()) == hashlib.sha256(weights.read_bytes()).hexdigest()
