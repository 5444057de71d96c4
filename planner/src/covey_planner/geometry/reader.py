"""A bounds-checked cursor over the first bytes of a file, and the two ways in which a header can be unusable.

It owns the limits that make reading a hostile header cheap: no allocation by a number that was read, no loop longer
than the limits below. It must not know what the fields mean. A cursor over one buffer was preferred to a stream: the
caller reads ranges over a network, so the parser can only ask for a longer prefix and start again.
"""

import struct

# Longest header that is read. The largest known ones (a vocabulary of 262 thousand, a long chat template) take 16 MiB.
MAX_HEADER_BYTES = 64 * 1024 * 1024
# First step of a growing prefix: a range request costs more than these bytes.
MIN_PREFIX_BYTES = 64 * 1024
# Names and other texts that are decoded. llama.cpp cuts tensor names at 64 bytes, keys at 65,535.
MAX_NAME_BYTES = 1024

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class HeaderInvalid(Exception):
    """The header can't be used: the message names the field, what was found, what must hold and the offset."""


class GeometryUnmeasured(HeaderInvalid):
    """Nothing is wrong with the header, but nobody has measured what such a model takes: a person may say it."""


def unmeasured(wrong: Exception | str) -> GeometryUnmeasured:
    """With what a person can do about it."""
    return GeometryUnmeasured(f"{wrong}; give `spec.geometry` to place it all the same")


class HeaderIncomplete(Exception):
    """The prefix ends inside the header. `at_least_bytes`: how long the next prefix should be."""

    def __init__(self, at_least_bytes: int) -> None:
        super().__init__(f"the header is longer than the bytes given; read at least {at_least_bytes} bytes")
        self.at_least_bytes = at_least_bytes


class Reader:
    """Position in a prefix of a file of `file_bytes`."""

    __slots__ = ("_data", "_end", "file_bytes", "position")

    def __init__(self, prefix: bytes | memoryview, file_bytes: int) -> None:
        self._data = memoryview(prefix)
        self._end = min(len(self._data), file_bytes)
        self.file_bytes = file_bytes
        self.position = 0

    def require(self, count: int, field: str) -> int:
        """Offset of the next `count` bytes, which must be in the file, the header's limit and the prefix."""
        start = self.position
        end = start + count
        if end <= self._end:
            return start
        if end > self.file_bytes:
            raise HeaderInvalid(f"{field} must end within the file's {self.file_bytes} bytes; got end {end}{at(start)}")
        if end > MAX_HEADER_BYTES:
            raise HeaderInvalid(f"{field} must end within the first {MAX_HEADER_BYTES} bytes; got end {end}{at(start)}")
        wanted = max(end, 2 * self._end, MIN_PREFIX_BYTES)
        raise HeaderIncomplete(min(wanted, self.file_bytes, MAX_HEADER_BYTES))

    def skip(self, count: int, field: str) -> None:
        self.require(count, field)
        self.position += count

    def u32(self, field: str) -> int:
        start = self.require(4, field)
        self.position = start + 4
        return _U32.unpack_from(self._data, start)[0]

    def u64(self, field: str) -> int:
        start = self.require(8, field)
        self.position = start + 8
        return _U64.unpack_from(self._data, start)[0]

    def values(self, layout: struct.Struct, field: str) -> tuple[int | float | bool, ...]:
        """Numbers of one fixed layout, as `struct` unpacks them."""
        start = self.require(layout.size, field)
        self.position = start + layout.size
        return layout.unpack_from(self._data, start)

    def text(self, field: str, max_bytes: int = MAX_NAME_BYTES) -> str:
        """A length-prefixed UTF-8 text."""
        length = self.u64(field)
        if length > max_bytes:
            raise HeaderInvalid(f"{field} must be at most {max_bytes} bytes long; got {length}{at(self.position)}")
        start = self.require(length, field)
        self.position = start + length
        try:
            return str(self._data[start : start + length], "utf-8")
        except UnicodeDecodeError:
            raise HeaderInvalid(f"{field} must be UTF-8{at(start)}") from None

    def skip_text(self, field: str) -> None:
        self.skip(self.u64(field), field)

    def skip_texts(self, count: int, field: str) -> None:
        """Step over `count` texts without making any: vocabularies have hundreds of thousands."""
        self._refuse_beyond_file(count * 8, field)
        data, end, position, unpack = self._data, self._end, self.position, _U64.unpack_from
        for _ in range(count):
            if position + 8 > end:
                break
            following = position + 8 + unpack(data, position)[0]
            if following > end:
                break
            position = following
        else:
            self.position = position
            return
        self.position = position
        self.skip_text(field)  # raises: the prefix or the file ends inside this text

    def skip_array(self, count: int, element_bytes: int, field: str) -> None:
        self.skip(count * element_bytes, field)

    def _refuse_beyond_file(self, least_bytes: int, field: str) -> None:
        limit = min(self.file_bytes, MAX_HEADER_BYTES)
        if self.position + least_bytes > limit:
            found = f"at least {least_bytes} bytes{at(self.position)}"
            raise HeaderInvalid(f"{field} must end within the first {limit} bytes; got {found}")


def at(offset: int) -> str:
    """Where something was found, as messages say it."""
    return f" (at byte {offset})"
