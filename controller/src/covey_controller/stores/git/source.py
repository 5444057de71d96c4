"""Follows a repository: asks the remote, fetches, reads the commit, puts it in force; and commits what people apply.

One task does all of that, one thing after the other. What git does is `clone`'s, what a commit holds is `tree`'s, how
edits stay above a remote that moves is `edits`', and what an empty or broken set means is decided by the same `rest` as
for a folder. A commit is whole by itself, so nothing waits for rest: what it no longer holds goes at once.
"""

import asyncio
import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from covey_controller.ports import Applied, LeaseLost
from covey_controller.stores.files.database import StoreFault
from covey_controller.stores.files.edit_queue import EditQueue, Request, refusal
from covey_controller.stores.files.file_memory import FileMemory
from covey_controller.stores.files.in_force import Leadership, list_deletable
from covey_controller.stores.files.notices import render_notices
from covey_controller.stores.files.request import Apply, Delete, PlannedFiles, plan_files
from covey_controller.stores.files.rest import (
    ParseDocuments,
    SetRead,
    SetWritten,
    parse_set,
    step,
)
from covey_controller.stores.files.standing import Standing, Words
from covey_controller.stores.git.author import parse_author
from covey_controller.stores.git.branch import Branch
from covey_controller.stores.git.clone import Clone
from covey_controller.stores.git.clone_lock import take_clone_lock
from covey_controller.stores.git.command import Fault, Git, GitFault
from covey_controller.stores.git.edits import (
    render_message,
)
from covey_controller.stores.git.notices import render_cause, render_fault, render_line_notices, render_place
from covey_controller.stores.git.settings import GitSettings
from covey_controller.stores.git.tree import TreeFiles

log = logging.getLogger(__name__)

_WORDS = Words(
    error="%(file)s:%(line)d at commit %(digest)s: %(message)s",
    refused="commit %(digest)s of '%(name)s' is not applied; still running %(applied)s",
    valid="'%(name)s' is valid again: commit %(digest)s",
)

# A server that is away is asked less and less, but an outage's end is noticed within this.
MAX_BACKOFF_SECONDS = 300.0
# However often a webhook calls.
MIN_LOOK_SECONDS = 1.0
# Between tries of a turn that fails while somebody waits for an edit.
FAILED_PAUSE_SECONDS = 0.5
# Waits before the next try when somebody else pushed first; five in a row means that they never stop.
PUSH_WAITS_SECONDS = (0.1, 0.3, 1.0, 2.0, 0.0)


