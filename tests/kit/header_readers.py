"""One input for every reader of headers, and what may come of it: for fuzzing, and for what fuzzing has found."""

from collections.abc import Callable

from covey_planner.geometry.checkpoint import parse_checkpoint
from covey_planner.geometry.gguf import parse_gguf_geometry, parse_gguf_header
from covey_planner.geometry.reader import HeaderIncomplete, HeaderInvalid
from covey_planner.geometry.safetensors import parse_directory, parse_index

from kit.checkpoints import build_checkpoint
from kit.gguf import Shape

_MODEL = build_checkpoint(Shape(layers=2, vocabulary=300, embedding=64, heads=2, kv_heads=1))
# What the fuzzed config is held against, and a size beside which no header is short.
TENSORS = parse_directory(*_MODEL.files[0])
FILE_BYTES = 1 << 50

Reader = Callable[[bytes, int], object]


def _read_config(content: bytes, _: int) -> object:
    return parse_checkpoint(content, TENSORS)


def _read_index(content: bytes, _: int) -> object:
    return parse_index(content)


READERS: tuple[Reader, ...] = (parse_gguf_geometry, parse_gguf_header, parse_directory, _read_config, _read_index)


def read_input(content: bytes) -> None:
    """The first byte chooses the reader. Raises what no reader may raise, and AssertionError on a useless ask."""
    if not content:
        return
    reader, rest = READERS[content[0] % len(READERS)], content[1:]
    for file_bytes in (len(rest), FILE_BYTES):
        wanted = _wanted_bytes(reader, rest, file_bytes)
        assert wanted is None or len(rest) < wanted <= file_bytes, f"an ask for {wanted} bytes would not help"


def _wanted_bytes(reader: Reader, content: bytes, file_bytes: int) -> int | None:
    """How much it asks for; None when it has answered or refused."""
    try:
        reader(content, file_bytes)
    except HeaderInvalid:
        return None
    except HeaderIncomplete as incomplete:
        return incomplete.at_least_bytes
    return None
