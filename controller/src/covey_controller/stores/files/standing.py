"""Where a source stands: what of it runs, what was read last, and what was said about it. The same for every source.

It owns one thread for reading and planning. When to look, and what to do with an edit, is the source's.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from covey_api.kinds import ObjectKey

from covey_controller.ports import SourceState
from covey_controller.stores.files.in_force import Leadership, store_choice
from covey_controller.stores.files.rest import Choice, ReadSet, Rest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Words:
    """How a source calls its sets in the log; each takes the source's `name`, and what the comment says."""

    error: str
    """`file`, `line`, `message` and `digest` of the set."""
    refused: str
    """`digest`, and `applied`: the set that runs."""
    valid: str
    """`digest`."""


class Standing:
    """One source's."""

    def __init__(self, name: str, words: Words, log: logging.Logger, *, allow_empty: bool) -> None:
        self.name = name
        self._words = words
        self._log = log
        self._threads = ThreadPoolExecutor(1, "source")
        self.rest = Rest(allow_empty=allow_empty, running=frozenset(), stirred_at=0.0, unrest_since=0.0)
        self.read = ReadSet("")
        """The last set that was read; it is in force when it has no error."""
        self.applied = ""
        self._notices: tuple[str, ...] = ()
        self.listed = asyncio.Event()
        """Set once the source has been read, or can't be, since this process leads."""
        self.changed = asyncio.Event()
        """Set when desired objects change; whoever reads them clears it."""

    def state(self) -> SourceState:
        return SourceState(self.name, self.applied, self.read.digest, self.read.errors, self._notices)

    def read_secret(self, key: ObjectKey, name: str) -> bytes | None:
        """One value of a Secret in force; None if there is none."""
        secret = self.rest.secrets.get(key)
        return secret.values.get(name) if secret is not None else None

    async def take_up(self, leadership: Leadership) -> frozenset[ObjectKey]:
        """What the records say is in force, when this process begins to lead."""
        running, self.applied = await leadership.on_records(lambda records: (records.documented, records.applied))
        return running

    async def put_in_force(
        self, leadership: Leadership, rest: Rest, choice: Choice | None, deleted: frozenset[ObjectKey] = frozenset()
    ) -> None:
        """Store a decision, then take it as made: what the disk refuses is decided again."""
        if choice is not None:
            has_changed, self.applied = await leadership.on_records(partial(store_choice, choice, deleted))
            if has_changed:
                self._log.info("in force from '%s': %d objects", self.name, len(rest.running))
                self.changed.set()
        self.rest = rest
        if rest.read is not None:
            self._say_errors(rest.read)
            self.read = rest.read

    def say_notices(self, notices: Sequence[str]) -> None:
        """Log each when it first holds."""
        for notice in notices:
            if notice not in self._notices:
                self._log.warning("%s", notice)
        self._notices = tuple(notices)

    async def off_loop(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _say_errors(self, read: ReadSet) -> None:
        """Each error once."""
        if read.digest == self.read.digest:
            return
        names = {"name": self.name, "digest": read.digest, "applied": self.applied}
        for error in read.errors:
            place = {"file": error.file, "line": error.line, "message": error.message}
            self._log.error(self._words.error, place | names)
        if read.errors:
            self._log.error(self._words.refused, names)
        elif self.read.errors:
            self._log.info(self._words.valid, names)