class GitSource:
    """The source of one store."""

    def __init__(self, settings: GitSettings, folder: Path, parse: ParseDocuments, *, allow_empty: bool) -> None:
        """`folder`: of the clone; its lock is beside it."""
        self._settings = settings
        self._name = str(settings.address)
        self._folder = folder
        self._parse = parse
        self._parse_whole = FileMemory(parse)
        self._standing = Standing(self._name, _WORDS, log, allow_empty=allow_empty)
        self._wake = asyncio.Event()
        self._edits = EditQueue(self._name, self._wake.set)
        self._lock: int | None = None
        self._branch: Branch | None = None
        self._tree = TreeFiles({})
        self._tree_commit: str = ""
        self._looked_at = float("-inf")
        self._look_at = 0.0
        self._failures = 0
        self._has_failed = False
        self._fault = ""
        self._damage = ""
        self._is_damaged = False
        self.wake = self._wake.set
        """Look whether there is anything to do."""
        self.listed = self._standing.listed
        self.changed = self._standing.changed
        self.state = self._standing.state
        self.read_secret = self._standing.read_secret

    def refresh(self) -> None:
        """Ask the remote now: somebody says that it has changed."""
        self._look_at = self._looked_at + MIN_LOOK_SECONDS
        self._wake.set()

    async def ask(self, asked: Apply | Delete) -> tuple[Applied, ...]:
        """Commit an edit; returns when it is in force."""
        return await self._edits.ask(asked)

    async def follow(self, leadership: Leadership) -> None:
        """Keep the records equal to the source for as long as this process leads."""
        try:
            while not leadership.is_lost():
                self._has_failed = False
                try:
                    await self._turn(leadership, self._branch or await self._begin(leadership))
                except GitFault as error:
                    self._set_back(error)
                except OSError as error:
                    self._back_off(f"source '{self._name}' can't be read: {error}. What ran goes on.")
                self._say_notices()
                await self._pause()
        except LeaseLost:
            pass
        finally:
            self._end()

    def close(self) -> None:
        self._standing.close()

    async def _begin(self, leadership: Leadership) -> Branch:
        """Take the clone, and put in force what it holds: the remote may be away."""
        if self._lock is None:
            self._lock = await self._standing.off_loop(partial(take_clone_lock, self._folder.with_suffix(".lock")))
        git = Git(self._folder, self._settings.address.scheme, self._settings.environment, self._lock)
        branch = Branch(Clone(self._folder, self._settings.address, git), self._settings)
        running = await self._standing.take_up(leadership)
        self._standing.rest = replace(self._standing.rest, running=running)
        if not await branch.open():
            self._say_damaged(branch)
        self._branch = branch
        self._look_at = self._now()
        if branch.line.head:
            await self._read_head(leadership, branch)
        return branch

    async def _turn(self, leadership: Leadership, branch: Branch) -> None:
        if self._is_damaged:
            await branch.renew()
            self._is_damaged = False
            self._say_damaged(branch)
        if self._now() >= self._look_at:
            await self._look(branch)
        await self._read_head(leadership, branch)
        if request := self._edits.first():
            await self._serve(leadership, branch, request)

    async def _pause(self) -> None:
        """Until the next look, an edit, or a signal."""
        delay = self._look_at - self._now()
        if self._edits.first():
            delay = FAILED_PAUSE_SECONDS if self._has_failed else 0.0
        try:
            async with asyncio.timeout(max(0.0, delay)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _look(self, branch: Branch) -> None:
        self._looked_at = self._now()
        await branch.look()
        self._failures, self._fault = 0, ""
        self._look_at = self._now() + self._settings.wait_seconds * self._settings.spread()

    async def _read_head(self, leadership: Leadership, branch: Branch) -> None:
        """Put the head in force if it wasn't read yet and is valid."""
        head = branch.line.head
        if head and head != self._tree_commit:
            tree = await branch.read_head()
            work = partial(parse_set, head[:12], tree.files, self._parse_whole, tree.errors, tree.is_missing)
            read = await self._standing.off_loop(work)
            # A commit has no half-written files: it counts as rested for ever.
            rested = replace(self._standing.rest, read=None, stirred_at=float("-inf"), unrest_since=self._now())
            await self._standing.put_in_force(leadership, *step(rested, SetRead(read), self._now()))
            self._tree, self._tree_commit = tree, head
        self.listed.set()

    async def _serve(self, leadership: Leadership, branch: Branch, request: Request) -> None:
        try:
            request.fulfil(await self._edit(leadership, branch, request.asked))
        except GitFault as error:
            request.fail(refusal(self._name, f"nothing was changed: {render_cause(error)}"))
            if error.fault is Fault.DAMAGED:
                raise
        except (StoreFault, LeaseLost) as error:
            # The commit may be made of which the records know nothing: read it as anybody's.
            self._tree_commit = ""
            request.fail(error)
            raise
        except Exception as error:
            request.fail(error)

    async def _edit(self, leadership: Leadership, branch: Branch, asked: Apply | Delete) -> tuple[Applied, ...]:
        """Plan, commit, push if that is wanted, put in force. When somebody else pushes first: all of it again."""
        for wait_seconds in PUSH_WAITS_SECONDS:
            if self._settings.pushes:
                await self._look(branch)
                await self._read_head(leadership, branch)
            planned = await self._plan(leadership, branch, asked)
            head = branch.line.head
            if planned.edits:
                try:
                    signature = parse_author(asked.author, render_message(planned.results))
                    head = await branch.commit(planned.edits, signature, is_file=self._tree.is_file)
                except GitFault as error:
                    if error.fault is not Fault.REJECTED:
                        raise
                    await asyncio.sleep(wait_seconds)
                    continue
            after = replace(planned.after, digest=head[:12])
            if planned.edits or planned.deleted:
                rest, choice = step(self._standing.rest, SetWritten(after, planned.deleted), self._now())
                await self._standing.put_in_force(leadership, rest, choice, planned.deleted)
                names = self._tree.names | {path.split("/", 1)[0] for path in planned.edits}
                self._tree = replace(self._tree, files=planned.files, is_missing=False, names=names)
                self._tree_commit = head
            return planned.results
        raise self._refuse(
            f"somebody else pushed to '{self._name}' first, {len(PUSH_WAITS_SECONDS)} times in a row. Nothing was "
            "changed; try again"
        )

    async def _plan(self, leadership: Leadership, branch: Branch, asked: Apply | Delete) -> PlannedFiles:
        if not self._tree_commit:
            raise self._refuse(f"nothing was changed: the source hasn't been fetched yet. {self._fault}".strip())
        if words := branch.explain_no_edit():
            raise self._refuse(f"nothing was changed: {words}")
        present = await leadership.on_records(list_deletable)
        work = partial(
            plan_files,
            asked,
            self._tree.files,
            self._standing.read,
            present,
            self._parse,
            self._parse_whole,
            single_file=os.path.basename(self._settings.address.path) if self._tree.is_file else None,
            taken=self._tree.names,
        )
        return await self._standing.off_loop(work)

    def _refuse(self, words: str) -> Exception:
        return refusal(self._name, words)

    def _set_back(self, error: GitFault) -> None:
        """After a fault of git's: what ran goes on, and the remote is asked again later."""
        if error.fault is Fault.DAMAGED and self._branch is not None:
            self._is_damaged = True
            self._tree_commit = ""
        self._back_off(render_fault(self._name, error))

    def _back_off(self, fault: str) -> None:
        self._failures += 1
        self._has_failed = True
        # Capped before it is raised to a power: an outage of a week is thousands of failures.
        delay = self._settings.wait_seconds * 2.0 ** min(self._failures - 1, 16)
        self._look_at = self._now() + min(MAX_BACKOFF_SECONDS, delay) * self._settings.spread()
        self._fault = fault
        self.listed.set()

    def _end(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock, self._branch = None, None
        self._tree_commit = ""
        self._edits.fail_all(LeaseLost("this process doesn't lead any more; ask the leader"))

    def _say_damaged(self, branch: Branch) -> None:
        """After it was made anew."""
        self._damage = (
            f"the clone of '{self._name}' was damaged and is made anew; the old one is "
            f"'{branch.clone.damaged_folder}': remove it unless it holds edits that weren't pushed"
        )

    def _say_notices(self) -> None:
        rest = self._standing.rest
        place = render_place(self._settings.address, rest.read.digest if rest.read is not None else "")
        words = (self._damage, *render_notices(rest, self._name, self._fault, "", 0.0, place=place))
        found = [word for word in words if word]
        if (branch := self._branch) is not None:
            ref = branch.tip.ref if branch.tip is not None else ""
            ahead, aside = len(branch.line.ahead), branch.line.aside
            found += render_line_notices(self._folder, ref, ahead, aside, self._settings.pushes)
        self._standing.say_notices(found)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
