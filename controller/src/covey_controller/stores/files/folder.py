"""Reads a source, a directory or one file, into a snapshot: every document file's bytes, or what forbids it.

It knows files and nothing of YAML or objects. A scan costs one `stat` per file and is compared whole (`==`) to tell
whether anything changed; a snapshot is a scan, the bytes, and an equal scan after them: never half of a change.

Links are followed inside the source and a file that has several names counts once, under its own: thus a mounted
ConfigMap (`model.yaml -> ..data/model.yaml`) works, and a link beside its target doesn't double the objects.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from covey_controller.ports import SourceError

SUFFIXES = (".yaml", ".yml", ".json")
# Encrypted whole: a Secret is in it, or it is refused.
AGE_SUFFIXES = tuple(f"{suffix}.age" for suffix in SUFFIXES)
IGNORED_ENDINGS = ("~", ".swp", ".tmp")
# A document is at most some kilobytes; beyond this it is no document, and parsing it would stall the store.
MAX_FILE_BYTES = 1 << 20
# Ten times the largest fleet planned for (200 nodes, 100 placements and their models), one object a file.
MAX_FILES = 2_000
# What the set may take in memory while it is read and parsed.
MAX_TOTAL_BYTES = 64 << 20
# Names looked at per scan, documents or not: a home directory given by mistake is refused, not searched for minutes.
MAX_ENTRIES = 20_000
# An editor's save takes milliseconds; a folder that changes through three reads hasn't rested.
READ_TRIES = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One document file."""

    path: str
    """Relative to the source, `/` between parts; the file's own name when the source is one file."""
    real: str
    """Absolute, with every link followed."""
    stamp: tuple[int, int, int, int, int]
    """Device, inode, size, time of change of content and of status (ns)."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What the source looks like without reading it. Equal scans mean that nothing changed."""

    root: str
    """Absolute, links followed: a switched link is another root."""
    entries: tuple[Entry, ...] = ()
    directories: tuple[str, ...] = ()
    """Every directory that was searched: those to watch."""
    errors: tuple[SourceError, ...] = ()
    is_missing: bool = False
    is_file: bool = False
    newest_seconds: float = field(default=0.0, compare=False)
    """Wall time of the newest change seen; a folder's own counts too, so equality leaves it out."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The source's bytes at one moment."""

    scan: Scan
    files: Mapping[str, bytes]
    errors: tuple[SourceError, ...]


def is_ignored(name: str) -> bool:
    """Names that editors and tools use for what isn't saved yet."""
    return name.startswith(".") or name.endswith(IGNORED_ENDINGS)


def is_document(name: str) -> bool:
    return name.endswith(SUFFIXES + AGE_SUFFIXES) and not is_ignored(name)


def digest_of(files: Mapping[str, bytes], errors: tuple[SourceError, ...] = ()) -> str:
    """First 12 hex of the set's digest: paths, contents and what couldn't be read."""
    digest = hashlib.sha256()
    for path in sorted(files):
        for part in (path.encode(), files[path]):
            digest.update(len(part).to_bytes(8, "big") + part)
    for error in errors:
        digest.update(f"\0{error.file}\0{error.message}".encode())
    return digest.hexdigest()[:12]


def scan_source(source: Path) -> Scan:
    """Look at the source once."""
    root = os.path.realpath(source)
    try:
        found = os.stat(root)
    except (FileNotFoundError, NotADirectoryError):
        return Scan(root, is_missing=True)
    except OSError as error:
        return Scan(root, errors=(_error(source.name, str(error.strerror), _unreadable(source.name, error)),))
    if stat.S_ISDIR(found.st_mode):
        return _Walk(root).scan()
    entry = Entry(source.name, root, _stamp(found))
    return Scan(root, (entry,), (os.path.dirname(root),), is_file=True, newest_seconds=found.st_ctime)


def read_source(source: Path) -> Snapshot | None:
    """The whole source, or None when it kept changing meanwhile."""
    for _ in range(READ_TRIES):
        scan = scan_source(source)
        files, errors = _read_entries(scan.entries)
        if scan_source(source) == scan:
            return Snapshot(scan, files, (*scan.errors, *errors))
    return None


def _read_entries(entries: tuple[Entry, ...]) -> tuple[dict[str, bytes], list[SourceError]]:
    files: dict[str, bytes] = {}
    errors: list[SourceError] = []
    total = 0
    for entry in entries:
        size = entry.stamp[2]
        total += min(size, MAX_FILE_BYTES)
        if size > MAX_FILE_BYTES:
            message = f"'{entry.path}' must be at most {MAX_FILE_BYTES} bytes; got {size}. Split it into several files."
            errors.append(_error(entry.path, str(size), message))
        elif total > MAX_TOTAL_BYTES:
            message = f"all documents together must be at most {MAX_TOTAL_BYTES} bytes. Is this the right folder?"
            errors.append(_error(entry.path, str(total), message))
            break
        else:
            try:
                with open(entry.real, "rb") as file:
                    files[entry.path] = file.read(MAX_FILE_BYTES + 1)
            except OSError as error:
                errors.append(_error(entry.path, str(error.strerror), _unreadable(entry.path, error)))
    return files, errors


