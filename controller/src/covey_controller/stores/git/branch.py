"""What the clone holds of the address, kept in step with the remote: look, fetch, carry over, commit, push.

It decides which commit is wanted, and knows nothing of what documents mean or what of them runs.
"""

import os
from collections.abc import Mapping
from dataclasses import replace

from covey_controller.stores.git.clone import Clone, Tip
from covey_controller.stores.git.edits import MAX_AHEAD, Line, move_line, read_line, shorten_line, write_edit
from covey_controller.stores.git.objects import Signature
from covey_controller.stores.git.refs import HEAD_REF, REMOTE_REF
from covey_controller.stores.git.settings import GitSettings
from covey_controller.stores.git.tree import TreeFiles, read_tree

EMPTY_LINE = Line("", "", (), {})


class Branch:
    """One address in one clone."""

    def __init__(self, clone: Clone, settings: GitSettings) -> None:
        self.clone = clone
        self._settings = settings
        self.line = EMPTY_LINE
        self.tip: Tip | None = None
        """What the remote said last; None until it has answered."""

    async def open(self) -> bool:
        """Take up what the clone holds. False: it was damaged, and is empty now."""
        was_whole = await self.clone.open()
        self.line = await read_line(self.clone)
        return was_whole

    async def renew(self) -> None:
        self.line = EMPTY_LINE
        await self.clone.renew()

    async def look(self) -> None:
        """Ask the remote what is wanted, and get it; push what waits for it if that is allowed."""
        tip = await self.clone.observe_tip()
        if tip.commit in self.line.ahead:
            self.line = await shorten_line(self.clone, self.line, tip.commit)
        elif tip.commit != self.line.remote:
            # The remote has just answered, and nothing is here that it doesn't have.
            if not self.line.ahead and not self.line.aside and await self.clone.is_overgrown():
                self.line = EMPTY_LINE
                await self.clone.begin_anew()
            self.line = await move_line(self.clone, self.line, await self.clone.fetch(tip))
        self.tip = tip
        if self._settings.pushes and self.line.ahead and tip.is_branch:
            await self._push(self.line.head, tip)

    async def read_head(self) -> TreeFiles:
        return await read_tree(self.clone.objects, self.line.head, self._settings.address.path)

    async def commit(self, files: Mapping[str, bytes | None], signature: Signature, *, is_file: bool) -> str:
        """An edit above the head, and at the remote if that is wanted. Nothing has changed when it fails.

        `is_file`: the source is one file, so that paths are relative to its folder.
        """
        path = self._settings.address.path
        folder = os.path.dirname(path) if is_file else path
        commit = await write_edit(self.clone, self.line.head, files, signature, folder)
        if self._settings.pushes and self.tip is not None:
            await self._push(commit, self.tip)
        else:
            await self.clone.point({HEAD_REF: commit})
            self.line = replace(self.line, head=commit, ahead=(*self.line.ahead, commit))
        return commit

    def explain_no_edit(self) -> str:
        """Why nothing can be committed; empty when it can."""
        address = self._settings.address
        if address.is_commit or (self.tip is not None and not self.tip.is_branch):
            return (
                f"the source follows '{address.ref}', which is no branch, so there is nothing to add a commit to. "
                "Start with a branch as REF"
            )
        if not self.line.head:
            return "the source is being fetched anew. Try again when `covey get source` shows its commit"
        if len(self.line.ahead) >= MAX_AHEAD and not self._settings.pushes:
            return (
                f"at most {MAX_AHEAD} edits may wait to be pushed. Push them (see `covey get source`), or start with "
                "`--push`"
            )
        return ""

    async def _push(self, commit: str, tip: Tip) -> None:
        await self.clone.push(commit, tip.ref)
        await self.clone.point({REMOTE_REF: commit, HEAD_REF: commit})
        self.line = replace(self.line, remote=commit, head=commit, ahead=())
        self.tip = replace(tip, commit=commit)
