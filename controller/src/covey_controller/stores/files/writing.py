"""Writes an edit of several files so that all of it or nothing of it happens.

New contents go into temporary files first (names that the source ignores), are synced, and are then renamed over the
old ones. What fails before the first rename leaves no trace; what fails between renames is put back. A process that is
killed between renames finishes them at its next start: the store holds the edit until it is done (`records`), and
`finish_write` repeats it where the files are still as the edit found them.
Rejected: a new folder swapped in by one rename. It would break links, watches and permissions of the user's folder.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NEW_FILE_MODE = 0o644


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file's content before and after; None: there is no file."""

    path: str
    """Absolute, links followed: a link stays a link."""
    before: bytes | None
    after: bytes | None


class SourceChanged(Exception):
    """Somebody else changed a file that was to be written: read it again and plan anew."""


class Disk:
    """The steps that writing is made of, each of which a disk may refuse."""

    def write_temporary(self, path: str, content: bytes, mode: int) -> None:
        with open(path, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())

    def rename(self, temporary: str, path: str) -> None:
        os.rename(temporary, path)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_folder(self, folder: str) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_changes(disk: Disk, changes: Sequence[FileChange]) -> None:
    """Apply all changes or none. SourceChanged if a file isn't as it was; OSError if the disk refuses."""
    done: list[FileChange] = []
    try:
        for change in changes:
            if change.after is not None:
                os.makedirs(os.path.dirname(change.path), exist_ok=True)
                disk.write_temporary(_temporary(change.path), change.after, _mode(change.path))
        if any(_content(change.path) != change.before for change in changes):
            raise SourceChanged
        for change in changes:
            # Looked at again, file by file: between this and the rename lie microseconds.
            if _content(change.path) != change.before:
                raise SourceChanged
            done.append(change)
            _put(disk, change)
        for folder in sorted({os.path.dirname(change.path) for change in changes}):
            disk.sync_folder(folder)
    except Exception:
        for change in reversed(done):
            _put_back(disk, change)
        for change in changes:
            with contextlib.suppress(OSError):
                os.unlink(_temporary(change.path))
        raise


def finish_write(disk: Disk, changes: Sequence[FileChange]) -> tuple[str, ...]:
    """Finish what an ended process began. Returns the paths left alone, because somebody changed them since."""
    left: list[str] = []
    for change in changes:
        content = _content(change.path)
        if content == change.after:
            pass
        elif content != change.before:
            left.append(change.path)
        else:
            if change.after is not None:
                disk.write_temporary(_temporary(change.path), change.after, _mode(change.path))
            _put(disk, change)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_temporary(change.path))
    return tuple(left)


def _put(disk: Disk, change: FileChange) -> None:
    if change.after is not None:
        disk.rename(_temporary(change.path), change.path)
    else:
        disk.remove(change.path)


def _put_back(disk: Disk, change: FileChange) -> None:
    """Undo one change if it had happened; whoever changed the file since keeps it so."""
    with contextlib.suppress(OSError):
        if change.before == change.after or _content(change.path) != change.after:
            return
        if change.before is None:
            disk.remove(change.path)
        else:
            disk.write_temporary(_temporary(change.path), change.before, _mode(change.path))
            disk.rename(_temporary(change.path), change.path)


def _temporary(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.covey.tmp")


def _content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None


def _mode(path: str) -> int:
    """A file keeps its permissions."""
    try:
        return os.stat(path).st_mode & 0o7777
    except FileNotFoundError:
        return NEW_FILE_MODE
