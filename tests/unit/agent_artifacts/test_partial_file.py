"""A file that is on its way: what is there of it, and what is known of that after its process was killed."""

import hashlib
import json
import os
import random
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from covey_agent.artifacts.partial import PartialFile, Validators, join_span
from hypothesis import given
from hypothesis import strategies as st

CONTENT = random.Random(1).randbytes(1000)
SEEN = Validators(url="http://a/b", etag='"one"')


@contextmanager
def opened(path: Path, size_bytes: int = 1000) -> Generator[PartialFile]:
    """As a process finds it: all that can be hashed is."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        partial = PartialFile(descriptor, path)
        partial.open(size_bytes)
        while partial.take_up():
            pass
        yield partial
    finally:
        os.close(descriptor)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=12))
def test_spans_are_in_order_apart_and_what_was_joined(pieces: list[tuple[int, int]]) -> None:
    spans: tuple[tuple[int, int], ...] = ()
    wanted: set[int] = set()
    for start, count in pieces:
        spans = join_span(spans, start, start + count)
        wanted |= set(range(start, start + count))
    assert {byte for start, end in spans for byte in range(start, end)} == wanted
    assert all(before[1] < after[0] for before, after in pairwise(spans))


def test_parts_are_known_after_a_kill_and_the_rest_is_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "w"
    with opened(path) as partial:
        partial.note(SEEN)
        for start, end in ((500, 700), (0, 100), (900, 1000)):
            partial.put(CONTENT[start:end], start)
        # A kill here: nothing is closed or synced.
    with opened(path) as again:
        assert again.spans == ((0, 100), (500, 700), (900, 1000))
        assert (again.done_bytes, again.there_bytes, again.has_holes) == (100, 400, True)
        assert again.missing(1000) == [(100, 500), (700, 900)]
        assert again.digest() == hashlib.sha256(CONTENT[:100]).hexdigest()
        # One after the other, as other nodes give it: over what is there too.
        again.append(CONTENT[100:600])
        assert again.spans == ((0, 700), (900, 1000))
    with opened(path) as once_more:
        assert (once_more.done_bytes, once_more.missing(1000)) == (700, [(700, 900)])
        once_more.put(CONTENT[700:900], 700)
        while once_more.take_up():
            pass
        assert (once_more.done_bytes, once_more.missing(1000)) == (1000, [])
        assert once_more.digest() == hashlib.sha256(CONTENT).hexdigest()


def test_a_hole_is_noted_before_it_is_made(tmp_path: Path) -> None:
    """Else a kill between the two would leave a file that seems to be there up to its end."""
    path = tmp_path / "w"
    with opened(path) as partial:
        partial.note(SEEN)
        partial.append(CONTENT[:100])
        assert json.loads((tmp_path / "w.json").read_text())["spans"] is None
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "pwrite", _break)
            with pytest.raises(KeyboardInterrupt):
                partial.put(CONTENT[500:600], 500)
    with path.open("ab") as file:
        file.write(CONTENT[:50])
    with opened(path) as again:
        assert again.spans == ((0, 100),)


def _break(*_: object) -> int:
    raise KeyboardInterrupt


def test_what_grew_from_its_start_needs_no_notes_of_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(CONTENT[:300])
    with opened(tmp_path / "w") as partial:
        assert (partial.done_bytes, partial.spans, partial.has_holes) == (300, ((0, 300),), False)
    # As an older version wrote them.
    (tmp_path / "w.json").write_text('{"url": "http://a/b", "etag": "", "last_modified": ""}')
    with opened(tmp_path / "w") as partial:
        assert (partial.done_bytes, partial.validators and partial.validators.spans) == (300, None)


@pytest.mark.parametrize("spans", [[[0, 5000]], [[-5, 10]], [[10, 5]], [[400, 900]], []])
def test_notes_that_say_more_than_there_is_are_cut_to_it(tmp_path: Path, spans: list[list[int]]) -> None:
    (tmp_path / "w").write_bytes(CONTENT[:300])
    (tmp_path / "w.json").write_text(json.dumps({"url": "http://a/b", "spans": spans}))
    with opened(tmp_path / "w") as partial:
        assert all(0 <= start < end <= 300 for start, end in partial.spans)
        assert partial.done_bytes in (0, 300)
        assert partial.there_bytes + sum(end - start for start, end in partial.missing(1000)) == 1000
