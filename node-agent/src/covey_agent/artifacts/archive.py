"""ZIP archives, as far as wheels need them: pure readers of their structures, with a bound on everything.

The standard library's zipfile wants a seekable file and trusts it; here the archive is at the far end of range requests
and nothing in it is trusted. The same readers serve the extraction of a whole archive on disk, so that the file whose
header was read and the file that is installed are found in the same way.

Refused rather than interpreted: encryption, multi-disk archives, bytes before the archive, names that leave the folder,
two members of one name, symbolic links, methods other than stored and deflated.
"""

import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")

LOCAL_BYTES = _LOCAL.size
# The end record with the longest comment, and the zip64 records before it.
TAIL_BYTES = _END.size + 0xFFFF + _END64_LOCATOR.size + _END64.size
# PyTorch's wheel, one of the largest, has 13,000 members and a directory of 1.5 MB.
MAX_ENTRIES = 200_000
MAX_DIRECTORY_BYTES = 32 * 1024 * 1024
# Deflate can't do better than 1032 to 1: a larger claim is a lie.
_MAX_RATIO = 1032

_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_UTF8 = 0x800
_ZIP64 = 0xFFFFFFFF


class ArchiveInvalid(Exception):
    """The bytes are not an archive that is read here; says what was found."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Where the central directory is."""

    offset: int
    size_bytes: int
    entries: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One member, as the central directory describes it."""

    name: str
    method: int
    crc: int
    compressed_bytes: int
    size_bytes: int
    offset: int
    """Of its local header."""
    limit: int
    """Where the archive's data ends and its directory begins."""


def parse_end(tail: bytes, archive_bytes: int) -> Directory:
    """The directory's place, from the last `TAIL_BYTES` (or all) of the archive."""
    at = len(tail)
    while (at := tail.rfind(b"PK\x05\x06", 0, at)) >= 0:
        if len(tail) - at >= _END.size and len(tail) - at == _END.size + _END.unpack_from(tail, at)[7]:
            break
    if at < 0:
        raise ArchiveInvalid("it has no end-of-directory record, so it is not a whole ZIP archive")
    _, disk, first_disk, entries_here, entries, size_bytes, offset, _ = _END.unpack_from(tail, at)
    end = archive_bytes - len(tail) + at
    locator = at - _END64_LOCATOR.size
    if 0xFFFF in (entries, disk) or _ZIP64 in (size_bytes, offset) or tail[max(0, locator) : at][:4] == b"PK\x06\x07":
        disk, first_disk, entries_here, entries, size_bytes, offset, end = _parse_end64(tail, locator, archive_bytes)
    if disk or first_disk or entries_here != entries:
        raise ArchiveInvalid("it is one part of a split archive")
    if entries > MAX_ENTRIES or size_bytes > MAX_DIRECTORY_BYTES or entries * _ENTRY.size > size_bytes:
        raise ArchiveInvalid(f"its directory claims {entries} members in {size_bytes} bytes")
    if offset + size_bytes != end:
        raise ArchiveInvalid(f"its directory must end at byte {end}; it claims bytes {offset} to {offset + size_bytes}")
    return Directory(offset, size_bytes, entries)


def _parse_end64(tail: bytes, locator: int, archive_bytes: int) -> tuple[int, int, int, int, int, int, int]:
    if locator < 0 or tail[locator : locator + 4] != b"PK\x06\x07":
        raise ArchiveInvalid("its zip64 locator is missing")
    offset64 = _END64_LOCATOR.unpack_from(tail, locator)[2]
    start = offset64 - (archive_bytes - len(tail))
    if start < 0 or start + _END64.size > locator or tail[start : start + 4] != b"PK\x06\x06":
        raise ArchiveInvalid("its zip64 end-of-directory record is not where its locator says")
    _, _, _, _, disk, first_disk, entries_here, entries, size_bytes, offset = _END64.unpack_from(tail, start)
    return disk, first_disk, entries_here, entries, size_bytes, offset, offset64


def parse_directory(data: bytes, directory: Directory) -> dict[str, Entry]:
    """All members by name."""
    if len(data) != directory.size_bytes:
        raise ArchiveInvalid(f"its directory must have {directory.size_bytes} bytes; got {len(data)}")
    entries: dict[str, Entry] = {}
    at = 0
    for _ in range(directory.entries):
        entry, at = _parse_entry(data, at, directory)
        if entry.name in entries:
            raise ArchiveInvalid(f"it has two members named '{entry.name}'")
        entries[entry.name] = entry
    return entries


def _parse_entry(data: bytes, at: int, directory: Directory) -> tuple[Entry, int]:
    if at + _ENTRY.size > len(data) or data[at : at + 4] != b"PK\x01\x02":
        raise ArchiveInvalid(f"its directory is cut off or damaged at byte {at}")
    fields = _ENTRY.unpack_from(data, at)
    _, _, _, flags, method, _, _, crc, compressed_bytes, size_bytes, name_bytes, extra_bytes, comment_bytes = fields[
        :13
    ]
    attributes, offset = fields[15], fields[16]
    names_at = at + _ENTRY.size
    end = names_at + name_bytes + extra_bytes + comment_bytes
    if end > len(data):
        raise ArchiveInvalid(f"its directory is cut off at byte {at}")
    name = _decode_name(data[names_at : names_at + name_bytes], flags)
    extra = data[names_at + name_bytes : names_at + name_bytes + extra_bytes]
    size_bytes, compressed_bytes, offset = _widen(extra, name, size_bytes, compressed_bytes, offset)
    entry = Entry(name, method, crc, compressed_bytes, size_bytes, offset, directory.offset)
    _check_entry(entry, flags, attributes >> 16)
    return entry, end


