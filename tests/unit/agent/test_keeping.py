"""What a node keeps for its fleet: fetched, retried, remembered."""

import asyncio
import hashlib
from functools import partial
from pathlib import Path

import pytest
from covey_agent import keeping as module
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.reserving import reserve_artifact
from covey_agent.artifacts.room import SPARE_BYTES, Room
from covey_agent.keeping import Keeping
from covey_agent.ports import AgentError, OnTransfer
from covey_api.model import ArtifactFile, Geometry, ResolvedArtifact
from covey_api.reasons import FailureCause

pytestmark = pytest.mark.anyio


class FakeArtifacts:
    """A cache whose sources can be away."""

    def __init__(self) -> None:
        self.here: set[str] = set()
        self.fetched: list[str] = []
        self.away: set[str] = set()
        """Sources, or digests."""
        self.refused = 0
        self.error: Exception = AgentError(FailureCause.ARTIFACT_UNAVAILABLE, "it is away")

    async def read_header(self, source: str, sha256: str) -> tuple[ResolvedArtifact, Geometry]:
        raise NotImplementedError

    async def fetch(self, artifact: ResolvedArtifact, on_transfer: OnTransfer) -> Path:
        if not self.away.isdisjoint((artifact.source, artifact.digest)):
            self.refused += 1
            raise self.error
        self.fetched.append(artifact.name)
        self.here.add(artifact.digest)
        return Path(artifact.name)

    def digests(self) -> tuple[str, ...]:
        return tuple(sorted(self.here))


def artifact(name: str, *files: ArtifactFile) -> ResolvedArtifact:
    digest = name.encode().hex().ljust(64, "0")
    return ResolvedArtifact(source=f"hf://org/{name}", name=name, size_bytes=1, sha256=digest, files=files)


class Site:
    def __init__(self, folder: Path) -> None:
        self.artifacts = FakeArtifacts()
        self.changes = 0
        self.news = 0
        self.keeping = Keeping(self.artifacts, folder, self._change, self._fetched)

    def _change(self) -> None:
        self.changes += 1

    def _fetched(self) -> None:
        self.news += 1


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_is_kept_is_fetched_pinned_and_told(tmp_path: Path) -> None:
    site, file = Site(tmp_path), ArtifactFile(name="x", size_bytes=1, sha256="f" * 64)
    a, b = artifact("a"), artifact("b", file)
    running = asyncio.create_task(site.keeping.run())
    await settle()
    site.keeping.receive((a,))
    site.keeping.receive((a,))
    await settle()
    assert (site.artifacts.fetched, site.changes, site.news) == (["a"], 1, 1)
    site.keeping.receive((a, b))
    await settle()
    assert site.artifacts.fetched == ["a", "a", "b"]
    assert site.keeping.digests == {a.digest, b.digest, "f" * 64}
    running.cancel()
    # A store goes on to be one without a controller.
    assert Site(tmp_path).keeping.kept == (a, b)
    site.keeping.receive(())
    assert Site(tmp_path).keeping.digests == frozenset()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AgentError(FailureCause.ARTIFACT_UNAVAILABLE, "it is away"), "it is away"),
        (RuntimeError("can't start new thread"), "unexpected RuntimeError: can't start new thread"),
    ],
    ids=["told", "unexpected"],
)
async def test_what_cant_be_had_holds_up_nothing_else_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, words: str
) -> None:
    monkeypatch.setattr(module, "FIRST_AGAIN_SECONDS", 0.01)
    site = Site(tmp_path)
    site.artifacts.away.add("hf://org/a")
    site.artifacts.error = error
    running = asyncio.create_task(site.keeping.run())
    site.keeping.receive((artifact("a"), artifact("b")))
    async with asyncio.timeout(60):
        while site.artifacts.refused < 2:  # noqa: ASYNC110 - only polling sees it
            await asyncio.sleep(0.01)
    assert site.artifacts.here == {artifact("b").digest}
    assert [line for line in caplog.messages if words in line] == [
        f"'hf://org/a' is not kept for the fleet yet: {words}"
    ], "said once"
    site.artifacts.away.clear()
    async with asyncio.timeout(60):
        while artifact("a").digest not in site.artifacts.here:  # noqa: ASYNC110 - only polling sees it
            await asyncio.sleep(0.01)
    running.cancel()


