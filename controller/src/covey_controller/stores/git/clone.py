"""The clone in the state folder: a bare repository with as little of the remote as the source needs.

It knows git and refs, nothing of documents. Three refs, and nobody else writes here:

    refs/covey/remote   the newest commit fetched
    refs/heads/covey    what Covey wants to run: the remote's commit, and above it the edits not pushed yet
    refs/covey/aside/N  edits that contradict what the remote became; kept until somebody removes them

Fetches are one commit deep and leave out files larger than a document may be. History decides and no clock does: what
the ref names now is wanted, whether it is newer, older or unrelated. A clone that git can't use is put aside (one is
kept, for edits that weren't pushed) and made anew.
"""

import asyncio
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from covey_controller.stores.files.folder import MAX_FILE_BYTES
from covey_controller.stores.git.address import GitAddress
from covey_controller.stores.git.command import FETCH_SECONDS, LOOK_SECONDS, Fault, Git, GitFault

# Documents take at most 64 MiB; the rest is other files of a shared repository at one commit.
MAX_CLONE_BYTES = 256 << 20
REMOTE_REF, HEAD_REF, ASIDE_REFS = "refs/covey/remote", "refs/heads/covey", "refs/covey/aside/"
_INCOMING_REF = "refs/covey/incoming"
SIZE_POLL_SECONDS = 0.5
NEW_FILE_MODE = "100644"
# Who writes commits down; their author is who asked.
COMMITTER = ("Covey", "covey@localhost")
# A tag that is an object of its own is listed twice; the second is the commit.
_PEELED = "^{}"


@dataclass(frozen=True, slots=True)
class Tip:
    """What the remote says that the address means now."""

    commit: str
    ref: str
    """Full name, such as `refs/heads/main`; for an address with a commit, that commit."""

    @property
    def is_branch(self) -> bool:
        return self.ref.startswith("refs/heads/")


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


