"""The access log: one JSON object a request, to standard output or to a file, off unless asked for.

Lines are gathered and written by a thread, some times a second: a slow disk, or a reader that stopped, delays no
request. What it doesn't take within `MAX_PENDING_BYTES` is dropped and counted, and the next line says how many were.
A file is replaced by its successor at `MAX_FILE_BYTES` (one before is kept, as FILE.1), and opened anew when somebody
moved it away, as logrotate does.

Rejected: a line a request through `logging` (20 µs, and a write on the event loop), and a queue of records for a
thread to render (it would compete for the interpreter with the loop all the same).
"""

import asyncio
import fcntl
import logging
import os
import select
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from covey_gateway.records import Record, blank

# Some 20,000 lines: what a burst writes while a disk is stuck for seconds.
MAX_PENDING_BYTES = 8 * 1024 * 1024
# Half a million lines, and as many in the one before.
MAX_FILE_BYTES = 128 * 1024 * 1024
# A person who follows the log sees a request soon, and a busy gateway writes four times a second.
WRITE_SECONDS = 0.25
# How long a reader of standard output may take nothing.
STUCK_SECONDS = 1
# How long what is pending may take when the gateway ends.
END_SECONDS = 3

_log = logging.getLogger(__name__)
_ENCODE = msgspec.json.Encoder().encode_into
# In no other line: a quote in a text is escaped.
_DROPPED = b',"dropped":'


class _Line(msgspec.Struct, omit_defaults=True):
    time: str
    method: str
    path: str
    status: int
    duration_ms: float
    request_bytes: int
    answer_bytes: int
    request_id: str
    client: str = ""
    format: str = ""
    key: str = ""
    model: str = ""
    endpoint: str = ""
    stream: bool = False
    error: str = ""
    limit: str = ""
    held_ms: float | None = None
    first_byte_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    estimated: bool = False
    trace_id: str = ""


