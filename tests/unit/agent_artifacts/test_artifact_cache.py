"""The cache folder: what counts as being there, and what a crash leaves."""

import asyncio
import errno
import hashlib
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.disk import hold_partial, run_to_end, write_atomically
from covey_agent.artifacts.room import SPARE_BYTES, Room
from covey_agent.artifacts.verifying import find_verified
from covey_agent.ports import AgentError
from covey_api.model import ArtifactFile
from covey_api.reasons import FailureCause
from kit.builders import artifact


def install(cache: Cache, content: bytes) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    partial = cache.partial / sha256
    partial.write_bytes(content)
    cache.install_blob(partial, sha256)
    return sha256


@dataclass
class Disk:
    """One whose removals take a moment."""

    free_bytes: int
    removable: list[int]

    async def make_room(self, short_bytes: int, name: str) -> bool:
        """As eviction does: choose first, remove later."""
        chosen = len(self.removable)
        await asyncio.sleep(0.01)
        if chosen and chosen == len(self.removable):
            self.free_bytes += self.removable.pop()
        return chosen > 0


def test_blobs_and_references_are_there_after_a_restart(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    wanted = artifact(size_bytes=7)
    sha256 = install(cache, b"weights")
    cache.add_reference(wanted, sha256)
    for again in (cache, Cache(tmp_path)):
        assert again.digests() == tuple(sorted((sha256, wanted.digest)))
        assert again.find_artifact(wanted) == tmp_path / "blobs" / "sha256" / sha256
        assert again.find_source(wanted.source, "") == (wanted, tmp_path / "blobs" / "sha256" / sha256)
        assert again.find_source(wanted.source, "b" * 64) is None


def test_a_blob_of_another_size_is_dropped(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    wanted = artifact(size_bytes=7)
    sha256 = install(cache, b"weights")
    cache.add_reference(wanted, sha256)
    (cache.blobs / sha256).write_bytes(b"weigh")
    assert cache.find_artifact(wanted) is None
    assert cache.digests() == ()
    assert not (cache.blobs / sha256).exists()


def test_a_wrong_size_with_a_blobs_digest_is_refused_and_the_blob_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    sha256 = install(cache, b"weights")
    assert cache.find_blob(sha256, 8) is None
    with pytest.raises(
        AgentError, match=f"8 bytes must have sha256 {sha256}.*a file of 7 bytes that is here"
    ) as raised:
        asyncio.run(find_verified(cache, sha256, 8))
    assert raised.value.cause is FailureCause.ARTIFACT_CORRUPT
    assert asyncio.run(find_verified(cache, sha256, 7)) == cache.blobs / sha256
    assert cache.digests() == (sha256,)


def test_a_reference_without_its_blob_and_one_that_is_no_json_count_for_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    wanted = artifact(size_bytes=7)
    cache.add_reference(wanted, "c" * 64)
    (tmp_path / "refs" / "half.json").write_text('{"artifact": {')
    again = Cache(tmp_path)
    assert again.digests() == ()
    assert again.find_artifact(wanted) is None


def test_two_files_of_one_name_in_one_archive_are_two_artifacts(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first = artifact(source="pypi://a==1#one/model.gguf", name="model.gguf", size_bytes=7)
    second = artifact(source="pypi://a==1#two/model.gguf", name="model.gguf", size_bytes=7)
    assert first.digest == second.digest
    cache.add_reference(first, install(cache, b"weights"))
    assert cache.find_artifact(second) is None


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, b"old")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "folder.json", b"new")
    assert path.read_bytes() == b"old"


def test_threads_that_write_the_same_file_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits with its temporary written until the other's is too."""
    both, replace = threading.Barrier(2, timeout=60), Path.replace

    def replace_together(path: Path, target: Path) -> Path:
        both.wait()
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replace_together)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write_atomically, [tmp_path / "a.json"] * 2, (b"one", b"two")))
    assert (tmp_path / "a.json").read_bytes() in (b"one", b"two")
    assert len(list(tmp_path.iterdir())) == 1