class Clone:
    """One bare repository that follows one address."""

    def __init__(self, folder: Path, address: GitAddress, git: Git) -> None:
        self.folder = folder
        self._address = address
        self._git = git

    async def open(self) -> bool:
        """Make the repository if there is none, and clear what a killed git left. False: it was damaged, made anew."""
        try:
            is_there = await asyncio.to_thread(self._clear)
            if is_there:
                for ref in (REMOTE_REF, HEAD_REF):
                    if commit := await self.resolve(ref):
                        await self._git.local("cat-file", "-e", f"{commit}^{{tree}}")
            await self._configure()
        except GitFault as error:
            if error.fault is not Fault.DAMAGED:
                raise
            await self.renew()
            return False
        return True

    async def renew(self) -> None:
        """Put the repository aside and begin an empty one."""
        await asyncio.to_thread(self._put_aside)
        await self._configure()

    @property
    def damaged_folder(self) -> Path:
        return self.folder.with_suffix(".damaged")

    async def observe_tip(self) -> Tip:
        """Ask the remote what the address means now. GitFault with GONE when it means nothing."""
        address = self._address
        if address.is_commit:
            return Tip(address.ref, address.ref)
        names = _candidates(address.ref)
        patterns = [pattern for name in names for pattern in (name, f"{name}{_PEELED}")]
        answer = await self._git.remote("ls-remote", "--symref", "origin", *patterns, seconds=LOOK_SECONDS)
        found, default = _parse_refs(answer.decode(errors="replace"))
        for name in names:
            if name in found:
                return Tip(found.get(f"{name}{_PEELED}", found[name]), default if name == "HEAD" and default else name)
        if address.ref:
            raise GitFault(Fault.GONE, f"there is no branch or tag '{address.ref}' in it")
        raise GitFault(Fault.GONE, "it has no commit on its default branch")

    async def fetch(self, tip: Tip) -> str:
        """Get the tip's commit with its files; the commit that came, which may be a newer one."""
        arguments = (
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--depth=1",
            f"--filter=blob:limit={MAX_FILE_BYTES + 1}",
            "origin",
            f"+{tip.ref}:{_INCOMING_REF}",
        )
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch_size())
                await self._git.remote(*arguments, seconds=FETCH_SECONDS)
                watching.cancel()
        except* GitFault as faults:
            raise _first(faults) from None
        commit = await self.resolve(f"{_INCOMING_REF}^{{commit}}")
        if not commit:
            raise GitFault(Fault.GONE, f"'{self._address.ref}' must name a commit")
        return commit

    async def resolve(self, name: str) -> str:
        """The object that a name means; empty if there is none."""
        answer = await self._git.local("rev-parse", "--quiet", "--verify", "--end-of-options", name, nothing_status=1)
        return answer.decode().strip()

    async def point(self, refs: Mapping[str, str]) -> None:
        """Set refs, all at once; an empty commit removes one."""
        lines = [f"update {ref} {commit}" if commit else f"delete {ref}" for ref, commit in refs.items()]
        await self._git.local("update-ref", "--stdin", given="".join(f"{line}\n" for line in lines).encode())

    async def list_refs(self, prefix: str) -> dict[str, str]:
        """Commits by the full names of their refs."""
        answer = await self._git.local("for-each-ref", "--format=%(refname) %(objectname)", prefix)
        pairs = (line.partition(" ") for line in answer.decode().splitlines())
        return {name: commit for name, _, commit in pairs}

    async def list_tree(self, tree: str, *paths: str, recursive: bool = True) -> tuple[Entry, ...]:
        """Names in a tree with their objects, in git's order. Names that are no UTF-8 keep their bytes escaped."""
        flags = ("-r",) if recursive else ()
        answer = await self._git.local("--literal-pathspecs", "ls-tree", *flags, "-z", "--full-tree", tree, *paths)
        entries: list[Entry] = []
        for line in answer.split(b"\0"):
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
                raise GitFault(Fault.DAMAGED, f"the clone '{self.folder}' lacks object {oid}")
            size = int(head[2])
            contents[oid] = answer[end + 1 : end + 1 + size]
            at = end + 1 + size + 1
        return contents

    async def list_ahead(self, remote: str, head: str) -> tuple[str, ...]:
        """Commits above the remote's, oldest first."""
        answer = await self._git.local("rev-list", "--reverse", "--first-parent", f"{remote}..{head}")
        return tuple(answer.decode().split())

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
        index = self.folder / "covey.index"
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

    async def push(self, commit: str, branch: str) -> None:
        """Give the remote a commit. GitFault with REJECTED when its branch isn't the commit's ancestor any more."""
        try:
            await self._git.remote("push", "--quiet", "origin", f"{commit}:{branch}", seconds=LOOK_SECONDS)
        except GitFault as error:
            raise GitFault(error.fault, f"the push failed: {error}") from None

    async def _configure(self) -> None:
        await asyncio.to_thread(self.folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        await self._git.local("init", "--quiet", "--bare", "--template=")
        await self._git.local("config", "remote.origin.url", self._address.url)

    def _clear(self) -> bool:
        """Remove locks and half packs; True if there is a repository. Nobody else works on it: the lock is held."""
        if not (self.folder / "HEAD").exists():
            _remove(self.folder)
            return False
        for pattern in (
            "*.lock",
            "refs/**/*.lock",
            "objects/pack/tmp_*",
            "objects/pack/.tmp-*",
            "objects/**/tmp_obj_*",
        ):
            for left in self.folder.glob(pattern):
                left.unlink(missing_ok=True)
        return True

    def _put_aside(self) -> None:
        _remove(self.damaged_folder)
        if self.folder.exists():
            self.folder.rename(self.damaged_folder)

    async def _watch_size(self) -> None:
        """GitFault when the clone grows beyond its bound."""
        while True:
            await asyncio.sleep(SIZE_POLL_SECONDS)
            if await asyncio.to_thread(_size_of, self.folder) > MAX_CLONE_BYTES:
                words = (
                    f"it brings more than {MAX_CLONE_BYTES >> 20} MiB; put the fleet's documents into a repository of "
                    "their own"
                )
                raise GitFault(Fault.TOO_LARGE, words)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _candidates(ref: str) -> tuple[str, ...]:
    if not ref:
        return ("HEAD",)
    return (ref,) if ref.startswith("refs/") else (f"refs/heads/{ref}", f"refs/tags/{ref}")


def _parse_refs(listing: str) -> tuple[dict[str, str], str]:
    """Commits by name, and the branch that HEAD means."""
    found: dict[str, str] = {}
    default = ""
    for line in listing.splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: "):
            default = value.removeprefix("ref: ") if name == "HEAD" else default
        elif name:
            found[name] = value
    return found, default


def _first(faults: BaseExceptionGroup[GitFault]) -> GitFault:
    found = faults.exceptions[0]
    return found if isinstance(found, GitFault) else _first(found)


def _size_of(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total
