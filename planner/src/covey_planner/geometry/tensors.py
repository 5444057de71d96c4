"""The tensor directory of a GGUF header: sizes of everything, and that the file really holds it."""

from dataclasses import dataclass

from covey_planner.geometry.reader import HeaderInvalid, Reader, at
from covey_planner.geometry.tensor_types import TENSOR_TYPES

# Files with one tensor per expert have some ten thousand.
MAX_TENSORS = 65_536
# ggml's own limit.
MAX_DIMENSIONS = 4
# Elements of one tensor: far beyond any model, small enough that no product grows without bound.
MAX_ELEMENTS = 1 << 48
_EMBEDDING = "token_embd.weight"
_OUTPUT = "output.weight"


@dataclass(frozen=True, slots=True)
class TensorSums:
    """What the tensors add up to. Sizes are as stored."""

    count: int
    weights_bytes: int
    parameter_count: int
    embedding_bytes: int
    embedding_rows: int
    embedding_repack_bytes: int
    matrix_repack_bytes: int
    has_output: bool
    end_offset: int
    """End of the last tensor, counted from the start of the data."""

    @property
    def repack_bytes(self) -> int:
        """Upper bound of what an engine adds when it lays matrices out for the CPU.

        An output matrix that shares the embedding's bytes in the file is then a second copy in memory.
        """
        shared = 0 if self.has_output else self.embedding_bytes + self.embedding_repack_bytes
        return self.matrix_repack_bytes + shared

    def __add__(self, other: "TensorSums") -> "TensorSums":
        return TensorSums(
            count=self.count + other.count,
            weights_bytes=self.weights_bytes + other.weights_bytes,
            parameter_count=self.parameter_count + other.parameter_count,
            embedding_bytes=self.embedding_bytes + other.embedding_bytes,
            embedding_rows=max(self.embedding_rows, other.embedding_rows),
            embedding_repack_bytes=self.embedding_repack_bytes + other.embedding_repack_bytes,
            matrix_repack_bytes=self.matrix_repack_bytes + other.matrix_repack_bytes,
            has_output=self.has_output or other.has_output,
            end_offset=max(self.end_offset, other.end_offset),
        )


def parse_tensors(reader: Reader, count: int) -> TensorSums:
    """The next `count` tensor entries, summed up."""
    if count > MAX_TENSORS:
        raise HeaderInvalid(f"the header must have at most {MAX_TENSORS} tensors; got {count}{at(reader.position)}")
    weights = parameters = embedding = rows = repack = end = embedding_repack = 0
    has_output = False
    for index in range(count):
        name = reader.text(f"name of tensor {index}")
        shape, elements, size, growth = _parse_entry(reader, name)
        end = max(end, reader.u64(f"offset of tensor '{name}'") + size)
        weights += size
        parameters += elements
        if name == _EMBEDDING:
            embedding, embedding_repack = size, growth
            rows = shape[1] if len(shape) > 1 else 0
        elif len(shape) == 2:
            repack += growth
        has_output = has_output or name == _OUTPUT
    return TensorSums(count, weights, parameters, embedding, rows, embedding_repack, repack, has_output, end)


def _parse_entry(reader: Reader, name: str) -> tuple[tuple[int, ...], int, int, int]:
    """Shape, elements, bytes and repacked growth of one tensor."""
    start = reader.position
    dimensions = reader.u32(f"dimensions of tensor '{name}'")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise HeaderInvalid(f"tensor '{name}' must have 1 to {MAX_DIMENSIONS} dimensions; got {dimensions}{at(start)}")
    shape = tuple(reader.u64(f"shape of tensor '{name}'") for _ in range(dimensions))
    elements = 1
    for length in shape:
        elements *= length
        if not 1 <= elements <= MAX_ELEMENTS:
            raise HeaderInvalid(f"tensor '{name}' must have 1 to {MAX_ELEMENTS} elements; got {shape}{at(start)}")
    number = reader.u32(f"type of tensor '{name}'")
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        raise HeaderInvalid(f"tensor '{name}' must have a known ggml type; got type {number}{at(reader.position - 4)}")
    if shape[0] % kind.elements:
        raise HeaderInvalid(
            f"tensor '{name}' must have rows of whole {kind.name} blocks ({kind.elements}); got {shape[0]}{at(start)}"
        )
    blocks = elements // kind.elements
    return shape, elements, blocks * kind.bytes, blocks * kind.repack_bytes
