"""Artifacts that are given to an engine only with the signature that their Model demands.

Looked at before anything is fetched, wherever the digests are known by then: what isn't signed costs no download. What
was looked at once isn't looked at again while the agent runs. A signature is kept in the cache, so that a node without
a network starts again what it ran; one that is of no use any more (another key is demanded) is read anew from where the
Model says.
"""

import asyncio
import hashlib
import logging
import os
from pathlib import Path, PurePosixPath

from covey_api.model import Geometry, ResolvedArtifact
from covey_api.reasons import FailureCause
from covey_api.source import FileSource, HubSource, OciSource, PypiSource, StoreSource, WebSource, parse_source
from covey_api.trust import SignedBy

from covey_agent.artifacts import hub
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.disk import run_to_end, write_atomically
from covey_agent.artifacts.hub import HubSettings
from covey_agent.artifacts.local import open_file
from covey_agent.artifacts.local_set import is_of_set
from covey_agent.artifacts.node import NodeArtifacts
from covey_agent.artifacts.web import SERVER, Web, persist, unavailable
from covey_agent.ports import AgentError, OnTransfer
from covey_agent.trust.verifier import SignatureRefused, Verifier

logger = logging.getLogger(__name__)

# A signature lists every file of a repository: 20,000 of them.
_MAX_BYTES = 4 * 1024 * 1024
# What was looked at is remembered for so many artifacts; beyond, it is looked at again.
_MAX_REMEMBERED = 1000


class SignatureFiles:
    """Signatures where Models say they are, and those kept from an earlier time."""

    def __init__(self, web: Web, cache: Cache, hub_settings: HubSettings) -> None:
        self._web = web
        self._folder = cache.folder / "signatures"
        self._hub = hub_settings

    def find_kept(self, source: str) -> bytes | None:
        """Blocking."""
        try:
            return self._path(source).read_bytes()
        except OSError:
            return None

    def keep(self, source: str, content: bytes) -> None:
        """For a time without a network; a disk that refuses costs no more than that. Blocking."""
        try:
            self._folder.mkdir(exist_ok=True)
            write_atomically(self._path(source), content)
        except OSError as error:
            logger.warning("the signature '%s' is not kept: %s", source, error.strerror)

    def _path(self, source: str) -> Path:
        return self._folder / f"{hashlib.sha256(source.encode()).hexdigest()}.sig"

    async def read(self, source: str, artifact: ResolvedArtifact) -> bytes:
        """One beside the artifact is that of its commit: the branch may have moved since."""
        try:
            parsed = parse_source(source)
        except ValueError as error:
            raise unavailable(f"the Model names no signature that can be read: {error}") from error
        match parsed:
            case FileSource():
                return await run_to_end(_read_file, parsed.path)
            case WebSource():
                url, origin = parsed.url, SERVER
            case HubSource():
                revision = _commit_beside(parsed, artifact) or parsed.revision
                url = hub.file_url(self._hub.endpoint, parsed.repository, revision, parsed.file)
                origin = self._hub.origin
            case PypiSource() | OciSource() | StoreSource():
                raise unavailable(f"a signature must be at hf://, https:// or file:///; the Model says '{source}'")
        what = f"signature '{source}'"
        _, content = await persist(self._web.patience, what, lambda: self._web.read(url, {}, _MAX_BYTES, origin))
        return content


def _commit_beside(signature: HubSource, artifact: ResolvedArtifact) -> str | None:
    """What the signature's revision meant when the artifact's, which is the same, was resolved."""
    source = parse_source(artifact.source)
    if not isinstance(source, HubSource):
        return None
    is_same = (source.repository, source.revision) == (signature.repository, signature.revision)
    return artifact.revision if is_same else None


def _read_file(path: str) -> bytes:
    try:
        with os.fdopen(open_file(path), "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise unavailable(f"signature '{path}' can't be read on this node: {error.strerror}.") from error
    if len(content) > _MAX_BYTES:
        raise unavailable(f"signature '{path}' must have at most {_MAX_BYTES} bytes.")
    return content


class SignedArtifacts:
    """The port `Artifacts`."""

    def __init__(self, fetched: NodeArtifacts, signatures: SignatureFiles, verifier: Verifier) -> None:
        self._fetched = fetched
        self._signatures = signatures
        self._verifier = verifier
        self._seen: set[str] = set()

    def digests(self) -> tuple[str, ...]:
        return self._fetched.digests()

    async def read_header(self, source: str, sha256: str) -> tuple[ResolvedArtifact, Geometry]:
        return await self._fetched.read_header(source, sha256)

    async def fetch(self, artifact: ResolvedArtifact, on_transfer: OnTransfer) -> Path:
        proof, bare = artifact.proof, artifact.model_copy(update={"proof": None})
        if proof is None:
            return await self._fetched.fetch(bare, on_transfer)
        if known := _known_files(bare):
            await self._check(bare, proof, known)
            return await self._fetched.fetch(bare, on_transfer)
        path = await self._fetched.fetch(bare, on_transfer)
        await self._check(bare, proof, await self._fetched.list_files(bare, path))
        return path

    async def _check(self, artifact: ResolvedArtifact, proof: SignedBy, files: dict[str, str]) -> None:
        key = hashlib.sha256(f"{proof.model_dump_json()}\n{sorted(files.items())}".encode()).hexdigest()
        if key in self._seen:
            return
        kept = await asyncio.to_thread(self._signatures.find_kept, proof.signature)
        try:
            by = await self._look(kept, proof, files) if kept is not None else None
        except SignatureRefused:
            by = None
        if by is None:
            content = await self._signatures.read(proof.signature, artifact)
            try:
                by = await self._look(content, proof, files)
            except SignatureRefused as refused:
                raise AgentError(
                    FailureCause.SIGNATURE_REFUSED,
                    f"'{artifact.name}' is not given to an engine: signature '{proof.signature}': {refused}. Correct "
                    "the Model's `signature` or `spec.trust.signers` if these are wrong; else find out who changed the "
                    "file.",
                ) from refused
            await asyncio.to_thread(self._signatures.keep, proof.signature, content)
        logger.info("'%s' is signed by %s", artifact.name, by)
        if len(self._seen) >= _MAX_REMEMBERED:
            self._seen.clear()
        self._seen.add(key)

    async def _look(self, content: bytes, proof: SignedBy, files: dict[str, str]) -> str:
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SignatureRefused("it must be a Sigstore bundle in JSON; it is no text") from error
        named = (each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in proof.signers)
        signers = [{what: value} for each in named for what, value in each.items()]
        return await self._verifier.look({"signature": text, "signers": signers, "files": files})


def _known_files(artifact: ResolvedArtifact) -> dict[str, str]:
    """sha256 by name, as far as they are known before the files are here; what comes must then be the same."""
    folder = _folder_of(artifact.source)
    if artifact.files:
        # The list itself is held against the artifact's digest when it is fetched.
        return {str(folder / file.name): file.sha256 for file in artifact.files}
    # Of several files at a path, the digest is that of a list that isn't here.
    is_list = artifact.source.startswith("file:") and is_of_set(artifact.name)
    return {str(folder / artifact.name): artifact.sha256} if artifact.sha256 and not is_list else {}


def _folder_of(source: str) -> PurePosixPath:
    """Where it is in its repository: a signature may be over all of that."""
    try:
        parsed = parse_source(source)
    except ValueError:
        return PurePosixPath()  # its fetch says so
    return PurePosixPath(parsed.file).parent if isinstance(parsed, HubSource | OciSource) else PurePosixPath()