async def test_what_cannot_be_had_is_told_with_its_size_and_cause_until_it_is_here(tmp_path: Path) -> None:
    site = Site(tmp_path)
    a, b = artifact("a"), artifact("b")
    site.artifacts.away, site.artifacts.error = {a.source}, AgentError(FailureCause.DISK_FULL, "12 bytes are free")
    site.keeping.receive((a, b))
    site.keeping._changed.clear()  # pyright: ignore[reportPrivateUsage]
    await site.keeping._fetch_all()  # pyright: ignore[reportPrivateUsage]
    (lacking,) = site.keeping.unkept
    assert (lacking.source, lacking.size_bytes, lacking.cause) == (a.source, 1, FailureCause.DISK_FULL)
    news = site.news
    site.artifacts.error = AgentError(FailureCause.DISK_FULL, "11 bytes are free")
    await site.keeping._fetch_all()  # pyright: ignore[reportPrivateUsage]
    assert site.news == news, "the same in other words is no news"
    site.artifacts.away = set()
    await site.keeping._fetch_all()  # pyright: ignore[reportPrivateUsage]
    assert (site.keeping.unkept, site.news > news) == ((), True)
    site.artifacts.away = {a.source}
    site.keeping.receive((b,))
    assert site.keeping.unkept == ()


class Disk(FakeArtifacts):
    """What is fetched is written to a disk of 100 bytes, of which a download reserves what it brings."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.free_bytes = SPARE_BYTES + 100
        self.cache = Cache(folder / "cache")
        self.cache.room = Room(folder, self._make_room, lambda _: self.free_bytes)
        self.keeping = Keeping(self, folder, lambda: None, lambda: None, partial(reserve_artifact, self.cache))
        self.seen: list[tuple[str, ...]] = []
        """With each fetch: what can't be had, as is known when its first byte is to come."""
        self.is_room_for_others = True

    async def _make_room(self, short_bytes: int, name: str) -> bool:
        return False

    async def fetch(self, artifact: ResolvedArtifact, on_transfer: OnTransfer) -> Path:
        self.seen.append(tuple(each.source for each in self.keeping.unkept))
        if artifact.digest in self.here:
            return await super().fetch(artifact, on_transfer)
        async with self.cache.room.reserve(artifact.digest, artifact.size_bytes, artifact.name) as tell_left:
            self.free_bytes -= artifact.size_bytes
            tell_left(0)
            try:
                await self.cache.room.require(30, "an engine")
            except AgentError:
                self.is_room_for_others = False
            return await super().fetch(artifact, on_transfer)


async def test_room_for_all_that_is_kept_is_taken_before_the_first_of_it_comes(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    a, b, c, d = (artifact(name).model_copy(update={"size_bytes": 40}) for name in "abcd")
    small = artifact("e").model_copy(update={"size_bytes": 20})
    disk.here = {d.digest}
    disk.keeping.receive((a, b, c, d, small))
    disk.keeping._changed.clear()  # pyright: ignore[reportPrivateUsage]
    assert not await disk.keeping._fetch_all()  # pyright: ignore[reportPrivateUsage]
    assert disk.fetched == ["a", "b", "d", "e"]
    assert disk.seen == [(c.source,)] * 4
    assert [each.cause for each in disk.keeping.unkept] == [FailureCause.DISK_FULL]
    assert not disk.is_room_for_others
    disk.free_bytes += 40  # somebody tidied up
    await disk.cache.room.require(30, "nobody waits any more")
    assert await disk.keeping._fetch_all()  # pyright: ignore[reportPrivateUsage]
    assert (disk.fetched[-1], disk.keeping.unkept) == ("e", ())
    assert "c" in disk.fetched


async def test_what_a_set_lacks_alone_is_reserved_of_it(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    content = b"x" * 90
    here = ArtifactFile(name="here", size_bytes=90, sha256=hashlib.sha256(content).hexdigest())
    disk.cache.add_blob(here.sha256, content)
    lacking = ArtifactFile(name="lacking", size_bytes=90, sha256="f" * 64)
    async with reserve_artifact(disk.cache, artifact("set", here, lacking)):
        with pytest.raises(AgentError, match="'other' needs"):
            await disk.cache.room.require(20, "other")
    local = artifact("local").model_copy(update={"source": "file:///local", "size_bytes": 1000})
    async with reserve_artifact(disk.cache, local):
        await disk.cache.room.require(100, "other")


async def test_of_two_files_of_one_source_the_one_that_is_here_hides_the_other_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site, old = Site(tmp_path), artifact("a")
    new = old.model_copy(update={"sha256": "e" * 64, "size_bytes": 2})
    site.artifacts.away = {old.digest}
    for kept in ((old, new), (new, old)):
        site.keeping.receive(kept)
        site.keeping._changed.clear()  # pyright: ignore[reportPrivateUsage]
        await site.keeping._fetch_all()  # pyright: ignore[reportPrivateUsage]
        assert [each.size_bytes for each in site.keeping.unkept] == [old.size_bytes]
    news = site.news
    for _ in range(3):
        await site.keeping._fetch_all()  # pyright: ignore[reportPrivateUsage]
    assert site.news == news
    assert sum("is not kept" in line for line in caplog.messages) == 1
    site.keeping.receive((new,))
    assert site.keeping.unkept == ()
