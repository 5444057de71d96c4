"""Whether what is in the cache is still what was verified: at a glance where nothing touched it, else by content."""

import asyncio
import errno
import hashlib
import logging
import stat
import threading
from dataclasses import dataclass
from pathlib import Path

from covey_api.model import ResolvedArtifact

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.web import corrupt

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1024 * 1024
# What fails a read of any file says nothing of this one.
_NOT_ITS_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


async def find_verified(cache: Cache, sha256: str, size_bytes: int) -> Path | None:
    """The blob, if it is here. One that was touched since it was verified is hashed, and dropped if it changed."""
    path = cache.find_blob(sha256, size_bytes)
    if path is None:
        await asyncio.to_thread(_refuse_other_size, cache, sha256, size_bytes)
        return None
    try:
        is_fine = await asyncio.to_thread(cache.stamps.matches, sha256, path) or await check_blob(cache, sha256, path)
    except FileNotFoundError:
        is_fine = False  # another process removed it
    if not is_fine:
        return None
    cache.stamps.touch(sha256)
    return path


async def find_verified_artifact(cache: Cache, artifact: ResolvedArtifact) -> Path | None:
    """What an engine would be given, if all of it is here and untouched."""
    path = cache.find_artifact(artifact)
    if path is None:
        return None
    if not artifact.files:
        return await find_verified(cache, path.name, artifact.size_bytes)
    folder = cache.sets / (artifact.sha256 or "")
    if not await asyncio.to_thread(_is_untouched, cache, artifact, folder):
        # Its blobs tell which file it is, and give another.
        return None
    for file in artifact.files:
        cache.stamps.touch(file.sha256)
    return path


def _refuse_other_size(cache: Cache, sha256: str, size_bytes: int) -> None:
    """AgentError where the verified blob is here: nothing else has its digest, so no fetch could bring another."""
    path = cache.blobs / sha256
    stamp = cache.stamps.find(sha256)
    if stamp is not None and stamp.size_bytes != size_bytes and cache.stamps.matches(sha256, path):
        raise corrupt(
            f"A file of {size_bytes} bytes must have sha256 {sha256}; that is the sha256 of a file of "
            f"{stamp.size_bytes} bytes{f' that is here, {stamp.name!r}' if stamp.name else ' that is here'}, so it is "
            "another file's. Nothing was installed. Change the Model's sha256 or source."
        )


def _is_untouched(cache: Cache, artifact: ResolvedArtifact, folder: Path) -> bool:
    """A copy, where the file system has no links, has its own inode."""
    return all(cache.stamps.matches(file.sha256, folder / file.name, is_link=False) for file in artifact.files)


async def check_blob(cache: Cache, sha256: str, path: Path) -> bool:
    """Read a blob whole; drop it unless its content is what its name says. FileNotFoundError when it is gone."""
    stopping = threading.Event()
    try:
        found = await asyncio.to_thread(hash_file, path, stopping)
    except asyncio.CancelledError:
        stopping.set()
        raise
    except OSError as error:
        if isinstance(error, FileNotFoundError) or error.errno in _NOT_ITS_FAULT:
            raise
        logger.warning("cached blob %s can't be read: %s; dropped", sha256, error.strerror)
        _drop(cache, sha256)
        return False
    if found != sha256:
        logger.warning("cached blob %s was changed on the disk: it has sha256 %s; dropped", sha256, found)
        _drop(cache, sha256)
        return False
    stamp = cache.stamps.find(sha256)
    cache.stamps.add(sha256, path, stamp.name if stamp else "")
    return True


def _drop(cache: Cache, sha256: str) -> None:
    """A disk that keeps it costs nothing more: a file that is fetched anew takes its place."""
    try:
        cache.remove_blob(sha256)
    except OSError as error:
        logger.warning("cached blob %s can't be removed: %s", sha256, error.strerror)


@dataclass(frozen=True, slots=True)
class Copy:
    """A file of a set that is no link to a blob which is here: where the file system has none, or the blob is gone."""

    path: Path
    sha256: str


def find_copies(cache: Cache) -> list[Copy]:
    """Blocking."""
    found: dict[Path, str] = {}
    for reference in cache.read_references().values():
        folder = cache.sets / (reference.artifact.sha256 or "")
        for file in reference.artifact.files:
            path, blob = folder / file.name, cache.blobs / file.sha256
            if path.parent == folder and _is_lone(path, blob):
                found[path] = file.sha256
    return [Copy(path, sha256) for path, sha256 in sorted(found.items())]


def _is_lone(path: Path, blob: Path) -> bool:
    try:
        if not stat.S_ISREG((own := path.lstat()).st_mode) or path.parent.is_symlink():
            return False
    except OSError:
        return False
    try:
        return own.st_ino != blob.lstat().st_ino
    except OSError:
        return True


def check_copy(copy: Copy) -> bool:
    """Read it whole; drop it unless its content is what it must be: the set is then made anew. Blocking."""
    try:
        found = hash_file(copy.path, threading.Event())
    except OSError as error:
        if isinstance(error, FileNotFoundError) or error.errno in _NOT_ITS_FAULT:
            raise
        found = ""
    if found == copy.sha256:
        return True
    try:
        copy.path.unlink()
    except OSError as error:
        logger.warning("'%s' can't be removed: %s", copy.path, error.strerror)
    return False


def hash_file(path: Path, stopping: threading.Event) -> str:
    """sha256 of a file; of no use once it was told to stop."""
    digest, buffer = hashlib.sha256(), bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while (count := file.readinto(buffer)) and not stopping.is_set():
            digest.update(view[:count])
    return digest.hexdigest()
