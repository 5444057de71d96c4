"""What people ask of the source by name, and what that comes to: files to write and the set they make. Blocking."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from covey_api.kinds import ObjectKey

from covey_controller.ports import Applied, InvalidSet
from covey_controller.stores.files.edit import AnyDocument, plan_apply, plan_delete, verify_edit
from covey_controller.stores.files.folder import SUFFIXES, Scan, Snapshot, digest_of, is_ignored
from covey_controller.stores.files.rest import ParseDocuments, ReadSet, parse_set
from covey_controller.stores.files.writing import FileChange


@dataclass(frozen=True, slots=True)
class Apply:
    """Merge the documents of a text, called `name` in what is said about it."""

    text: str
    name: str
    author: str = ""
    """`Name <email>` of who asked, for a source that keeps it."""


@dataclass(frozen=True, slots=True)
class Delete:
    keys: tuple[ObjectKey, ...]
    author: str = ""


@dataclass(frozen=True, slots=True)
class PlannedFiles:
    """An edit that is valid as a whole, in paths of the source."""

    edits: Mapping[str, bytes | None]
    """Files to write; None: to remove."""
    files: Mapping[str, bytes]
    """The source after it."""
    after: ReadSet
    deleted: frozenset[ObjectKey]
    results: tuple[Applied, ...]


@dataclass(frozen=True, slots=True)
class PlannedEdit:
    """An edit that is valid as a whole, in paths of the disk."""

    changes: tuple[FileChange, ...]
    files: Mapping[str, bytes]
    """The source after it."""
    after: ReadSet
    deleted: frozenset[ObjectKey]
    results: tuple[Applied, ...]


def plan_files(
    asked: Apply | Delete,
    files: Mapping[str, bytes],
    read: ReadSet,
    running: frozenset[ObjectKey],
    parse: ParseDocuments,
    parse_whole: ParseDocuments,
    *,
    single_file: str | None,
    taken: frozenset[str],
) -> PlannedFiles:
    """What is to be written. InvalidSet with every error; KeyError for a key that neither source nor store holds.

    `read` is what `files` parse to. `running`: what may be deleted although no document holds it. `parse_whole` is
    `parse` for the source, which may remember it. `single_file`: the source's only file, if it is one. `taken`: names
    in the source that hold no document.
    """
    if read.errors:
        raise InvalidSet(read.errors)
    applied: tuple[AnyDocument, ...] = ()
    written = (*read.documents, *read.secrets)
    deleted: frozenset[ObjectKey] = frozenset()
    match asked:
        case Apply(text, name):
            applied = tuple(parse({name: text.encode()}))
            edit = plan_apply(files, written, applied, text, single_file, taken)
        case Delete(keys):
            for key in keys:
                if key not in read.keys and key not in running:
                    raise KeyError(str(key))
            deleted = frozenset(keys)
            edit = plan_delete(files, written, tuple(dict.fromkeys(keys)), single_file)
    edited = dict(files)
    for path, content in edit.files.items():
        edited.pop(path, None)
        if content is not None:
            edited[path] = content
    after = parse_set(digest_of(edited), edited, parse_whole)
    if after.errors:
        raise InvalidSet(after.errors)
    verify_edit(edit, written, applied, deleted, after.written)
    return PlannedFiles(edit.files, edited, after, deleted, edit.results)


def plan_request(
    asked: Apply | Delete,
    source: Path,
    snapshot: Snapshot,
    read: ReadSet,
    running: frozenset[ObjectKey],
    parse: ParseDocuments,
    parse_whole: ParseDocuments,
) -> PlannedEdit:
    """`plan_files` for a source on the disk."""
    scan = snapshot.scan
    single_file = source.name if scan.is_file or (scan.is_missing and source.name.endswith(SUFFIXES)) else None
    taken = _other_names(scan)
    planned = plan_files(asked, snapshot.files, read, running, parse, parse_whole, single_file=single_file, taken=taken)
    real = {entry.path: entry.real for entry in scan.entries}
    changes = tuple(
        FileChange(
            real.get(path, scan.root if single_file else os.path.join(scan.root, path)),
            snapshot.files.get(path),
            content,
        )
        for path, content in sorted(planned.edits.items())
    )
    return PlannedEdit(changes, planned.files, planned.after, planned.deleted, planned.results)


def _other_names(scan: Scan) -> frozenset[str]:
    """Names at the top of the source that a new file mustn't take, documents or not."""
    try:
        return frozenset(name for name in os.listdir(scan.root) if not is_ignored(name))
    except OSError:
        return frozenset()
