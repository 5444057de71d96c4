"""A blob from other nodes: installed by its digest, and by nobody's word."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader, Readable
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.partial import PartialFile
from covey_agent.artifacts.web import Web
from covey_agent.ports import OnTransfer
from kit.artifact_rig import QUICK, ignore


class Liars:
    """Other nodes, which give something else of the same size."""

    def open(self, sha256: str, name: str) -> Readable:
        raise NotImplementedError

    async def fill(
        self,
        name: str,
        sha256: str,
        size_bytes: int,
        partial: PartialFile,
        tell: OnTransfer,
        *,
        has_origin: bool = True,
    ) -> None:
        partial.append(bytes(size_bytes))

    @contextmanager
    def at_origin(self, sha256: str, tell: OnTransfer) -> Generator[OnTransfer]:
        yield tell


@pytest.mark.parametrize("keeps_partial", [False, True])
def test_what_others_give_is_installed_by_its_digest_alone(tmp_path: Path, keeps_partial: bool) -> None:
    cache = Cache(tmp_path)

    async def scenario() -> Path | None:
        web = Web(IndexSettings("http://127.0.0.1:1/simple"), QUICK)
        try:
            taken = Downloader(web, cache, Liars())
            return await taken.take("w.gguf", "a" * 64, 5, ignore, keeps_partial=keeps_partial)
        finally:
            await web.close()

    assert asyncio.run(scenario()) is None
    assert cache.digests() == ()
    assert list(cache.partial.iterdir()) == list(cache.blobs.iterdir()) == []
