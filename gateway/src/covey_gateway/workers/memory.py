"""Memory that all processes of one gateway share: rows of 64-bit cells under names, a column for each worker.

    directory: name ─▶ row        row: cells of all, then each worker's own

A worker writes only its own cells of a row, and those of all under the row's lock; who wants the whole adds up. Cells
are aligned, and 8 bytes don't tear on the processors that Covey has. A worker that is started anew goes on with the
column of the one before: counters stay what they were, and what was under way is cleared before (`parent`).

The directory only grows, under a lock, and its length is written last: who is killed in between has written nothing.
Rows aren't used again. There is room for half a million, and what has none is counted by each worker alone.

A lock is one byte of the file, which the kernel gives back when its holder dies. It is held for some additions, never
while anything else is waited for, and never two at a time. Rejected: a mutex in the memory itself, which stays locked
by who was killed.
"""

import fcntl
import logging
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator
from types import TracebackType

_HEADER_BYTES = 4096
# Of names and rows each: pages that nobody wrote to cost nothing.
_DIRECTORY_BYTES = 64 * 1024 * 1024
_CELLS_BYTES = 512 * 1024 * 1024
_ENTRY = 8
"""Bytes of an entry before its name: the first cell of its row, and the name's length."""
_MAX_NAME = 1024
# Cells of the header.
_NAMES_USED, _CELLS_USED = 0, 1

_log = logging.getLogger(__name__)


class Lock:
    """Of one row, or of the directory. Where the row is this process's alone it does nothing."""

    __slots__ = ("_at", "_file")

    def __init__(self, file: int | None, at: int) -> None:
        self._file = file
        self._at = at

    def __enter__(self) -> None:
        if self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self._at)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._at)


class Row:
    """`common`: written under `lock`. `columns`: each worker's own; `floats`: the same as fractions."""

    __slots__ = ("columns", "common", "floats", "lock")

    def __init__(self, cells: memoryview, common: int, width: int, lock: Lock) -> None:
        integers, fractions = cells.cast("q"), cells.cast("d")
        self.common = integers[:common]
        begins = range(common, len(integers), width) if width else ()
        self.columns = [integers[at : at + width] for at in begins]
        self.floats = [fractions[at : at + width] for at in begins]
        self.lock = lock

    def sum(self, cell: int) -> int:
        return sum(column[cell] for column in self.columns)

    def sum_floats(self, cell: int) -> float:
        return sum(column[cell] for column in self.floats)


def make_file() -> int:
    """Its descriptor: a file that has no name, and is gone with its last process."""
    if sys.platform == "linux":
        file = os.memfd_create("covey-gateway")
    else:
        file, path = tempfile.mkstemp(prefix="covey-gateway-")
        os.unlink(path)
    os.ftruncate(file, _HEADER_BYTES + _DIRECTORY_BYTES + _CELLS_BYTES)
    return file


class Memory:
    """`file`: of `make_file`. `workers`: how many columns there are; `column`: this process's own, None: none."""

    def __init__(self, file: int, workers: int, column: int | None) -> None:
        self.column = column
        self.workers = workers
        self._file = file
        mapped = mmap.mmap(file, _HEADER_BYTES + _DIRECTORY_BYTES + _CELLS_BYTES)
        whole = memoryview(mapped)
        self._header = whole[:_HEADER_BYTES].cast("q")
        self._names = whole[_HEADER_BYTES : _HEADER_BYTES + _DIRECTORY_BYTES]
        self._cells = whole[_HEADER_BYTES + _DIRECTORY_BYTES :]
        self._rows: dict[str, tuple[int, int, int]] = {}
        """Where each begins, its cells of all and its cells a column."""
        self._read = 0
        self._lock = Lock(file, 0)
        self._is_full_told = False

    def find(self, name: str) -> bool:
        """Whether any process has this row."""
        if name not in self._rows:
            self._read_names()
        return name in self._rows

    def names(self, prefix: str) -> Iterator[str]:
        """Of all rows that begin so."""
        self._read_names()
        return (name for name in tuple(self._rows) if name.startswith(prefix))

    def row(self, name: str, common: int, width: int) -> Row:
        """The row of that name, made where there is none: all zero."""
        if not self.find(name):
            with self._lock:
                self._read_names()
                if name not in self._rows:
                    self._add(name, common, width)
        found = self._rows.get(name)
        if found is None:
            return self._make_private(common, width)
        at, common, width = found
        size = 8 * (common + width * self.workers)
        return Row(self._cells[at : at + size], common, width, Lock(self._file, _HEADER_BYTES + at))

    def _make_private(self, common: int, width: int) -> Row:
        if not self._is_full_told:
            self._is_full_told = True
            _log.error("the memory of this gateway's workers is full: what is new is counted by each alone")
        return Row(memoryview(bytearray(8 * (common + width * self.workers))), common, width, Lock(None, 0))

    def _add(self, name: str, common: int, width: int) -> None:
        encoded = name.encode()
        used, at = self._header[_NAMES_USED], self._header[_CELLS_USED]
        size = 8 * (common + width * self.workers)
        end = used + _ENTRY + 4 + len(encoded)
        if len(encoded) > _MAX_NAME or end > _DIRECTORY_BYTES or at + size > _CELLS_BYTES:
            return
        shape = common.to_bytes(2, "little") + width.to_bytes(2, "little")
        entry = (at // 8).to_bytes(6, "little") + len(encoded).to_bytes(2, "little") + shape + encoded
        self._names[used:end] = entry
        self._header[_CELLS_USED] = at + size
        self._header[_NAMES_USED] = end
        self._read_names()

    def _read_names(self) -> None:
        end = self._header[_NAMES_USED]
        at = self._read
        while at < end:
            entry = bytes(self._names[at : at + _ENTRY + 4])
            name_at = at + len(entry)
            at = name_at + int.from_bytes(entry[6:8], "little")
            name = str(self._names[name_at:at], "utf-8")
            shape = int.from_bytes(entry[8:10], "little"), int.from_bytes(entry[10:12], "little")
            self._rows[name] = (8 * int.from_bytes(entry[:6], "little"), *shape)
        self._read = end
