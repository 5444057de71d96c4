"""One file inside a wheel: its header by ranges while the wheel is at the index, the whole of it once it is here.

Both ways find the member through the same readers (`archive`), so that what was looked at is what gets installed.
A forward scan of local headers, for servers without ranges, was left out: such an index can't serve large files well
either, and says so clearly here.
"""

import hashlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from covey_agent.artifacts.archive import (
    LOCAL_BYTES,
    TAIL_BYTES,
    ArchiveInvalid,
    Entry,
    Inflater,
    parse_directory,
    parse_end,
    parse_local,
)
from covey_agent.artifacts.disk import run_to_end
from covey_agent.artifacts.partial import CHUNK_BYTES
from covey_agent.artifacts.remote import RANGE_BYTES

# (offset, length) -> exactly those bytes.
ReadAt = Callable[[int, int], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an archive and where its data is."""

    entry: Entry
    data_offset: int


async def read_members(read_at: ReadAt, archive_bytes: int) -> dict[str, Entry]:
    """All members of an archive, from its end."""
    tail_bytes = min(TAIL_BYTES, archive_bytes)
    tail_at = archive_bytes - tail_bytes
    tail = await read_at(tail_at, tail_bytes)
    directory = parse_end(tail, archive_bytes)
    if directory.offset >= tail_at:
        data = tail[directory.offset - tail_at :][: directory.size_bytes]
    else:
        data = await read_at(directory.offset, directory.size_bytes)
    return parse_directory(data, directory)


async def locate_data(read_at: ReadAt, entry: Entry) -> Member:
    return Member(entry, entry.offset + parse_local(await read_at(entry.offset, LOCAL_BYTES), entry))


async def read_content(read_at: ReadAt, member: Member) -> AsyncGenerator[bytes]:
    """The member's content from its start, range by range: whoever has enough stops."""
    inflater = Inflater(member.entry, CHUNK_BYTES)
    at, end = member.data_offset, member.data_offset + member.entry.compressed_bytes
    while at < end:
        if not (data := await read_at(at, min(RANGE_BYTES, end - at))):
            raise ArchiveInvalid(f"it is cut off at byte {at}")
        at += len(data)
        for piece in inflater.feed(data):
            yield piece


class LocalArchive:
    """An archive on this disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size_bytes = path.stat().st_size

    async def read_at(self, offset: int, length: int) -> bytes:
        return await run_to_end(self._read, offset, length)

    def _read(self, offset: int, length: int) -> bytes:
        with self._path.open("rb") as file:
            return os.pread(file.fileno(), length, offset)


class Extraction:
    """Streams one member of an archive on disk into a descriptor; a step blocks for one piece."""

    def __init__(self, archive: Path, member: Member, descriptor: int) -> None:
        self._archive = archive
        self._member = member
        self._descriptor = descriptor
        self._hash = hashlib.sha256()

    async def run(self) -> str:
        """The content's sha256. ArchiveInvalid unless size and checksum are those of the directory."""
        with self._archive.open("rb") as source:
            steps = self._steps(source.fileno())
            while await run_to_end(next, steps, False):
                pass
            steps.close()
        return self._hash.hexdigest()

    def _steps(self, source: int) -> Generator[bool]:
        os.ftruncate(self._descriptor, 0)
        inflater = Inflater(self._member.entry, CHUNK_BYTES)
        at, end = self._member.data_offset, self._member.data_offset + self._member.entry.compressed_bytes
        written_bytes = 0
        while at < end:
            data = os.pread(source, min(CHUNK_BYTES, end - at), at)
            if not data:
                raise ArchiveInvalid(f"it is cut off at byte {at}")
            at += len(data)
            for piece in inflater.feed(data):
                self._hash.update(piece)
                written_bytes += _write_all(self._descriptor, piece, written_bytes)
                yield True
        inflater.check_end()
        os.fsync(self._descriptor)


def _write_all(descriptor: int, piece: bytes, offset: int) -> int:
    written = 0
    while written < len(piece):
        written += os.pwrite(descriptor, piece[written:], offset + written)
    return len(piece)
