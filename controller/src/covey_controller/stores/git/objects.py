"""Objects of the clone: names, trees, blobs and commits, read and written with git's plumbing. It knows no refs."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from covey_controller.stores.git.command import Fault, Git, GitFault

NEW_FILE_MODE = "100644"
# Who writes commits down; their author is who asked.
COMMITTER = ("Covey", "covey@localhost")


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a tree."""

    mode: str
    oid: str
    path: str


@dataclass(frozen=True, slots=True)
class Signature:
    """Who made a commit, and their words."""

    name: str
    email: str
    message: str
    date: str = ""
    """As git writes it raw; empty: now."""


class Objects:
    """What is in one bare repository. Every method raises GitFault with DAMAGED when it can't be read or written."""

    def __init__(self, folder: Path, git: Git) -> None:
        self._folder = folder
        self._git = git

    async def resolve(self, name: str) -> str:
        """The object that a name means; empty if there is none."""
        answer = await self._git.local("rev-parse", "--quiet", "--verify", "--end-of-options", name, nothing_status=1)
        return answer.decode().strip()

    async def list_tree(self, tree: str, *paths: str, recursive: bool = True, most: int = -1) -> tuple[Entry, ...]:
        """Names in a tree with their objects, in git's order, the first `most` of them if that is given.

        Names that are no UTF-8 keep their bytes escaped.
        """
        flags = ("-r",) if recursive else ()
        # After `--`: people may call their files as an option is written.
        options = ("ls-tree", *flags, "-z", "--full-tree", "--")
        answer = await self._git.local("--literal-pathspecs", *options, tree, *paths)
        entries: list[Entry] = []
        for line in answer.split(b"\0", most)[: most if most >= 0 else None]:
            if line:
                head, _, path = line.partition(b"\t")
                mode, _, oid = head.decode().split(" ")
                entries.append(Entry(mode, oid, os.fsdecode(path)))
        return tuple(entries)

    async def list_missing(self, tree: str) -> frozenset[str]:
        """Objects of a tree that were left out when it was fetched."""
        answer = await self._git.local("rev-list", "--objects", "--missing=print", "--no-object-names", tree)
        return frozenset(line[1:] for line in answer.decode().splitlines() if line.startswith("?"))

    async def read_sizes(self, oids: Iterable[str]) -> dict[str, int]:
        asked = "".join(f"{oid}\n" for oid in oids).encode()
        answer = await self._git.local("cat-file", "--batch-check=%(objectname) %(objectsize)", given=asked)
        lines = [line.split(" ") for line in answer.decode().splitlines()]
        return {line[0]: int(line[1]) for line in lines if line[1].isdecimal()}

    async def read_blobs(self, oids: Iterable[str]) -> dict[str, bytes]:
        """Contents by object; GitFault with DAMAGED when one isn't there."""
        asked = list(dict.fromkeys(oids))
        answer = await self._git.local("cat-file", "--batch", given="".join(f"{oid}\n" for oid in asked).encode())
        contents: dict[str, bytes] = {}
        at = 0
        for oid in asked:
            end = answer.find(b"\n", at)
            head = answer[at:end].decode(errors="replace").split(" ")
            if end < 0 or len(head) != 3 or not head[2].isdecimal():
                raise GitFault(Fault.DAMAGED, f"the clone '{self._folder}' lacks object {oid}")
            size = int(head[2])
            contents[oid] = answer[end + 1 : end + 1 + size]
            at = end + 1 + size + 1
        return contents

    async def list_changes(self, commit: str) -> tuple[tuple[Entry, Entry], ...]:
        """What a commit changed against its parent: before and after, by path; an oid of zeros is no file."""
        answer = await self._git.local("diff-tree", "-r", "-z", "--no-renames", "--no-commit-id", f"{commit}^", commit)
        words = answer.split(b"\0")
        changes: list[tuple[Entry, Entry]] = []
        for head, name in zip(words[0:-1:2], words[1::2], strict=False):
            old_mode, new_mode, old, new, _ = head.decode().removeprefix(":").split(" ")
            path = os.fsdecode(name)
            changes.append((Entry(old_mode, old, path), Entry(new_mode, new, path)))
        return tuple(changes)

    async def read_signature(self, commit: str) -> Signature:
        answer = await self._git.local("log", "-1", "--date=raw", "--format=%an%x00%ae%x00%ad%x00%B", commit)
        name, email, date, message = answer.decode(errors="replace").split("\0", 3)
        return Signature(name, email, message.strip("\n"), date)

    async def store_blob(self, content: bytes) -> str:
        return (await self._git.local("hash-object", "-w", "--stdin", given=content)).decode().strip()

    async def store_commit(self, parent: str, entries: Iterable[Entry], signature: Signature) -> str:
        """A commit above `parent` in which each entry's path holds its object; an oid of zeros removes it."""
        index = self._folder / "covey.index"
        index.unlink(missing_ok=True)
        using = {"GIT_INDEX_FILE": str(index)}
        lines = b"".join(f"{it.mode} {it.oid}\t".encode() + os.fsencode(it.path) + b"\0" for it in entries)
        await self._git.local("read-tree", parent, environment=using)
        await self._git.local("update-index", "-z", "--index-info", given=lines, environment=using)
        tree = (await self._git.local("write-tree", "--missing-ok", environment=using)).decode().strip()
        index.unlink(missing_ok=True)
        if tree == await self.resolve(f"{parent}^{{tree}}"):
            return parent
        author = {"GIT_AUTHOR_NAME": signature.name, "GIT_AUTHOR_EMAIL": signature.email}
        author |= {"GIT_COMMITTER_NAME": COMMITTER[0], "GIT_COMMITTER_EMAIL": COMMITTER[1]}
        author |= {"GIT_AUTHOR_DATE": signature.date} if signature.date else {}
        message = f"{signature.message}\n".encode()
        answer = await self._git.local("commit-tree", "-p", parent, tree, given=message, environment=author)
        return answer.decode().strip()
