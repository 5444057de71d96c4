"""`store://` sources: what nodes of the fleet keep, by its digest (ADR 62).

Nobody else is asked: it is in this cache, or another node's. A file is what its digest says. A folder, or a model over
several files, is named by the digest of the list of its files, as `sha256sum` prints it; that list is a blob as well.
So whatever is fetched has been proved by the name that the Model gave it.
"""

import hashlib
from collections.abc import AsyncGenerator
from pathlib import Path

from covey_api.model import ArtifactFile, Geometry, ResolvedArtifact
from covey_api.source import StoreSource
from covey_planner.geometry.reader import HeaderInvalid
from covey_planner.geometry.shards import list_shards

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.checkpoint import read_checkpoint
from covey_agent.artifacts.disk import size_of
from covey_agent.artifacts.download import Downloader, Readable
from covey_agent.artifacts.folder import MAX_FILES
from covey_agent.artifacts.header import Header, find_unmeasured, read_geometry, read_gguf_set
from covey_agent.artifacts.hub import GGUF
from covey_agent.artifacts.remote import RANGE_BYTES
from covey_agent.artifacts.sets import parse_list
from covey_agent.artifacts.together import AT_ONCE, Sum, do_together
from covey_agent.artifacts.verifying import find_verified
from covey_agent.artifacts.web import corrupt, unavailable
from covey_agent.artifacts.wheel import LocalArchive
from covey_agent.ports import OnTransfer, Transfer

# A line has a digest and a name of at most 255 letters of four bytes.
_MAX_LIST_BYTES = MAX_FILES * (64 + 2 + 4 * 255 + 1)
_SHORT = 12


class StoreFiles:
    """Files by their digests."""

    def __init__(self, cache: Cache, downloader: Downloader) -> None:
        self._cache = cache
        self._downloader = downloader

    async def read_header(self, source: str, parsed: StoreSource, sha256: str) -> tuple[ResolvedArtifact, Header]:
        _require_same(source, parsed, sha256)
        words = f"'{source}'"
        whole = await self._open(parsed.sha256, words)
        start = await whole.read_at(0, RANGE_BYTES)
        if named := await self._read_list(whole, start, parsed.sha256):
            return await self._read_set(source, parsed, named)
        geometry = await find_unmeasured(read_geometry(_read_pieces(whole, start), whole.size_bytes, words))
        name = parsed.name or f"{parsed.sha256[:_SHORT]}{GGUF}"
        artifact = ResolvedArtifact(source=source, name=name, size_bytes=whole.size_bytes, sha256=parsed.sha256)
        return artifact, geometry

    async def fetch(self, artifact: ResolvedArtifact, parsed: StoreSource, tell: OnTransfer) -> dict[str, Path]:
        """The blob of each file, by the file's name."""
        _require_same(artifact.source, parsed, artifact.sha256 or "")
        one = ArtifactFile(name=artifact.name, size_bytes=artifact.size_bytes, sha256=parsed.sha256)
        files = artifact.files or (one,)
        progress = Sum(sum(file.size_bytes for file in files), tell)

        async def fetch(file: ArtifactFile) -> Path:
            told = progress.part(file.name)
            path = await find_verified(self._cache, file.sha256, file.size_bytes)
            path = path or await self._downloader.take(
                file.name, file.sha256, file.size_bytes, told, keeps_partial=True, has_origin=False
            )
            if path is None:
                raise unavailable(
                    f"'{file.name}' of '{artifact.source}' is in the cache of no node of this fleet that can be "
                    "reached now. Start one that has it, or put it into one's cache with `covey cache add`."
                )
            told(Transfer(file.size_bytes, file.size_bytes, 0))
            return path

        names = [file.name for file in files]
        return dict(zip(names, await do_together(fetch, files, AT_ONCE), strict=True))

    async def _open(self, sha256: str, words: str) -> Readable:
        """Here, or at whoever has it."""
        size_bytes = size_of(self._cache.blobs / sha256)
        if size_bytes and (path := await find_verified(self._cache, sha256, size_bytes)):
            return LocalArchive(path)
        if far := self._downloader.open_elsewhere(sha256, words):
            return far
        raise unavailable(f"{words} is not in this machine's cache, and it asks no other node.")

    async def _read_list(self, whole: Readable, start: bytes, sha256: str) -> dict[str, str] | None:
        """Digests of the files of a set, by name; None: it is a file."""
        if whole.size_bytes > _MAX_LIST_BYTES or len(start) < whole.size_bytes:
            return None
        is_right = hashlib.sha256(start).hexdigest() == sha256
        return parse_list(start) if is_right else None

    async def _read_set(
        self, source: str, parsed: StoreSource, named: dict[str, str]
    ) -> tuple[ResolvedArtifact, Header]:
        if len(named) > MAX_FILES:
            raise corrupt(f"'{source}' must be at most {MAX_FILES} files; its list has {len(named)}.")
        first = min(named)
        is_gguf = all(name.endswith(GGUF) for name in named)
        if is_gguf and tuple(sorted(named)) != _shards(first):
            raise corrupt(f"'{source}' must be all files of one model; its list has {', '.join(sorted(named)[:3])}.")
        opened = {name: await self._open(digest, f"'{name}' of '{source}'") for name, digest in named.items()}
        starts = await self._read_starts(opened)
        sizes = {name: each.size_bytes for name, each in opened.items()}
        if is_gguf:
            heads = {f"'{name}'": (_read_pieces(opened[name], starts[name]), sizes[name]) for name in sorted(named)}
            geometry = await find_unmeasured(read_gguf_set(heads, f"the files of '{source}'"))
        else:
            geometry = await find_unmeasured(_read_folder(opened, starts, f"'{source}'"))
        name = parsed.name if parsed.name and not parsed.name.endswith(GGUF) else parsed.sha256[:_SHORT]
        files = tuple(
            ArtifactFile(name=name, size_bytes=sizes[name], sha256=digest) for name, digest in sorted(named.items())
        )
        artifact = ResolvedArtifact(
            source=source,
            name=first if is_gguf else name,
            size_bytes=sum(sizes.values()),
            sha256=parsed.sha256,
            files=files,
        )
        return artifact, geometry

    async def _read_starts(self, opened: dict[str, Readable]) -> dict[str, bytes]:
        async def read(each: Readable) -> bytes:
            return await each.read_at(0, RANGE_BYTES)

        return dict(zip(opened, await do_together(read, tuple(opened.values()), AT_ONCE), strict=True))


def _shards(name: str) -> tuple[str, ...]:
    try:
        return list_shards(name)
    except HeaderInvalid as error:
        raise corrupt(f"{error}.") from error


def _require_same(source: str, parsed: StoreSource, sha256: str) -> None:
    if sha256 not in ("", parsed.sha256):
        raise corrupt(f"'{source}' must have sha256 {sha256}; it names another. Change the Model's sha256 or source.")


async def _read_folder(opened: dict[str, Readable], starts: dict[str, bytes], words: str) -> Geometry:
    async def open_file(name: str) -> tuple[AsyncGenerator[bytes], int] | None:
        return (_read_pieces(opened[name], starts[name]), opened[name].size_bytes) if name in opened else None

    return await read_checkpoint(open_file, words)


async def _read_pieces(whole: Readable, start: bytes) -> AsyncGenerator[bytes]:
    yield start
    at = len(start)
    while at < whole.size_bytes:
        piece = await whole.read_at(at, RANGE_BYTES)
        yield piece
        at += len(piece)
