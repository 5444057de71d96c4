"""Edits as commits: written above the head, and carried over when the remote moves on.

An edit that isn't pushed is a commit that only this clone has. When the remote's commit changes, each is made again
above it, file by file: where the remote holds what the edit found, the edit's file is put; where it holds what the edit
made (somebody pushed it), nothing is left to do. An edit that finds anything else contradicts the remote: the remote
wins, for it is what everybody sees, and the commit is kept under `refs/covey/aside/` and named until somebody removes
it. Rejected: git's own rebase, which needs a work tree, and merges lines that nobody validated together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey_controller.ports import Applied
from covey_controller.stores.git.clone import Clone
from covey_controller.stores.git.objects import NEW_FILE_MODE, Entry, Signature
from covey_controller.stores.git.refs import ASIDE_REFS, HEAD_REF, REMOTE_REF

# Edits not pushed that are carried over; more of them is a fleet that is run without its repository.
MAX_AHEAD = 256
# Objects named in a commit's first line; the others are listed below it.
_MAX_NAMED = 3
_VERBS = {"created": "Create", "configured": "Change", "deleted": "Delete"}


@dataclass(frozen=True, slots=True)
class Line:
    """Where the clone stands."""

    remote: str
    head: str
    ahead: tuple[str, ...]
    """Commits that only this clone has, oldest first."""
    aside: Mapping[str, str]
    """Edits that contradict the remote, by ref."""


async def read_line(clone: Clone) -> Line:
    """What the clone holds; empty commits before the first fetch."""
    remote, head = await clone.objects.resolve(REMOTE_REF), await clone.objects.resolve(HEAD_REF)
    ahead = await clone.list_ahead(remote, head) if remote and head else ()
    return Line(remote, head or remote, ahead, await clone.list_refs(ASIDE_REFS))


async def shorten_line(clone: Clone, line: Line, pushed: str) -> Line:
    """One of the edits is the remote's commit now: somebody pushed it. To fetch it would cut off what it stands on."""
    await clone.point({REMOTE_REF: pushed})
    return Line(pushed, line.head, line.ahead[line.ahead.index(pushed) + 1 :], line.aside)


async def move_line(clone: Clone, line: Line, remote: str) -> Line:
    """Follow the remote to another commit, with the edits that aren't pushed made again above it."""
    head = remote
    ahead: list[str] = []
    aside = dict(line.aside)
    for commit in line.ahead:
        entries = await _carry_over(clone, commit, head)
        if entries is None:
            aside[f"{ASIDE_REFS}{commit[:12]}"] = commit
            continue
        made = await clone.objects.store_commit(head, entries, await clone.objects.read_signature(commit))
        if made != head:
            head = made
            ahead.append(made)
    await clone.point({REMOTE_REF: remote, HEAD_REF: head} | aside)
    return Line(remote, head, tuple(ahead), aside)


async def _carry_over(clone: Clone, commit: str, head: str) -> tuple[Entry, ...] | None:
    """What a commit puts into another tree; None when it contradicts that tree."""
    changes = await clone.objects.list_changes(commit)
    present = {
        entry.path: entry.oid for entry in await clone.objects.list_tree(head, *(after.path for _, after in changes))
    }
    puts: list[Entry] = []
    for before, after in changes:
        found = present.get(after.path, "0" * len(after.oid))
        if found == after.oid:
            continue
        if found != before.oid:
            return None
        puts.append(after)
    return tuple(puts)


async def write_edit(
    clone: Clone, head: str, files: Mapping[str, bytes | None], signature: Signature, folder: str
) -> str:
    """A commit above the head with these files in it (None: removed), by path below `folder`; no ref names it yet."""
    paths = {path: f"{folder}/{path}" if folder else path for path in files}
    modes = {entry.path: entry.mode for entry in await clone.objects.list_tree(head, *paths.values())}
    entries: list[Entry] = []
    for path, content in sorted(files.items()):
        oid = "0" * len(head) if content is None else await clone.objects.store_blob(content)
        mode = "0" if content is None else modes.get(paths[path], NEW_FILE_MODE)
        entries.append(Entry(mode, oid, paths[path]))
    return await clone.objects.store_commit(head, entries, signature)


def render_message(results: Sequence[Applied]) -> str:
    """`Create Model default/smollm2, Change Placement default/smollm2`; each on a line of its own if they are many."""
    words = [
        f"{_VERBS[one.outcome]} {one.key.kind} {f'{one.key.namespace}/' if one.key.namespace else ''}{one.key.name}"
        for one in results
        if one.outcome in _VERBS
    ]
    if len(words) <= _MAX_NAMED:
        return ", ".join(words)
    return "\n".join([f"{words[0]} and {len(words) - 1} more", "", *words])