class _Walk:
    """One scan of a directory, deepest last, each real directory and file once."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._inside = root.rstrip("/") + "/"
        self._entries: dict[str, Entry] = {}
        self._directories: set[str] = set()
        self._errors: list[SourceError] = []
        self._seen = 0
        self._newest = 0.0

    def scan(self) -> Scan:
        pending = [("", self._root)]
        while pending and self._seen <= MAX_ENTRIES:
            path, real = pending.pop()
            if real not in self._directories:
                self._directories.add(real)
                pending.extend(self._search(path, real))
        if self._seen > MAX_ENTRIES:
            message = f"the source must hold at most {MAX_ENTRIES} names; it holds more. Is '{self._root}' right?"
            self._errors.append(_error(".", str(self._seen), message))
        entries = sorted(self._entries.values(), key=lambda entry: entry.path)
        if len(entries) > MAX_FILES:
            message = f"the source must hold at most {MAX_FILES} document files; got {len(entries)}"
            self._errors.append(_error(entries[MAX_FILES].path, str(len(entries)), message))
        return Scan(
            self._root,
            tuple(entries[:MAX_FILES]),
            tuple(sorted(self._directories)),
            tuple(sorted(self._errors, key=lambda error: (error.file, error.message))),
            newest_seconds=self._newest,
        )

    def _search(self, path: str, real: str) -> Iterator[tuple[str, str]]:
        """Record the documents of one directory; yield the directories in it."""
        try:
            with os.scandir(real) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            self._newest = max(self._newest, os.stat(real).st_ctime)
        except FileNotFoundError:
            return
        except OSError as error:
            shown = _shown(path) or "."
            self._errors.append(_error(shown, str(error.strerror), _unreadable(shown, error)))
            return
        for entry in entries:
            self._seen += 1
            if self._seen > MAX_ENTRIES:
                return
            if not is_ignored(entry.name):
                yield from self._look_at(f"{path}/{entry.name}" if path else entry.name, entry)

    def _look_at(self, path: str, entry: os.DirEntry[str]) -> Iterator[tuple[str, str]]:
        real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
        found, fault = _look(real)
        mode = found.st_mode if found is not None else 0
        if not stat.S_ISDIR(mode) and not is_document(entry.name):
            return
        if real != self._root and not real.startswith(self._inside):
            message = (
                f"link '{_shown(path)}' must lead to something inside the source '{_shown(self._root)}'; "
                f"it leads to '{_shown(real)}'. Put a copy here, or remove the link."
            )
            self._errors.append(_error(_shown(path), _shown(real), message))
        elif found is None:
            # A file that is gone since its directory was listed is no fault of the set; a link that leads nowhere is.
            if fault is not None and (entry.is_symlink() or not isinstance(fault, FileNotFoundError)):
                self._errors.append(_error(_shown(path), str(fault.strerror), _unreadable(_shown(path), fault)))
        elif stat.S_ISDIR(mode):
            yield path, real
        elif not stat.S_ISREG(mode):
            message = f"'{_shown(path)}' must be a regular file; rename it so that it doesn't end in {SUFFIXES}"
            self._errors.append(_error(_shown(path), "no regular file", message))
        elif _shown(path) != path:
            message = f"file name '{_shown(path)}' must be valid UTF-8; rename it"
            self._errors.append(_error(_shown(path), _shown(path), message))
        else:
            self._add(Entry(path, real, _stamp(found)))
            self._newest = max(self._newest, found.st_ctime)

    def _add(self, entry: Entry) -> None:
        """Keep one name per file: its own before a link's, then the first by name."""
        kept = self._entries.get(entry.real)

        def rank(candidate: Entry) -> tuple[bool, str]:
            return self._inside + candidate.path != candidate.real, candidate.path

        if kept is None or rank(entry) < rank(kept):
            self._entries[entry.real] = entry


def _look(path: str) -> tuple[os.stat_result | None, OSError | None]:
    try:
        return os.stat(path), None
    except OSError as error:
        return None, error


def _stamp(found: os.stat_result) -> tuple[int, int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _shown(path: str) -> str:
    """The path with bytes that are no UTF-8 escaped, so that it can be printed and sent."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _unreadable(path: str, error: OSError) -> str:
    return f"'{path}' must be readable; got '{error.strerror}'. Until it is, nothing in the source is applied."


def _error(file: str, found: str, message: str) -> SourceError:
    return SourceError(file, 1, "", found, message)
