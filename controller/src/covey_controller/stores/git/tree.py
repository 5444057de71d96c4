"""Reads a path of a commit as folder mode reads a folder: every document's bytes, or what forbids the set.

Nothing is checked out: blobs are read as they are stored, so no filter or hook can run, and no file of the work tree
can differ from the commit. What only a checkout would bring (a submodule's files, what an LFS pointer stands for) is
refused by name: to leave it out would run half of what was meant.
"""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from covey_controller.ports import SourceError
from covey_controller.stores.files.folder import (
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_TOTAL_BYTES,
    is_document,
    is_ignored,
)
from covey_controller.stores.git.objects import Entry, Objects

_SUBMODULE, _LINK, _FOLDER = "160000", "120000", "040000"
_LFS_MARK = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True, slots=True)
class TreeFiles:
    """The source at one commit. Paths are relative to the source; its own name when it is one file."""

    files: Mapping[str, bytes]
    errors: tuple[SourceError, ...] = ()
    is_missing: bool = False
    is_file: bool = False
    names: frozenset[str] = frozenset()
    """At the top of the source, documents or not: what a new file mustn't be called."""


async def read_tree(objects: Objects, commit: str, path: str) -> TreeFiles:
    """The documents below a path of a commit. GitFault when the clone can't be read."""
    above = await _find_submodule(objects, commit, path)
    if above:
        return TreeFiles({}, (_refuse_submodule(above),))
    found = await objects.resolve(f"{commit}:{path}")
    if not found:
        return TreeFiles({}, is_missing=True)
    if path:
        entry = next(iter(await objects.list_tree(commit, path, recursive=False)))
        if entry.mode != _FOLDER:
            name = posixpath.basename(path)
            files, errors = await _read_entries(objects, commit, (Entry(entry.mode, entry.oid, name),))
            return TreeFiles(files, errors, is_file=True)
    # Some kilobytes of trees can stand for a million names: no more of them are made objects than may be there.
    entries = await objects.list_tree(found, most=MAX_ENTRIES + 1)
    names = frozenset(entry.path.split("/", 1)[0] for entry in entries)
    if len(entries) > MAX_ENTRIES:
        message = f"the source must hold at most {MAX_ENTRIES} names; it holds more. Name a path: '#PATH@REF'"
        return TreeFiles({}, (_error(".", f"more than {MAX_ENTRIES}", message),), names=names)
    chosen = tuple(entry for entry in entries if not any(is_ignored(part) for part in entry.path.split("/")))
    files, errors = await _read_entries(objects, found, chosen)
    return TreeFiles(files, errors, names=names)


async def _find_submodule(objects: Objects, commit: str, path: str) -> str:
    """The submodule that the path is, or leads through; empty if none."""
    parts = path.split("/") if path else []
    above = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    if not above:
        return ""
    entries = await objects.list_tree(commit, *above, recursive=False)
    return next((entry.path for entry in entries if entry.mode == _SUBMODULE), "")


async def _read_entries(
    objects: Objects, tree: str, entries: tuple[Entry, ...]
) -> tuple[dict[str, bytes], tuple[SourceError, ...]]:
    """Documents among the entries, and every reason why the set can't be applied."""
    errors = list(_refuse_entries(entries))
    wanted = [entry for entry in entries if entry.mode not in (_SUBMODULE, _LINK) and is_document(entry.path)]
    if len(wanted) > MAX_FILES:
        message = f"the source must hold at most {MAX_FILES} document files; got {len(wanted)}"
        return {}, (*errors, _error(wanted[MAX_FILES].path, str(len(wanted)), message))
    missing = await objects.list_missing(tree) if wanted else frozenset[str]()
    sizes = await objects.read_sizes(entry.oid for entry in wanted if entry.oid not in missing)
    for entry in wanted:
        if sizes.get(entry.oid, MAX_FILE_BYTES + 1) > MAX_FILE_BYTES:
            found = str(sizes[entry.oid]) if entry.oid in sizes else f"more than {MAX_FILE_BYTES}"
            message = f"a document file must be at most {MAX_FILE_BYTES} bytes; '{entry.path}' has {found}"
            errors.append(_error(entry.path, found, message))
    # By name, not by object: a file that is there a thousand times is one object, and is parsed a thousand times.
    total = sum(sizes.get(entry.oid, 0) for entry in wanted)
    if total > MAX_TOTAL_BYTES:
        message = f"all document files together must be at most {MAX_TOTAL_BYTES} bytes. Name a path: '#PATH@REF'"
        return {}, (*errors, _error(".", str(total), message))
    contents = await objects.read_blobs(oid for oid, size in sizes.items() if size <= MAX_FILE_BYTES)
    files = {entry.path: contents[entry.oid] for entry in wanted if entry.oid in contents}
    pointers = [path for path, content in files.items() if content.startswith(_LFS_MARK)]
    errors.extend(_refuse_pointer(path) for path in pointers)
    for path in pointers:
        del files[path]
    return files, tuple(sorted(errors, key=lambda error: (error.file, error.message)))


def _refuse_entries(entries: tuple[Entry, ...]) -> Iterator[SourceError]:
    for entry in entries:
        shown = entry.path.encode(errors="surrogateescape").decode(errors="backslashreplace")
        if entry.mode == _SUBMODULE:
            yield _refuse_submodule(shown)
        elif is_document(entry.path) and shown != entry.path:
            yield _error(shown, shown, f"file name '{shown}' must be valid UTF-8; rename it")
        elif entry.mode == _LINK and is_document(entry.path):
            message = (
                f"'{shown}' must be a regular file; it is a symbolic link, which git sources don't follow. "
                "Put the file itself here, or remove the link"
            )
            yield _error(shown, "a symbolic link", message)


def _refuse_submodule(path: str) -> SourceError:
    message = (
        f"'{path}' must be a folder or file of this repository; it is a submodule, and submodules are never fetched. "
        "Put its documents into this repository, or name a path without it: '#PATH@REF'"
    )
    return _error(path, "a submodule", message)


def _refuse_pointer(path: str) -> SourceError:
    message = (
        f"'{path}' must hold the document itself; it holds a Git LFS pointer, and LFS files are never fetched. "
        f"Take it out of LFS: git lfs untrack '{path}', then add and commit it again"
    )
    return _error(path, "a Git LFS pointer", message)


def _error(file: str, found: str, message: str) -> SourceError:
    return SourceError(file, 1, "", found, message)
