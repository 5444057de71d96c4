"""Whatever bytes come, a header is read, asked for, or refused: quickly, and with nothing else raised."""

import struct
import time

from covey_planner.geometry.gguf import HeaderIncomplete, HeaderInvalid, parse_gguf_geometry
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.gguf import Shape, build_model

# Far above what any of these headers takes; a loop that follows an absurd count would take minutes.
LONGEST_SECONDS = 5.0
EXAMPLES = settings(max_examples=200, deadline=None)
WHOLE = build_model(Shape(layers=2, vocabulary=300, kv_heads=(1, 2)))


def outcome(prefix: bytes, file_bytes: int) -> str:
    """`read`, `more` or the refusal; fails the test on a hint that would not help."""
    start = time.process_time()
    wanted, result = None, "read"
    try:
        parse_gguf_geometry(prefix, file_bytes)
    except HeaderIncomplete as incomplete:
        wanted, result = incomplete.at_least_bytes, "more"
    except HeaderInvalid:
        result = "refused"
    assert time.process_time() - start < LONGEST_SECONDS
    assert wanted is None or min(len(prefix), file_bytes) < wanted <= file_bytes
    return result


@EXAMPLES
@given(st.binary(max_size=4096), st.integers(0, 2**63))
def test_any_bytes_are_answered(noise: bytes, file_bytes: int) -> None:
    outcome(noise, file_bytes)
    outcome(b"GGUF\x03\x00\x00\x00" + noise, file_bytes)


@EXAMPLES
@given(st.data())
def test_damaged_headers_are_answered(data: st.DataObject) -> None:
    header = bytearray(WHOLE.header)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(8, len(header) - 8))
        damage = data.draw(
            st.one_of(
                st.binary(min_size=1, max_size=8),
                st.integers(0, 2**64 - 1).map(lambda number: struct.pack("<Q", number)),
            )
        )
        header[position : position + len(damage)] = damage
    outcome(bytes(header), data.draw(st.sampled_from([WHOLE.file_bytes, 2**40])))


@EXAMPLES
@given(st.integers(0, len(WHOLE.header)))
def test_every_prefix_asks_for_more_until_the_directory_is_whole(length: int) -> None:
    assert outcome(WHOLE.header[:length], WHOLE.file_bytes) in ("more", "read")


@EXAMPLES
@given(st.integers(0, WHOLE.file_bytes - 1))
def test_every_shorter_file_is_refused(file_bytes: int) -> None:
    assert outcome(WHOLE.header, file_bytes) == "refused"
