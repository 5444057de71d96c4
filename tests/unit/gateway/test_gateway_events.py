"""Streams are cut at ends of events, whatever the pieces they come in."""

from itertools import pairwise

import pytest
from covey_gateway.limits import MAX_EVENT_BYTES
from covey_gateway.wire.sse import EventBuffer, EventTooLong, split_data
from hypothesis import given
from hypothesis import strategies as st

STREAM = b'data: {"a":"x"}\n\n: comment\n\ndata: {"b":"\xc3\xa9"}\n\ndata: [DONE]\n\n'


def test_a_whole_event_passes_as_the_same_object() -> None:
    piece = b'data: {"a":1}\n\n'
    assert EventBuffer().feed(piece) is piece


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=12), st.booleans())
def test_any_cut_of_a_stream_gives_whole_events_and_all_bytes(cuts: list[int], has_crlf: bool) -> None:
    stream = STREAM.replace(b"\n", b"\r\n") if has_crlf else STREAM
    buffer = EventBuffer()
    ends = [0, *sorted(cuts), len(stream)]
    passed = [buffer.feed(stream[a:b]) for a, b in pairwise(ends)]
    assert b"".join(passed) == stream
    assert all(not piece or piece.endswith((b"\n\n", b"\r\n\r\n")) for piece in passed)
    assert buffer.is_done


def test_a_stream_without_its_end_mark_is_not_done() -> None:
    buffer = EventBuffer()
    assert buffer.feed(b'data: {"a":1}\n\ndata: {"b"') == b'data: {"a":1}\n\n'
    assert not buffer.is_done


def test_the_end_mark_as_text_of_an_event_is_not_the_end() -> None:
    buffer = EventBuffer()
    buffer.feed(b'data: {"content":"data: [DONE]"}\n\n')
    assert not buffer.is_done


def test_bytes_after_the_end_mark_leave_it_the_end() -> None:
    buffer = EventBuffer()
    buffer.feed(b"data: [DONE]\n\n")
    buffer.feed(b"\n")
    assert buffer.is_done


def test_an_event_without_end_is_bounded() -> None:
    buffer = EventBuffer()
    buffer.feed(b"x" * MAX_EVENT_BYTES)
    with pytest.raises(EventTooLong):
        buffer.feed(b"x")


def test_data_of_events_is_found_in_both_spellings() -> None:
    assert list(split_data(b"data: 1\r\n\r\ndata:2\n\nevent: x\nerror: 3\n\n: data: 4\n\n")) == [b"1", b"2", b"3"]
