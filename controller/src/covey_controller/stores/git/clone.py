"""The clone in the state folder: a bare repository with as little of the remote as the source needs.

It knows git and refs, nothing of documents. Three refs, and nobody else writes here:

    refs/covey/remote   the newest commit fetched
    refs/heads/covey    what Covey wants to run: the remote's commit, and above it the edits not pushed yet
    refs/covey/aside/N  edits that contradict what the remote became; kept until somebody removes them

Fetches are one commit deep and leave out files larger than a document may be. History decides and no clock does: what
the ref names now is wanted, whether it is newer, older or unrelated. A clone that git can't use is put aside
(`damaged`) and made anew. Whether it can't is never the remote's to say: its words only make us look.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from covey_controller.stores.files.folder import MAX_FILE_BYTES
from covey_controller.stores.git.address import GitAddress
from covey_controller.stores.git.command import FETCH_SECONDS, LOOK_SECONDS, Fault, Git, GitFault
from covey_controller.stores.git.damaged import may_hold_edits, put_aside, remove
from covey_controller.stores.git.objects import Objects
from covey_controller.stores.git.refs import ASIDE_REFS, HEAD_REF, INCOMING_REF, REMOTE_REF

# Documents take at most 64 MiB; the rest is other files of a shared repository at one commit.
MAX_CLONE_BYTES = 256 << 20
# With what was fetched before. At least as much again as one commit may bring: it is fetched whole that seldom.
MAX_KEPT_BYTES = 512 << 20
SIZE_POLL_SECONDS = 0.5
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


class Clone:
    """One bare repository that follows one address."""

    def __init__(self, folder: Path, address: GitAddress, git: Git) -> None:
        self.folder = folder
        self.objects = Objects(folder, git)
        self.damaged_folder: Path | None = None
        """Where the one before is, that was damaged."""
        self._address = address
        self._git = git

    async def open(self) -> bool:
        """Make the repository if there is none, and clear what a killed git left. False: it was damaged, made anew."""
        try:
            is_there = await asyncio.to_thread(self._clear)
            if is_there:
                for ref in (REMOTE_REF, HEAD_REF):
                    if commit := await self.objects.resolve(ref):
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
        self.damaged_folder = await asyncio.to_thread(put_aside, self.folder)
        await self._configure()

    async def is_overgrown(self) -> bool:
        """Whether it holds more of what was fetched before than a fresh one costs."""
        return await asyncio.to_thread(_size_of, self.folder) > MAX_KEPT_BYTES

    async def begin_anew(self) -> None:
        """An empty repository instead; what only this one has is lost."""
        await asyncio.to_thread(remove, self.folder)
        await self._configure()

    async def observe_tip(self) -> Tip:
        """Ask the remote what the address means now. GitFault with GONE when it means nothing."""
        address = self._address
        if address.is_commit:
            return Tip(address.ref, address.ref)
        names = _candidates(address.ref)
        patterns = [pattern for name in names for pattern in (name, f"{name}{_PEELED}")]
        try:
            answer = await self._git.remote("ls-remote", "--symref", "origin", *patterns, seconds=LOOK_SECONDS)
        except GitFault as error:
            raise await self._judge(error) from None
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
            f"+{tip.ref}:{INCOMING_REF}",
        )
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch_size())
                await self._git.remote(*arguments, seconds=FETCH_SECONDS)
                watching.cancel()
        except* GitFault as faults:
            await asyncio.to_thread(self._clear)
            raise await self._judge(_first(faults)) from None
        commit = await self.objects.resolve(f"{INCOMING_REF}^{{commit}}")
        if not commit:
            raise GitFault(Fault.GONE, f"'{self._address.ref}' must name a commit")
        return commit

    async def point(self, refs: Mapping[str, str]) -> None:
        """Set refs, all at once; an empty commit removes one."""
        lines = [f"update {ref} {commit}" if commit else f"delete {ref}" for ref, commit in refs.items()]
        await self._git.local("update-ref", "--stdin", given="".join(f"{line}\n" for line in lines).encode())

    async def list_refs(self, prefix: str) -> dict[str, str]:
        """Commits by the full names of their refs."""
        answer = await self._git.local("for-each-ref", "--format=%(refname) %(objectname)", prefix)
        pairs = (line.partition(" ") for line in answer.decode().splitlines())
        return {name: commit for name, _, commit in pairs}

    async def list_ahead(self, remote: str, head: str) -> tuple[str, ...]:
        """Commits above the remote's, oldest first."""
        answer = await self._git.local("rev-list", "--reverse", "--first-parent", f"{remote}..{head}")
        return tuple(answer.decode().split())

    async def push(self, commit: str, branch: str) -> None:
        """Give the remote a commit. GitFault with REJECTED when its branch isn't the commit's ancestor any more."""
        try:
            await self._git.remote("push", "--quiet", "origin", f"{commit}:{branch}", seconds=LOOK_SECONDS)
        except GitFault as error:
            judged = await self._judge(error)
            raise GitFault(judged.fault, f"the push failed: {error}") from None

    async def _judge(self, error: GitFault) -> GitFault:
        """A failure of a call of the remote: DAMAGED if it may be the clone's fault, and the clone doesn't hold."""
        if not error.may_be_ours:
            return error
        try:
            refs = [REMOTE_REF, HEAD_REF, *await self.list_refs(ASIDE_REFS)]
            commits = [commit for ref in refs if (commit := await self.objects.resolve(ref))]
            await self._git.local("fsck", "--connectivity-only", "--no-dangling", "--no-progress", *commits)
            if packs := sorted(str(path) for path in self.folder.glob("objects/pack/*.idx")):
                await self._git.local("verify-pack", *packs)
        except GitFault as own:
            # Not checked in time proves nothing.
            return GitFault(Fault.DAMAGED, str(error)) if own.fault is Fault.DAMAGED else error
        return error

    async def _configure(self) -> None:
        await asyncio.to_thread(self.folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        await self._git.local("init", "--quiet", "--bare", "--template=")
        await self._git.local("config", "remote.origin.url", self._address.url)

    def _clear(self) -> bool:
        """Remove locks and half packs; True if there is a repository. Nobody else works on it: the lock is held.

        GitFault with DAMAGED for one that lost its HEAD and may hold edits.
        """
        if not (self.folder / "HEAD").exists():
            if may_hold_edits(self.folder):
                raise GitFault(Fault.DAMAGED, f"the clone '{self.folder}' lacks its HEAD")
            remove(self.folder)
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

    async def _watch_size(self) -> None:
        """GitFault when the clone grows beyond its bound."""
        before = await asyncio.to_thread(_size_of, self.folder)
        while True:
            await asyncio.sleep(SIZE_POLL_SECONDS)
            if await asyncio.to_thread(_size_of, self.folder) - before > MAX_CLONE_BYTES:
                words = (
                    f"it brings more than {MAX_CLONE_BYTES >> 20} MiB; put the fleet's documents into a repository of "
                    "their own"
                )
                raise GitFault(Fault.TOO_LARGE, words)


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
