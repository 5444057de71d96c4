"""`hf://` sources: a GGUF file or set, or the folder of a checkpoint, out of a hub's repository.

A revision is resolved to a commit by whoever reads the header, and only the commit is fetched from then on. Resolving
also finds every file's sha256: the hub has it of large files; of small ones it has the hash of a git blob, so they are
read whole, held against that, and kept.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

from covey_api.model import ArtifactFile, Geometry, ResolvedArtifact
from covey_api.source import HubSource
from covey_planner.geometry.checkpoint import MAX_CONFIG_BYTES
from covey_planner.geometry.safetensors import MAX_INDEX_BYTES, parse_index

from covey_agent.artifacts import hub
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.checkpoint import CONFIG, INDEX, SINGLE, read_checkpoint
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.folder import LOADED, MAX_FILES, digest_of
from covey_agent.artifacts.header import Header, find_unmeasured, read_geometry, read_gguf_set
from covey_agent.artifacts.hub import HubFile, Repository
from covey_agent.artifacts.remote import RemoteFile
from covey_agent.artifacts.together import do_together, fetch_together
from covey_agent.artifacts.web import Origin, Web, corrupt, persist, unavailable
from covey_agent.ports import OnTransfer

# The largest repositories list some 10,000 files.
_MAX_PAGE_BYTES = 16 * 1024 * 1024
# Hubs keep files of 10 MB and more outside git; a folder has a handful of smaller ones.
_MAX_SMALL_BYTES = 32 * 1024 * 1024
_MAX_SMALL_TOTAL_BYTES = 128 * 1024 * 1024
# Header reads and small files at a time.
_AT_ONCE = 4


class Settings(Protocol):
    """Where files are, and who asks."""

    @property
    def endpoint(self) -> str: ...

    @property
    def origin(self) -> Origin: ...


class HubFiles:
    """Repositories of one hub."""

    def __init__(self, web: Web, cache: Cache, downloader: Downloader, settings: Settings) -> None:
        self._web = web
        self._cache = cache
        self._downloader = downloader
        self._settings = settings

    @property
    def _origin(self) -> Origin:
        return self._settings.origin

    def _url(self, repository: str, commit: str, path: str, sha256: str) -> str:
        return hub.file_url(self._settings.endpoint, repository, commit, path)

    async def read_header(self, source: str, parsed: HubSource, sha256: str) -> tuple[ResolvedArtifact, Header]:
        found = await self._resolve(parsed)
        where = f"'{parsed.repository}' at {found.word} {found.commit[:12]}"
        small: dict[str, bytes] = {}
        if chosen := hub.choose_gguf(found, parsed):
            name = chosen[0].name
            geometry = await find_unmeasured(self._read_ggufs(parsed, found, chosen, where))
        else:
            name = PurePosixPath(parsed.repository).name
            geometry, chosen = await self._read_folder(parsed, found, small, where)
        files = await self._digest_all(parsed, found, chosen, small, where)
        is_one = len(files) == 1 and name.endswith(hub.GGUF)
        digest = files[0].sha256 if is_one else digest_of(files)
        if sha256 not in ("", digest):
            raise corrupt(
                f"'{source}' must have sha256 {sha256}; the hub has {digest} at {found.word} {found.commit}. Change "
                "the Model's sha256 or source."
            )
        artifact = ResolvedArtifact(
            source=source,
            name=name,
            size_bytes=sum(file.size_bytes for file in files),
            sha256=digest,
            revision=found.commit,
            files=() if is_one else files,
        )
        return artifact, geometry

    async def fetch(
        self, artifact: ResolvedArtifact, parsed: HubSource, tell: OnTransfer, *, is_elsewhere: bool = True
    ) -> dict[str, Path]:
        """The blob of each file, by the file's name. `is_elsewhere`: as of `fetch_together`."""
        if artifact.sha256 is None or artifact.revision is None:
            raise corrupt(f"'{artifact.source}' was never resolved to a commit; its header must be read again.")
        one = ArtifactFile(name=artifact.name, size_bytes=artifact.size_bytes, sha256=artifact.sha256)
        files = artifact.files or (one,)
        folder = PurePosixPath(parsed.file).parent
        remotes = {
            file.name: Remote(
                self._url(parsed.repository, artifact.revision, str(folder / file.name), file.sha256),
                file.name,
                file.sha256,
                file.size_bytes,
                self._origin,
            )
            for file in files
        }
        return await fetch_together(self._downloader, remotes, tell, is_elsewhere=is_elsewhere)

    async def _resolve(self, parsed: HubSource) -> Repository:
        url = hub.revision_url(self._settings.endpoint, parsed)
        what = f"revision '{parsed.revision}' of '{parsed.repository}'"
        _, body = await persist(
            self._web.patience, what, lambda: self._web.read(url, {}, _MAX_PAGE_BYTES, self._origin)
        )
        try:
            return hub.parse_repository(body)
        except ValueError as error:
            raise unavailable(
                f"{self._settings.endpoint} gives no description of '{parsed.repository}': {error}. "
                f"{self._origin.check}"
            ) from error

    def _open(self, parsed: HubSource, found: Repository, file: HubFile) -> RemoteFile:
        url = self._url(parsed.repository, found.commit, file.path, file.sha256)
        return RemoteFile(self._web, url, file.name, file.size_bytes, self._origin)

    async def _read_ggufs(
        self, parsed: HubSource, found: Repository, ggufs: tuple[HubFile, ...], where: str
    ) -> Geometry:
        if len(ggufs) == 1:
            pieces = self._open(parsed, found, ggufs[0]).read_pieces()
            return await read_geometry(pieces, ggufs[0].size_bytes, f"'{ggufs[0].path}' of {where}")
        files = {
            f"'{file.path}' of {where}": (self._open(parsed, found, file).read_pieces(), file.size_bytes)
            for file in ggufs
        }
        return await read_gguf_set(files, f"the {len(ggufs)} files of '{ggufs[0].path}' of {where}")

    async def _read_folder(
        self, parsed: HubSource, found: Repository, small: dict[str, bytes], where: str
    ) -> tuple[Header, tuple[HubFile, ...]]:
        async def open_file(name: str) -> tuple[AsyncGenerator[bytes], int] | None:
            file = found.files.get(name)
            if file is None:
                return None
            if name in (CONFIG, INDEX) and file.size_bytes <= max(MAX_CONFIG_BYTES, MAX_INDEX_BYTES):
                small[name] = small.get(name) or await self._read_small(parsed, found, file)
                return _one_piece(small[name]), file.size_bytes
            return self._open(parsed, found, file).read_pieces(), file.size_bytes

        if CONFIG not in found.files and found.left_out:
            raise corrupt(f"{where} has neither a GGUF file nor '{CONFIG}'.{found.left_words}")
        geometry = await find_unmeasured(read_checkpoint(open_file, where))
        weights = set(await asyncio.to_thread(parse_index, small[INDEX])) if INDEX in small else {SINGLE}
        chosen = tuple(file for path, file in found.files.items() if _is_loaded(path, weights))
        if len(chosen) > MAX_FILES:
            raise corrupt(f"{where} must hold at most {MAX_FILES} files that an engine loads; it holds {len(chosen)}.")
        return geometry, chosen

    async def _digest_all(
        self, parsed: HubSource, found: Repository, chosen: Sequence[HubFile], small: dict[str, bytes], where: str
    ) -> tuple[ArtifactFile, ...]:
        total_bytes = sum(file.size_bytes for file in chosen if not file.sha256)
        if total_bytes > _MAX_SMALL_TOTAL_BYTES:
            raise corrupt(
                f"{where} has {total_bytes} bytes of files without a sha256; they must be at most "
                f"{_MAX_SMALL_TOTAL_BYTES}."
            )

        async def digest(file: HubFile) -> ArtifactFile:
            sha256 = file.sha256 or await self._keep_small(parsed, found, file, small)
            return ArtifactFile(name=file.name, size_bytes=file.size_bytes, sha256=sha256)

        return tuple(await do_together(digest, chosen, _AT_ONCE))

    async def _keep_small(self, parsed: HubSource, found: Repository, file: HubFile, small: dict[str, bytes]) -> str:
        content = small.get(file.path) or await self._read_small(parsed, found, file)
        sha256 = hashlib.sha256(content).hexdigest()
        try:
            await asyncio.to_thread(self._cache.add_blob, sha256, content, file.name)
        except OSError as error:
            raise self._cache.room.explain(error, file.name, len(content)) from error
        return sha256

    async def _read_small(self, parsed: HubSource, found: Repository, file: HubFile) -> bytes:
        if not (file.blob_id or file.sha256) or file.size_bytes > _MAX_SMALL_BYTES:
            raise corrupt(
                f"{self._settings.endpoint} gives no digest for '{file.path}' of '{parsed.repository}' that it can be "
                "verified with, so it isn't fetched."
            )
        url, limit = self._url(parsed.repository, found.commit, file.path, file.sha256), file.size_bytes
        _, content = await persist(
            self._web.patience, f"'{file.path}'", lambda: self._web.read(url, {}, limit, self._origin)
        )
        found_hash = hashlib.sha256(content).hexdigest() if file.sha256 else hub.hash_git_blob(content)
        if found_hash != (wanted := file.sha256 or file.blob_id):
            raise corrupt(
                f"'{file.path}' of '{parsed.repository}' must have hash {wanted}, as the hub says; what came has "
                f"{found_hash}. Nothing was installed. {self._origin.check} Or a proxy changes it."
            )
        return content


def _is_loaded(path: str, weights: set[str]) -> bool:
    """Whether an engine loads it: of the folder itself, not of those inside; of weights only those of the set."""
    if "/" in path or path.startswith("."):
        return False
    suffix = PurePosixPath(path).suffix
    return path in weights if suffix == hub.SAFETENSORS else suffix in LOADED


async def _one_piece(content: bytes) -> AsyncGenerator[bytes]:
    yield content