class AccessLog:
    """`path` None: standard output. `is_shared`: other processes write to the same."""

    def __init__(self, path: Path | None, *, is_shared: bool = False) -> None:
        self.dropped = 0
        """Lines, since the start."""
        self._path = path
        self._is_shared = is_shared
        self._file: int | None = None
        self._pending = bytearray()
        self._line = bytearray()
        self._told = 0
        """Lines that a pending one calls dropped."""
        self._is_torn = False
        """Whether what was written last is a line's beginning."""
        self._writing: asyncio.Future[None] | None = None
        self._ends_at: float | None = None
        self._untold = 0
        self._is_due = asyncio.Event()
        self._second = (0, "")
        self._refusal = ""

    def open(self) -> None:
        """OSError where it can't be written to."""
        self._is_torn = False
        if self._path is None:
            self._file = sys.stdout.fileno()
        else:
            # A FIFO that nobody reads is refused: else this would wait for its reader, and the event loop with it.
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o640)

    def write(self, record: Record) -> None:
        if len(self._pending) >= MAX_PENDING_BYTES:
            self.dropped += 1
            self._untold += 1
            return
        if self._untold:
            self._pending += b'{"time":"%b"%b%d}\n' % (self._now().encode(), _DROPPED, self._untold)
            self._untold, self._told = 0, self._told + self._untold
        _ENCODE(self._render(record), self._line)
        self._pending += self._line
        self._pending += b"\n"
        self._is_due.set()

    def _render(self, record: Record) -> _Line:
        began, sent, first, cost = record.began_at, record.sent_at, record.first_byte_at, record.cost
        is_counted = sent is not None
        return _Line(
            self._now(),
            record.method,
            blank(record.path),
            record.status,
            _milliseconds(record.ended_at - began),
            record.request_bytes,
            record.answer_bytes,
            blank(record.request_id),
            record.client,
            record.format,
            record.key,
            record.model,
            record.endpoint,
            record.is_stream,
            record.code,
            record.limit,
            None if sent is None else _milliseconds(sent - began),
            None if first is None else _milliseconds(first - began),
            cost.prompt if is_counted else None,
            cost.cached if is_counted else None,
            cost.completion if is_counted else None,
            cost.is_estimated,
            "" if record.trace is None else record.trace.id,
        )

    def _now(self) -> str:
        """UTC with milliseconds; the second's text is made once a second."""
        now = time.time()
        second = int(now)
        if second != self._second[0]:
            self._second = (second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)))
        return f"{self._second[1]}.{int((now - second) * 1000):03d}Z"

    async def run(self) -> None:
        """Write what is pending, until cancelled; then the rest."""
        try:
            while True:
                await self._is_due.wait()
                await asyncio.sleep(WRITE_SECONDS)
                self._is_due.clear()
                await self._flush()
        finally:
            self._ends_at = time.monotonic() + END_SECONDS
            if self._writing is not None:  # the thread goes on, whoever was cancelled: one writes at a time
                await asyncio.wait((self._writing,))
                self._writing.exception()
            with suppress(OSError):
                self._write(bytes(self._pending))

    async def _flush(self) -> None:
        content, self._pending = bytes(self._pending), bytearray()
        told, self._told = self._told, 0
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, content))
        try:
            await asyncio.wait((self._writing,))
            self._writing.result()
            self._refusal = ""
        except _Lost as lost:
            notices = lost.content.count(_DROPPED)
            lines = lost.content.count(b"\n") - notices
            self.dropped += lines
            self._untold += lines + (told if notices else 0)
            if lost.reason != self._refusal:  # once, not four times a second
                words = "the access log '%s' can't be written, its lines are dropped until it can: %s"
                _log.error(words, self._path or "-", lost.reason)
            self._refusal = lost.reason

    def _write(self, content: bytes) -> None:
        """On a thread, or at the end; _Lost where not all of it was taken."""
        if not content:
            return
        taken = 0
        try:
            if self._path is not None:
                self._follow_path(self._path)
            if self._file is None:
                return
            if self._is_torn:
                content = b"\n" + content
            left = memoryview(content)
            is_file = self._is_shared and stat.S_ISREG(os.fstat(self._file).st_mode)
            writable = select.poll()
            writable.register(self._file, select.POLLOUT)
            while taken < len(content):
                # A pipe that polls as writable takes so many bytes without a wait; its reader may have stopped.
                if not writable.poll(STUCK_SECONDS * 1000):
                    raise TimeoutError("nobody reads it")
                if self._ends_at is not None and time.monotonic() > self._ends_at:
                    raise TimeoutError("it is read too slowly")
                end = len(content) if is_file else taken + select.PIPE_BUF
                # Whole lines at a time: between two writes another process may have one.
                cut = content.rfind(b"\n", taken, end) + 1 if self._is_shared else end
                taken += os.write(self._file, left[taken : cut if cut > taken else end])
        except OSError as error:
            raise _Lost(content[taken:].lstrip(b"\n"), error.strerror or str(error)) from None
        finally:
            if taken:
                self._is_torn = content[taken - 1 : taken] != b"\n"

    def _follow_path(self, path: Path) -> None:
        """1. Somebody moved the file away: a new one. 2. It is full: it becomes the one before."""
        if self._file is None:
            self.open()
            return
        mine = os.fstat(self._file)
        if self._is_shared and mine.st_size >= MAX_FILE_BYTES:
            fcntl.flock(self._file, fcntl.LOCK_EX)  # another process may be renaming it; closing it gives that back
        try:
            there = path.stat()
            is_moved = (there.st_ino, there.st_dev) != (mine.st_ino, mine.st_dev)
        except FileNotFoundError:
            is_moved = True
        if not is_moved and mine.st_size < MAX_FILE_BYTES:
            return
        if not is_moved:
            before = path.with_name(path.name + ".1")
            try:
                path.replace(before)
            except OSError as error:
                if self._is_shared:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
                words = f"it is full, and can't be renamed to '{before}': {error.strerror}"
                raise OSError(error.errno, words) from None
        os.close(self._file)
        self._file = None
        self.open()


class _Lost(OSError):
    def __init__(self, content: bytes, reason: str) -> None:
        super().__init__(reason)
        self.content = content
        """What wasn't written, whole lines but for the first one: its end, where it was cut."""
        self.reason = reason


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 2)
