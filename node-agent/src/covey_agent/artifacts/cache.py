"""The artifact cache on disk: blobs by digest, which sources led to which of them, digests of local files.

Owns every write below the cache folder; knows nothing of sources or HTTP. The rule that a maintainer would break by
accident: a name appears under `blobs/` only by a rename of a file whose whole content was hashed and fsynced before, so
that what is there may be trusted without reading it again while its stamp matches (ADR 39).

    blobs/sha256/<digest>   whole, verified files
    stamps/<digest>.json    what a blob was when its content was hashed, and when it was last used
    pins/<key>.json         what must not be removed, by who needs it
    partial/<digest>        downloads and extractions under way, locked by flock on the file itself
    refs/<key>.json         which blob or set an artifact is, by its source
    files/<key>.json        digests of `file://` sources, valid for one size, time and inode
    sets/<digest>           folders of links to blobs, for artifacts of several files
    envs/<digest>           installed engines

An index in SQLite was the alternative; single files need no schema, no repair, and a lost one costs one fetch.
"""

import errno
import hashlib
import logging
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated

from covey_api.meta import Message, Sha256
from covey_api.model import ResolvedArtifact
from pydantic import Field, ValidationError

from covey_agent.artifacts.disk import (
    list_folder,
    name_temporary,
    sweep_temporaries,
    sync_folder,
    taken_by,
    write_atomically,
)
from covey_agent.artifacts.room import Room
from covey_agent.artifacts.sets import find_set, install_set, render_list
from covey_agent.artifacts.stamps import Stamps

logger = logging.getLogger(__name__)


# Changes of a folder less than this apart may leave it the same time: disks' clocks tick each 1 to 10 ms.
_TICK_NS = 50_000_000


class Reference(Message):
    """Which blob holds an artifact."""

    artifact: ResolvedArtifact
    blob: Sha256


class FileDigest(Message):
    """The digest of one local file, for as long as nothing about it changes."""

    path: Annotated[str, Field(max_length=4096)]
    size_bytes: int
    modified_ns: int
    inode: int
    sha256: Sha256


def reference_key(artifact: ResolvedArtifact) -> str:
    # The source is part of it: two files of one archive may have the same name in different folders.
    return hashlib.sha256(f"{artifact.digest}\n{artifact.source}".encode()).hexdigest()


MakeRoom = Callable[["Cache", int, str], Awaitable[bool]]
"""Removes what nobody needs, for so many bytes that a named artifact lacks. False: there is nothing it could remove."""


async def keep_all(cache: "Cache", short_bytes: int, name: str) -> bool:
    """For who only looks: nothing is removed."""
    return False


def is_digest(name: str) -> bool:
    return len(name) == 64 and all(digit in "0123456789abcdef" for digit in name)