def _decode_name(raw: bytes, flags: int) -> str:
    try:
        name = raw.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise ArchiveInvalid("the name of a member is not UTF-8") from None
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or name.startswith("/") or ".." in parts or ":" in parts[0]:
        raise ArchiveInvalid(f"the name of a member leaves the archive's folder: {name[:200]!r}")
    return name


def _widen(extra: bytes, name: str, size_bytes: int, compressed_bytes: int, offset: int) -> tuple[int, int, int]:
    """Sizes and offset with zip64's wide values in place of those that are all ones."""
    values = [size_bytes, compressed_bytes, offset]
    if _ZIP64 not in values:
        return size_bytes, compressed_bytes, offset
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            wide = [index for index, value in enumerate(values) if value == _ZIP64]
            if length < 8 * len(wide) or at + 4 + length > len(extra):
                break
            for position, index in enumerate(wide):
                (values[index],) = struct.unpack_from("<Q", extra, at + 4 + 8 * position)
            return values[0], values[1], values[2]
        at += 4 + length
    raise ArchiveInvalid(f"zip64 sizes of member '{name}' are missing")


def _check_entry(entry: Entry, flags: int, mode: int) -> None:
    found = f"member '{entry.name}'"
    if flags & _ENCRYPTED:
        raise ArchiveInvalid(f"{found} is encrypted")
    if stat.S_ISLNK(mode):
        raise ArchiveInvalid(f"{found} is a symbolic link")
    if entry.method not in (_STORED, _DEFLATED):
        raise ArchiveInvalid(f"{found} is compressed by method {entry.method}; only stored and deflated are read")
    if entry.offset + LOCAL_BYTES + entry.compressed_bytes > entry.limit:
        raise ArchiveInvalid(f"{found} claims bytes beyond the archive's data")
    if entry.method == _STORED and entry.size_bytes != entry.compressed_bytes:
        raise ArchiveInvalid(f"{found} is stored and claims two sizes")
    if entry.size_bytes > entry.compressed_bytes * _MAX_RATIO:
        raise ArchiveInvalid(f"{found} claims to grow from {entry.compressed_bytes} to {entry.size_bytes} bytes")


def parse_local(data: bytes, entry: Entry) -> int:
    """Length of the local header at `entry.offset`, from its first `LOCAL_BYTES`: the member's data follows it."""
    if len(data) < LOCAL_BYTES or data[:4] != b"PK\x03\x04":
        raise ArchiveInvalid(f"member '{entry.name}' has no local header where the directory says")
    fields = _LOCAL.unpack_from(data)
    if fields[3] != entry.method:
        raise ArchiveInvalid(f"directory and local header of member '{entry.name}' differ")
    header_bytes = LOCAL_BYTES + fields[9] + fields[10]
    if entry.offset + header_bytes + entry.compressed_bytes > entry.limit:
        raise ArchiveInvalid(f"member '{entry.name}' claims bytes beyond the archive's data")
    return header_bytes


class Inflater:
    """Turns a member's stored bytes into its content, piece by piece and never more than it claims to have."""

    def __init__(self, entry: Entry, piece_bytes: int) -> None:
        self._entry = entry
        self._piece_bytes = piece_bytes
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS) if entry.method == _DEFLATED else None
        self._crc = 0
        self.done_bytes = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The content that these bytes hold, in pieces of at most `piece_bytes`."""
        if self._inflate is None:
            yield self._count(data)
            return
        while not self._inflate.eof:
            try:
                piece = self._inflate.decompress(data, self._piece_bytes)
            except zlib.error as error:
                raise ArchiveInvalid(f"member '{self._entry.name}' is damaged: {error}") from error
            data = self._inflate.unconsumed_tail
            yield self._count(piece)
            # A full piece may leave more output inside zlib, also when all input is taken.
            if not data and len(piece) < self._piece_bytes:
                return

    def _count(self, piece: bytes) -> bytes:
        self.done_bytes += len(piece)
        if self.done_bytes > self._entry.size_bytes:
            raise ArchiveInvalid(
                f"member '{self._entry.name}' has more than the {self._entry.size_bytes} bytes it claims"
            )
        self._crc = zlib.crc32(piece, self._crc)
        return piece

    def check_end(self) -> None:
        """All of the member was fed: size and checksum must be those of the directory."""
        if self._inflate is not None and not self._inflate.eof:
            raise ArchiveInvalid(f"member '{self._entry.name}' is cut off")
        if self.done_bytes != self._entry.size_bytes:
            raise ArchiveInvalid(
                f"member '{self._entry.name}' claims {self._entry.size_bytes} bytes; it has {self.done_bytes}"
            )
        if self._crc != self._entry.crc:
            raise ArchiveInvalid(
                f"member '{self._entry.name}' has checksum {self._crc:08x}; the directory says {self._entry.crc:08x}"
            )
