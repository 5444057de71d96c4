"""`file://` sources: used where they are, never copied.

Their digest is what the Model asks for, or else computed once and remembered for this path, size, time and inode. That
is as much as a file that others may write can promise: it is checked again whenever any of these has changed.
"""

import asyncio
import hashlib
import os
import stat
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

from covey_api.model import ResolvedArtifact

from covey_agent.artifacts.cache import Cache, FileDigest
from covey_agent.artifacts.disk import run_to_end
from covey_agent.artifacts.header import Header, find_unmeasured, read_geometry
from covey_agent.artifacts.web import corrupt, unavailable
from covey_agent.ports import OnTransfer, Transfer

# One step of hashing: between steps the thread looks whether it should stop. Larger ones are no faster, and the agent
# would keep what two of them took.
_CHUNK_BYTES = 1024 * 1024


class LocalFiles:
    """Files of this machine, by path."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._hashing: dict[str, asyncio.Future[FileDigest]] = {}
        self._closing = threading.Event()

    def close(self) -> None:
        """Hashing that still runs ends at its next step."""
        self._closing.set()

    async def read_header(self, source: str, path: str, sha256: str) -> tuple[ResolvedArtifact, Header]:
        found = await run_to_end(_observe_file, path)
        geometry = await find_unmeasured(read_geometry(read_pieces(path), found.st_size, f"file '{path}'"))
        artifact = ResolvedArtifact(
            source=source,
            name=Path(path).name[:255],
            size_bytes=found.st_size,
            sha256=sha256 or await self.observe_digest(path),
        )
        return artifact, geometry

    async def fetch(self, artifact: ResolvedArtifact, path: str, on_transfer: OnTransfer) -> Path:
        """The file itself, once its content is known to be the artifact's."""
        digest = await self.observe_digest(path)
        if digest != artifact.sha256:
            raise corrupt(
                f"file '{path}' must have sha256 {artifact.sha256}; it has {digest}. Put the right file there, or "
                "change the Model's source or sha256."
            )
        on_transfer(Transfer(artifact.size_bytes, artifact.size_bytes, 0))
        return Path(path)

    async def observe_digest(self, path: str) -> str:
        """sha256 of the file. Whoever is cancelled while it is computed leaves it running for the next who asks."""
        if known := self._cache.find_file_digest(path):
            return known.sha256
        await run_to_end(_observe_file, path)
        if (work := self._hashing.get(path)) is None:
            work = asyncio.get_running_loop().run_in_executor(None, _hash_file, path, self._closing)
            self._hashing[path] = work
            work.add_done_callback(lambda done: self._finish(path, done))
        return (await asyncio.shield(work)).sha256

    def _finish(self, path: str, done: asyncio.Future[FileDigest]) -> None:
        del self._hashing[path]
        if not done.cancelled() and done.exception() is None:
            self._cache.add_file_digest(done.result())


async def read_pieces(path: str) -> AsyncGenerator[bytes]:
    """The file's content from its start."""
    offset = 0
    while piece := await run_to_end(_read_piece, path, offset):
        yield piece
        offset += len(piece)


def _read_piece(path: str, offset: int) -> bytes:
    with Path(path).open("rb") as file:
        return os.pread(file.fileno(), 1024 * 1024, offset)


def open_file(path: str) -> int:
    """A descriptor of a regular, readable file; AgentError with words otherwise. Never waits, whatever is there."""
    try:
        # Not blocking: opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else "not a path"
        raise unavailable(
            f"file '{path}' can't be opened on this node: {words}. It must be there and readable by the agent's user."
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise unavailable(f"'{path}' must be a regular file on this node; it is something else (a folder or a device).")
    return descriptor


def _observe_file(path: str) -> os.stat_result:
    """A regular, readable, non-empty file; AgentError with words otherwise."""
    descriptor = open_file(path)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if found.st_size == 0:
        raise corrupt(f"file '{path}' is empty.")
    return found


def _hash_file(path: str, closing: threading.Event) -> FileDigest:
    before = _observe_file(path)
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while piece := file.read(_CHUNK_BYTES):
                digest.update(piece)
                if closing.is_set():
                    raise unavailable(f"file '{path}' was not read to its end: the agent stops.")
    except OSError as error:
        raise unavailable(f"file '{path}' can't be read: {error.strerror}.") from error
    after = _observe_file(path)
    if (before.st_size, before.st_mtime_ns, before.st_ino) != (after.st_size, after.st_mtime_ns, after.st_ino):
        raise unavailable(f"file '{path}' changed while it was read. Write it under another name and rename it.")
    return FileDigest(
        path=path,
        size_bytes=after.st_size,
        modified_ns=after.st_mtime_ns,
        inode=after.st_ino,
        sha256=digest.hexdigest(),
    )
