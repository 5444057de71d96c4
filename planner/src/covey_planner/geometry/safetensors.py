"""The directory of a safetensors file, and the index over several: names, types, shapes and that the file holds them.

A file begins with the length of its directory (8 bytes, little-endian), then the directory as JSON. It must not know
what the tensors are for.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey_planner.geometry.json_fields import Fields, parse_object
from covey_planner.geometry.reader import MIN_PREFIX_BYTES, HeaderIncomplete, HeaderInvalid, at

# Longest directory that is read. One entry takes some 130 bytes, so it holds the tensors that are allowed; the
# format itself allows 100 MB, of which Python's parser may make gigabytes (measured: 27 times the text).
MAX_DIRECTORY_BYTES = 10 * 1024 * 1024
MAX_TENSORS = 65_536
# Of all files of a model: with a tensor and its scales for each expert, the largest known have some 210 thousand, which
# an index lists in 20 MB.
MAX_MODEL_TENSORS = 1 << 18
MAX_INDEX_BYTES = 32 * 1024 * 1024
# An index is one flat list: objects and lists within it, which take many times their text, are a few at most.
_MAX_INDEX_PARTS = 64
_MAX_INDEX_ENTRIES = MAX_MODEL_TENSORS + 1024
# Files of one model; the largest known sets have some hundred and sixty.
MAX_FILES = 1024
_MAX_DIMENSIONS = 8
_MAX_LENGTH = 1 << 48
_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"
# Bits of one element.
_BITS = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16},
    **{"BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "F4": 4, "F6_E2M3": 6},
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry: its type, its shape (slowest dimension first) and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def elements(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count


Directory = Mapping[str, Tensor]


def parse_directory(prefix: bytes | memoryview, file_bytes: int) -> Directory:
    """The directory of the file of `file_bytes` that begins with `prefix`.

    Raises HeaderIncomplete when a longer prefix is needed, HeaderInvalid when the file can't be used.
    """
    if file_bytes < _LENGTH.size:
        raise HeaderInvalid(f"the file must begin with the 8 bytes of its directory's length; it has {file_bytes}")
    if len(prefix) < _LENGTH.size:
        raise HeaderIncomplete(min(MIN_PREFIX_BYTES, file_bytes))
    length: int = _LENGTH.unpack_from(prefix)[0]
    most = min(file_bytes - _LENGTH.size, MAX_DIRECTORY_BYTES)
    if not 2 <= length <= most:
        raise HeaderInvalid(f"the directory must be 2 to {most} bytes long; got {length}{at(0)}")
    end = _LENGTH.size + length
    if len(prefix) < end:
        raise HeaderIncomplete(end)
    entries = parse_object(bytes(prefix[_LENGTH.size : end]), "the directory", MAX_DIRECTORY_BYTES)
    names = [name for name in entries if name != _METADATA]
    if len(names) > MAX_TENSORS:
        raise HeaderInvalid(f"the directory must have at most {MAX_TENSORS} tensors; got {len(names)}")
    found = {name: _parse_entry(entries.under(name), file_bytes - end) for name in names}
    total = sum(tensor.size_bytes for tensor in found.values())
    if end + total > file_bytes:
        raise HeaderInvalid(f"the file must have {end + total} bytes for all its tensors; got {file_bytes}: cut off?")
    return found


def parse_index(text: bytes) -> tuple[str, ...]:
    """Names of the files that `model.safetensors.index.json` lists, sorted; each lies beside the index."""
    if text.count(b"{") + text.count(b"[") > _MAX_INDEX_PARTS or text.count(b":") > _MAX_INDEX_ENTRIES:
        raise HeaderInvalid(f"the index must be one flat list of at most {MAX_MODEL_TENSORS} tensors; it is more")
    weights = parse_object(text, "the index", MAX_INDEX_BYTES).under("weight_map")
    names = {weights.text(tensor) for tensor in weights}
    if not 1 <= len(names) <= MAX_FILES:
        raise HeaderInvalid(f"`weight_map` must name 1 to {MAX_FILES} files; got {len(names)}")
    for name in names:
        if not name.endswith(".safetensors") or "/" in name or "\\" in name or not name.isprintable():
            raise HeaderInvalid("`weight_map` must name files beside the index that end in '.safetensors'")
    return tuple(sorted(names))


def merge_directories(directories: Sequence[Directory]) -> Directory:
    """All tensors of one model. A tensor that is there twice is refused."""
    found: dict[str, Tensor] = {}
    for directory in directories:
        for name, tensor in directory.items():
            if name in found:
                raise HeaderInvalid(f"tensor '{name[:80]}' must be in one file; it is in several")
            found[name] = tensor
        if len(found) > MAX_MODEL_TENSORS:
            raise HeaderInvalid(f"a model must have at most {MAX_MODEL_TENSORS} tensors; it has more")
    return found


def _parse_entry(entry: Fields, data_bytes: int) -> Tensor:
    dtype = entry.text("dtype")
    bits = _BITS.get(dtype)
    if bits is None:
        raise entry.wrong("dtype", f"one of {', '.join(sorted(_BITS))}", dtype)
    shape = entry.integers("shape", _MAX_DIMENSIONS, _MAX_LENGTH)
    elements = 1
    for length in shape:
        elements *= length
        if elements > _MAX_LENGTH:
            raise entry.wrong("shape", f"of at most {_MAX_LENGTH} elements", list(shape))
    begin, end = _offsets(entry, data_bytes)
    if (end - begin) * 8 != elements * bits:
        raise entry.wrong(
            "data_offsets", f"{elements * bits // 8} bytes apart, as {dtype} {list(shape)} is", end - begin
        )
    return Tensor(dtype, shape, end - begin)


def _offsets(entry: Fields, data_bytes: int) -> tuple[int, int]:
    offsets = entry.integers("data_offsets", 2, 1 << 62)
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
        raise entry.wrong("data_offsets", f"two ascending offsets within the file's {data_bytes} bytes", list(offsets))
    return offsets[0], offsets[1]