class Cache:
    """The folder, scanned once at start and kept in memory from then on.

    Made and swept first, unless it `is_only_looked_at`: who looks may not own it, or see whose temporaries live.
    """

    def __init__(self, folder: Path, make_room: MakeRoom = keep_all, *, is_only_looked_at: bool = False) -> None:
        self.folder = folder
        self.blobs = folder / "blobs" / "sha256"
        self.partial = folder / "partial"
        self.sets = folder / "sets"
        self.envs = folder / "envs"
        self.pins = folder / "pins"
        self.stamps = Stamps(folder / "stamps")
        self.room = Room(folder, lambda short_bytes, name: make_room(self, short_bytes, name))
        self._references = folder / "refs"
        self._files = folder / "files"
        # Of two threads that add the same file the second finds the first's.
        self._adding = threading.Lock()
        if not is_only_looked_at:
            for path in (
                *(self.blobs, self.partial, self.sets, self.envs, self.pins),
                *(folder / "stamps", self._references, self._files),
            ):
                path.mkdir(parents=True, exist_ok=True)
                sweep_temporaries(path)
        self._looked_at = _settle(self._observe_changes())
        self._known_blobs = {path.name for path in list_folder(self.blobs) if is_digest(path.name)}
        self._known_references = {
            reference_key(reference.artifact): reference
            for path in sorted(self._references.glob("*.json"))
            if (reference := _read_reference(path)) and self._is_here(reference)
        }
        self._known_files = {
            digest.path: digest
            for path in sorted(self._files.glob("*.json"))
            if (digest := _read_file_digest(path)) and _is_unchanged(digest)
        }

    def digests(self) -> tuple[str, ...]:
        """`ResolvedArtifact.digest` of all that is here, sorted."""
        self._follow()
        archived = {reference.artifact.digest for reference in list(self._known_references.values())}
        local = {digest.sha256 for digest in list(self._known_files.values())}
        return tuple(sorted(self._known_blobs | archived | local))

    def find_blob(self, sha256: str, size_bytes: int) -> Path | None:
        """The blob, unless it is missing or has another size than it must have. One that was cut is dropped."""
        path = self.blobs / sha256
        try:
            found = path.lstat()
        except FileNotFoundError:
            self.forget(frozenset((sha256,)))
            return None
        if not stat.S_ISREG(found.st_mode):
            # A link may lead anywhere: what it points at is no business of this cache.
            logger.warning("cached blob %s must be a file and is none; dropped", sha256)
            self.remove_blob(sha256)
            return None
        if found.st_size != size_bytes and self.stamps.matches(sha256, path):
            # As it was when its content was hashed: who asks has the wrong size, and others need the blob.
            return None
        if found.st_size != size_bytes:
            logger.warning("cached blob %s must have %d bytes and has %d; dropped", sha256, size_bytes, found.st_size)
            self.remove_blob(sha256)
            return None
        self._known_blobs.add(sha256)
        return path

    def install_blob(self, verified: Path, sha256: str, name: str = "") -> Path:
        """Move a file, fsynced and with this digest, to its place."""
        path = self.blobs / sha256
        verified.replace(path)
        sync_folder(self.blobs)
        self.stamps.add(sha256, path, name)
        self._known_blobs.add(sha256)
        return path

    def remove_blob(self, sha256: str) -> None:
        (self.blobs / sha256).unlink(missing_ok=True)
        self.stamps.remove(sha256)
        self.forget(frozenset((sha256,)))

    def add_blob(self, sha256: str, content: bytes, name: str = "") -> Path:
        """Keep content that has this digest. One that is here stays: sets have links to it. Blocking."""
        with self._adding:
            if (here := self.find_blob(sha256, len(content))) and self.stamps.matches(sha256, here):
                return here
            path = name_temporary(self.partial / sha256)
            try:
                write_atomically(path, content)
                return self.install_blob(path, sha256, name)
            finally:
                path.unlink(missing_ok=True)

    def install_set(self, artifact: ResolvedArtifact, blobs: Mapping[str, Path]) -> Path:
        """What an engine is given of an artifact of several files, from verified blobs. Blocking."""
        install_set(self.sets, artifact, blobs)
        # By the set's digest others can have it without its origin: the list says which files to ask for.
        listed = render_list(artifact.files)
        if artifact.sha256 and hashlib.sha256(listed).hexdigest() == artifact.sha256:
            self.add_blob(artifact.sha256, listed, f"files of {artifact.name}")
        self.add_reference(artifact, artifact.sha256 or "")
        path = find_set(self.sets, artifact)
        if path is None:
            raise FileNotFoundError(errno.ENOENT, "a file of it was removed meanwhile", str(self.sets))
        return path

    def find_artifact(self, artifact: ResolvedArtifact) -> Path | None:
        """The file on this disk, by its own digest or by a reference that an earlier fetch left."""
        if artifact.files:
            return find_set(self.sets, artifact)
        if artifact.sha256:
            return self.find_blob(artifact.sha256, artifact.size_bytes)
        key = reference_key(artifact)
        # Another process may have written it since the scan.
        reference = self._known_references.get(key) or _read_reference(self._references / f"{key}.json")
        if reference is None or (path := self.find_blob(reference.blob, artifact.size_bytes)) is None:
            return None
        self._known_references[key] = reference
        return path

    def missing_bytes(self, artifact: ResolvedArtifact) -> dict[str, int]:
        """What is yet to be written of each file of a set that isn't here, beside what a broken download left of it."""
        return self.missing_of({file.sha256: file.size_bytes for file in artifact.files})

    def missing_of(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The same of blobs, by their digests."""
        return {
            sha256: max(0, size_bytes - taken_by(self.partial / sha256))
            for sha256, size_bytes in sizes.items()
            if self.find_blob(sha256, size_bytes) is None
        }

    def find_source(self, source: str, sha256: str) -> tuple[ResolvedArtifact, Path] | None:
        """What an earlier fetch of this source, under this demanded digest, left here."""
        for reference in list(self._known_references.values()):
            if reference.artifact.source == source and (reference.artifact.sha256 or "") == sha256:
                path = self.find_artifact(reference.artifact)
                return (reference.artifact, path) if path else None
        return None

    def find_resolved(self, source: str, sha256: str) -> tuple[ResolvedArtifact, Path] | None:
        """The newest of what this source of a hub was resolved to and is here."""
        found: list[tuple[int, ResolvedArtifact]] = []
        for key, reference in list(self._known_references.items()):
            if reference.artifact.source == source and sha256 in ("", reference.artifact.sha256):
                try:
                    found.append((self._references.joinpath(f"{key}.json").stat().st_mtime_ns, reference.artifact))
                except FileNotFoundError:
                    # Another process removed it, with what it led to.
                    self._known_references.pop(key, None)
        for _, artifact in sorted(found, key=lambda each: each[0], reverse=True):
            if path := self.find_artifact(artifact):
                return artifact, path
        return None

    def add_reference(self, artifact: ResolvedArtifact, blob: str) -> None:
        reference = Reference(artifact=artifact, blob=blob)
        key = reference_key(artifact)
        write_atomically(self._references / f"{key}.json", reference.model_dump_json(by_alias=True).encode())
        self._known_references[key] = reference

    def ensure_reference(self, artifact: ResolvedArtifact, blob: str) -> None:
        """What is found without it, and named by it. A disk that refuses costs the name."""
        if reference_key(artifact) not in self._known_references:
            try:
                self.add_reference(artifact, blob)
            except OSError as error:
                logger.warning("where '%s' came from can't be noted in the cache: %s", artifact.name, error.strerror)

    def find_file_digest(self, path: str) -> FileDigest | None:
        """The remembered digest of a local file, if the file is unchanged."""
        digest = self._known_files.get(path)
        if digest is not None and not _is_unchanged(digest):
            self._known_files.pop(path, None)
            return None
        return digest

    def add_file_digest(self, digest: FileDigest) -> None:
        key = hashlib.sha256(digest.path.encode()).hexdigest()
        write_atomically(self._files / f"{key}.json", digest.model_dump_json(by_alias=True).encode())
        self._known_files[digest.path] = digest

    def read_references(self) -> dict[Path, Reference]:
        """By their files, from the disk: other processes write there too. Blocking."""
        found = {path: _read_reference(path) for path in sorted(self._references.glob("*.json"))}
        return {path: reference for path, reference in found.items() if reference is not None}

    def used_at(self, sha256: str) -> float:
        """When a blob was last used, seconds since the epoch; as old as it is where nothing says."""
        try:
            return self.stamps.used_at(sha256) or (self.blobs / sha256).lstat().st_mtime
        except OSError:
            return 0.0

    def forget(self, digests: frozenset[str]) -> None:
        """These were removed from the disk, with what refers to them."""
        self._known_blobs -= digests
        for key in [key for key, reference in list(self._known_references.items()) if reference.blob in digests]:
            self._known_references.pop(key, None)

    def _observe_changes(self) -> tuple[int, int]:
        return _changed_at(self.blobs), _changed_at(self._references)

    def _follow(self) -> None:
        """What other processes put there or took, since it was looked at last: names only, and new references."""
        found = self._observe_changes()
        if found == self._looked_at:
            return
        self._looked_at = _settle(found)
        self._known_blobs = {path.name for path in list_folder(self.blobs) if is_digest(path.name)}
        there = {path.stem: path for path in list_folder(self._references) if path.suffix == ".json"}
        for key in self._known_references.keys() - there.keys():
            self._known_references.pop(key, None)
        for key in there.keys() - self._known_references.keys():
            if (reference := _read_reference(there[key])) and self._is_here(reference):
                self._known_references[key] = reference

    def _is_here(self, reference: Reference) -> bool:
        if reference.artifact.files:
            return (self.sets / reference.blob).is_dir()
        return reference.blob in self._known_blobs


def _settle(changed_at: tuple[int, int]) -> tuple[int, int] | None:
    """What to compare with later, taken before it is looked at. None: another change would leave the same time."""
    now = time.time_ns()
    return None if any(abs(now - at) < _TICK_NS for at in changed_at) else changed_at


def _changed_at(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _read_reference(path: Path) -> Reference | None:
    try:
        return Reference.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        # Lost or half a file from another version: the artifact is fetched again.
        return None


def _read_file_digest(path: Path) -> FileDigest | None:
    try:
        return FileDigest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _is_unchanged(digest: FileDigest) -> bool:
    try:
        found = Path(digest.path).stat()
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns, found.st_ino) == (digest.size_bytes, digest.modified_ns, digest.inode)