def test_threads_that_add_the_same_blob_get_the_same_file(tmp_path: Path) -> None:
    cache, content = Cache(tmp_path), b"{}" * 1000
    sha256 = hashlib.sha256(content).hexdigest()

    def add(_: int) -> int:
        return cache.add_blob(sha256, content, "tokenizer.json").stat().st_ino

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(add, range(16)))) == 1
    assert cache.stamps.matches(sha256, cache.blobs / sha256)
    assert list(cache.partial.iterdir()) == []


def test_a_full_disk_costs_the_stamp_and_not_the_blob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path)
    sha256 = install(cache, b"weights")
    os.utime(cache.blobs / sha256, (1, 1))

    def refuse(_path: Path, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("covey_agent.artifacts.stamps.write_atomically", refuse)
    assert asyncio.run(find_verified(cache, sha256, 7)) == cache.blobs / sha256
    assert "can't be noted in the cache: No space left on device" in caplog.text


def test_what_an_earlier_process_with_the_same_id_left_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    left = cache.blobs / f".{'a' * 64}.{os.getpid()}"
    left.write_bytes(b"half removed")
    Cache(tmp_path)
    assert left.exists(), "this process may be about to remove it"

    def began_later(_process: psutil.Process) -> float:
        return left.stat().st_ctime + 1

    monkeypatch.setattr(psutil.Process, "create_time", began_later)
    Cache(tmp_path)
    assert not left.exists()


def test_too_little_space_is_said_in_bytes(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"needs 1024\.0 TiB \(1125899906842624 bytes\).* are free in") as raised:
        asyncio.run(Cache(tmp_path).room.require(1 << 50, "model.gguf"))
    assert raised.value.cause is FailureCause.DISK_FULL


def test_bytes_on_their_way_are_no_room_for_others(tmp_path: Path) -> None:
    """In halves of what is free: two don't fit beside each other, and do once the first has come."""
    room = Cache(tmp_path).room
    half_bytes = (shutil.disk_usage(tmp_path).free - SPARE_BYTES) * 6 // 10

    async def scenario() -> None:
        async with room.reserve("a", half_bytes, "a.gguf") as tell_left:
            with pytest.raises(AgentError, match=r"'b\.gguf' needs"):
                await room.require(half_bytes, "b.gguf")
            tell_left(0)
            await room.require(half_bytes, "b.gguf")
        await room.require(half_bytes, "b.gguf")

    asyncio.run(scenario())


def test_a_set_keeps_its_room_and_its_files_draw_from_that(tmp_path: Path) -> None:
    disk = Disk(free_bytes=SPARE_BYTES + 100, removable=[])
    room = Room(tmp_path, disk.make_room, lambda folder: disk.free_bytes)

    async def scenario() -> None:
        async with room.reserve_all({"one": 40, "two": 40}, "model"):
            with pytest.raises(AgentError, match="'other' needs"):
                async with room.reserve_all({"three": 30}, "other"):
                    pytest.fail("there is no room for both")
            async with room.reserve("one", 40, "one.gguf") as tell_left:
                disk.free_bytes -= 30
                tell_left(10)
                await room.require(20, "small")
                disk.free_bytes -= 10
                tell_left(0)
            # What came needs no room any more; what is yet to come keeps it.
            await room.require(20, "small")
            with pytest.raises(AgentError, match="'other' needs"):
                await room.require(30, "other")
        await room.require(60, "other")

    asyncio.run(scenario())


def test_what_a_broken_download_left_needs_no_room_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    here = install(cache, b"weights")
    files = (
        ArtifactFile(name="here", size_bytes=7, sha256=here),
        ArtifactFile(name="half", size_bytes=100, sha256="b" * 64),
        ArtifactFile(name="none", size_bytes=50, sha256="c" * 64),
    )
    (cache.partial / ("b" * 64)).write_bytes(b"x" * 90)
    assert cache.missing_bytes(artifact(sha256="a" * 64, files=files)) == {"b" * 64: 10, "c" * 64: 50}


def test_two_that_need_room_at_once_remove_two_that_nobody_needs(tmp_path: Path) -> None:
    """The second one looks when the first has its room, and not at what the first is about to remove."""
    disk = Disk(free_bytes=SPARE_BYTES, removable=[100, 100])
    room = Room(tmp_path, disk.make_room, lambda folder: disk.free_bytes)

    async def need(key: str, both: asyncio.Barrier) -> None:
        async with room.reserve(key, 100, f"{key}.gguf"):
            await both.wait()

    async def scenario() -> None:
        both = asyncio.Barrier(2)
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(need("a", both))
            group.create_task(need("b", both))

    asyncio.run(scenario())
    assert disk.removable == []


def test_room_is_asked_for_again_while_that_is_of_use(tmp_path: Path) -> None:
    disk = Disk(free_bytes=SPARE_BYTES, removable=[60, 60, 60])
    room = Room(tmp_path, disk.make_room, lambda folder: disk.free_bytes)
    asyncio.run(room.require(100, "a.gguf"))
    assert disk.removable == [60]
    with pytest.raises(AgentError, match="nothing else can be removed"):
        asyncio.run(room.require(200, "b.gguf"))


@pytest.mark.parametrize(
    ("number", "cause"),
    [(errno.ENOSPC, FailureCause.DISK_FULL), (errno.EACCES, FailureCause.ARTIFACT_UNAVAILABLE)],
)
def test_what_the_disk_says_becomes_a_cause(tmp_path: Path, number: int, cause: FailureCause) -> None:
    assert Cache(tmp_path).room.explain(OSError(number, "words of the disk"), "model.gguf", 5).cause is cause


def test_a_link_in_the_place_of_a_download_is_removed_and_never_written_through(tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "partial"
    outside.write_bytes(b"private")
    path.symlink_to(outside)

    async def write() -> None:
        async with hold_partial(path, 5) as descriptor:
            os.pwrite(descriptor, b"another's bytes", 0)

    asyncio.run(write())
    assert outside.read_bytes() == b"private"
    assert not path.is_symlink()
    assert path.read_bytes() == b"another's bytes"


def test_a_partial_file_has_one_holder_and_the_next_one_sees_its_work(tmp_path: Path) -> None:
    path = tmp_path / "partial"
    order: list[str] = []

    async def first() -> None:
        async with hold_partial(path, 5):
            order.append("first in")
            await asyncio.sleep(0.3)
            path.rename(tmp_path / "blob")
            order.append("first out")

    async def second() -> None:
        await asyncio.sleep(0.1)
        async with hold_partial(path, 5):
            order.append("second in")
            # The file that the first one renamed is not what the second one holds.
            assert path.exists()

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(first())
            group.create_task(second())

    asyncio.run(both())
    assert order == ["first in", "first out", "second in"]


def test_a_holder_that_writes_nothing_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hold_partial(tmp_path / "partial", 5):
            with pytest.raises(AgentError, match="another process holds"):
                async with hold_partial(tmp_path / "partial", 0.3):
                    pytest.fail("two holders")

    asyncio.run(scenario())


def test_a_cancelled_caller_waits_for_its_thread(tmp_path: Path) -> None:
    done: list[bool] = []
    may_end = threading.Event()

    def slow() -> None:
        may_end.wait(60)
        time.sleep(0.05)
        done.append(True)

    async def scenario() -> None:
        task = asyncio.ensure_future(run_to_end(slow))
        await asyncio.sleep(0.05)
        task.cancel()
        asyncio.get_running_loop().call_later(0.2, may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [True]

    asyncio.run(scenario())
