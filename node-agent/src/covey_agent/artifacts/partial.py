"""A file that is on its way: what is there, the digest of that, and what the server said of it when it began.

Mostly it grows from its start. Where parts of it come at once it has holes: its notes say so before the first, and what
is there after each piece; where they say nothing, all up to its end is. A power cut may leave notes that say more than
the disk has: the digest at the end finds that.
"""

import hashlib
import os
import threading
from pathlib import Path

from covey_api.meta import Message
from pydantic import ValidationError

from covey_agent.artifacts.disk import name_temporary, write_atomically

# One write and one hash update: large enough that the hop to a thread costs nothing beside it.
CHUNK_BYTES = 1024 * 1024
# Read back in one hop to a thread: a cancelled download waits for no more than this.
TAKE_UP_BYTES = 16 * CHUNK_BYTES


class Validators(Message):
    """What the server said of the file when its first bytes came."""

    url: str
    etag: str = ""
    last_modified: str = ""
    spans: tuple[tuple[int, int], ...] | None = None
    """Of a file that has holes, or had: first byte of each piece that is there, and the one after its last, in order.
    None: it grew from its start."""

    @property
    def condition(self) -> str:
        """Value of `If-Range`: a strong validator, or nothing."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.last_modified

    def contradicts(self, other: "Validators") -> bool:
        return bool(self.url == other.url and self.etag and other.etag and self.etag != other.etag)


Spans = tuple[tuple[int, int], ...]


def join_span(spans: Spans, start: int, end: int) -> Spans:
    """With one more: in order, and none that touches another."""
    apart = [span for span in spans if span[1] < start or span[0] > end]
    touching = [span for span in spans if span[1] >= start and span[0] <= end]
    first, last = min([start, *(span[0] for span in touching)]), max([end, *(span[1] for span in touching)])
    return tuple(sorted([*apart, (first, last)]))


class PartialFile:
    """The partial file: grows, is hashed as it grows, can start over. Methods that touch the disk block.

    `put` may be called from several threads at once, all others from one at a time.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._notes = path.with_name(path.name + ".json")
        self._hash = hashlib.sha256()
        self.done_bytes = 0
        self.validators: Validators | None = None
        self.is_joined = False
        """True when not all bytes came over one connection."""
        self.spans: Spans = ()
        """What is there. The first `done_bytes` of it are hashed."""
        self._putting = threading.Lock()

    @property
    def there_bytes(self) -> int:
        return sum(end - start for start, end in self.spans)

    @property
    def has_holes(self) -> bool:
        return len(self.spans) > 1 or (bool(self.spans) and self.spans[0][0] > 0)

    def missing(self, size_bytes: int) -> list[tuple[int, int]]:
        """What isn't there of so many bytes, in order."""
        edges = [0, *(edge for span in self.spans for edge in span), size_bytes]
        return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]

    def open(self, size_bytes: int) -> None:
        """Look at what an earlier try left."""
        if os.fstat(self._descriptor).st_size > size_bytes:
            self.start_over()
        try:
            self.validators = Validators.model_validate_json(self._notes.read_bytes())
        except (OSError, ValidationError):
            self.validators = None
        noted = self.validators.spans if self.validators else None
        found_bytes = os.fstat(self._descriptor).st_size
        self.spans = ()
        for start, end in ((0, found_bytes),) if noted is None else noted:
            if 0 <= start < min(end, found_bytes):
                self.spans = join_span(self.spans, start, min(end, found_bytes))

    def take_up(self) -> bool:
        """Hash the next piece of what is there without a hole; False at its end."""
        first, end = self.spans[0] if self.spans else (0, 0)
        count = 0 if first else min(TAKE_UP_BYTES, end - self.done_bytes)
        piece = os.pread(self._descriptor, count, self.done_bytes)
        self._hash.update(piece)
        self.done_bytes += len(piece)
        self.is_joined = self.done_bytes > 0
        return bool(piece)

    def begin(self, validators: Validators) -> None:
        """The first byte is about to come."""
        self.start_over()
        self.note(validators)

    def note(self, validators: Validators) -> None:
        """What the server says of the file now."""
        self.validators = validators
        write_atomically(self._notes, validators.model_dump_json().encode())

    def append(self, piece: bytes | memoryview) -> None:
        view = memoryview(piece)
        while view:
            view = view[os.pwrite(self._descriptor, view, self.done_bytes + len(piece) - len(view)) :]
        self._hash.update(piece)
        self._join(self.done_bytes, len(piece))
        self.done_bytes += len(piece)

    def put(self, piece: bytes, offset: int) -> None:
        """A piece of it, wherever it belongs; `take_up` hashes it when all before it is there."""
        if not piece:
            return
        with self._putting:
            if self.validators is None:
                raise ValueError("what the server says of the file must be noted before parts of it are kept")
            if self.validators.spans is None:
                self._write_spans()
        view = memoryview(piece)
        while view:
            view = view[os.pwrite(self._descriptor, view, offset + len(piece) - len(view)) :]
        with self._putting:
            self._join(offset, len(piece))

    def _join(self, offset: int, count: int) -> None:
        if count:
            self.spans = join_span(self.spans, offset, offset + count)
            if self.validators is not None and self.validators.spans is not None:
                self._write_spans()

    def _write_spans(self) -> None:
        """Not through to the disk, which would take longer than the piece: a killed process loses nothing by that."""
        if self.validators is not None:
            self.validators = self.validators.model_copy(update={"spans": self.spans})
            temporary = name_temporary(self._notes)
            temporary.write_bytes(self.validators.model_dump_json().encode())
            temporary.replace(self._notes)

    def start_over(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self._hash = hashlib.sha256()
        self.done_bytes = 0
        self.spans = ()
        self.validators = None
        self.is_joined = False
        self.forget_notes()

    def touch(self) -> None:
        """Tell other processes that its holder lives, while nothing comes."""
        os.utime(self._descriptor)

    def digest(self) -> str:
        return self._hash.hexdigest()

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def forget_notes(self) -> None:
        self._notes.unlink(missing_ok=True)

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)
        self.forget_notes()
