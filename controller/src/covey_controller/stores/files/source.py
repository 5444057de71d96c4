"""Follows a source: looks, waits for rest, reads, puts in force; and edits it when people apply or delete by name.

One task does all of that, one thing after the other, so an edit never meets a half-done reading. What is decided is
`rest`'s; what is read is `folder`'s; what is kept is `records`'. This module owns the order, the words and the waiting.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from covey_api.kinds import ObjectKey

from covey_controller.ports import Applied, LeaseLost, SourceState
from covey_controller.stores.files.database import StoreFault
from covey_controller.stores.files.edit_queue import EditQueue, Request, refusal
from covey_controller.stores.files.file_memory import FileMemory
from covey_controller.stores.files.folder import Scan, digest_of, read_source, scan_source
from covey_controller.stores.files.in_force import Leadership, list_deletable, store_choice
from covey_controller.stores.files.notices import LOOK_SECONDS, render_notices
from covey_controller.stores.files.records import Records
from covey_controller.stores.files.request import Apply, Delete, PlannedEdit, plan_request
from covey_controller.stores.files.rest import (
    REST_SECONDS,
    Choice,
    ParseDocuments,
    ReadSet,
    Rest,
    SetRead,
    SetWritten,
    Stirred,
    parse_set,
    step,
)
from covey_controller.stores.files.watch import Watch
from covey_controller.stores.files.writing import Disk, SourceChanged, finish_write, write_changes

log = logging.getLogger(__name__)
T = TypeVar("T")


class FolderSource:
    """The source of one store."""

    def __init__(
        self, source: Path, parse: ParseDocuments, *, allow_empty: bool, utc_now: Callable[[], datetime], disk: Disk
    ) -> None:
        self._source = source
        self._parse = parse
        self._parse_whole = FileMemory(parse)
        self._allow_empty = allow_empty
        self._utc_now = utc_now
        self._disk = disk
        self._threads = ThreadPoolExecutor(1, "source")
        self._wake = asyncio.Event()
        self._edits = EditQueue(str(source), self._wake.set)
        self._scan: Scan | None = None
        self._rest = Rest(allow_empty=allow_empty, running=frozenset(), stirred_at=0.0, unrest_since=0.0)
        self._read = ReadSet("")
        self._applied = ""
        self._verify_at: float | None = None
        self._fault = ""
        self._notices: tuple[str, ...] = ()
        self.wake = self._wake.set
        """Look now."""
        self.refresh = self._wake.set
        self.watch = Watch(source, self.wake)
        self.listed = asyncio.Event()
        """Set once the source has been read since this process leads."""
        self.changed = asyncio.Event()
        """Set when desired objects change; whoever reads them clears it."""

    def state(self) -> SourceState:
        return SourceState(str(self._source), self._applied, self._read.digest, self._read.errors, self._notices)

    def read_secret(self, key: ObjectKey, name: str) -> bytes | None:
        """One value of a Secret in force; None if there is none."""
        secret = self._rest.secrets.get(key)
        return secret.values.get(name) if secret is not None else None

    async def ask(self, asked: Apply | Delete) -> tuple[Applied, ...]:
        """Edit the source; returns when the edit is in force."""
        return await self._edits.ask(asked)

    async def follow(self, leadership: Leadership) -> None:
        """Keep the records equal to the source for as long as this process leads."""
        try:
            while not leadership.is_lost():
                try:
                    if self._scan is None:
                        await self._begin(leadership)
                    await self._turn(leadership)
                    self._fault = ""
                except OSError as error:
                    # A disk that refuses is no reason to end: what runs goes on, and it is tried again.
                    self._fault = str(error)
                    self.listed.set()
                self._say_notices()
                await self._pause()
        except LeaseLost:
            pass
        finally:
            self._scan = None
            self._edits.fail_all(LeaseLost("this process doesn't lead any more; ask the leader"))

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _off_loop(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _begin(self, leadership: Leadership) -> None:
        """Finish what an ended process began to write, and take up what was in force."""
        changes = await leadership.on_records(Records.unfinished_write)
        if changes:
            left = await self._off_loop(partial(finish_write, self._disk, changes))
            await leadership.on_records(Records.end_write)
            log.warning("finished an edit of the source that was cut off; files changed since: %s", left or "none")
        running, self._applied = await leadership.on_records(lambda records: (records.documented, records.applied))
        scan = await self._off_loop(partial(scan_source, self._source))
        now = self._now()
        # A source that nobody touched for long has rested already; a clock that is wrong costs one rest.
        age = self._utc_now().timestamp() - scan.newest_seconds
        stirred_at = now - (0.0 if scan.is_missing else max(0.0, age))
        self._rest = Rest(self._allow_empty, running, stirred_at=stirred_at, unrest_since=now)
        self._look_at(scan)

    async def _turn(self, leadership: Leadership) -> None:
        """Look once, and do what is due."""
        scan = await self._off_loop(partial(scan_source, self._source))
        now = self._now()
        if scan != self._scan:
            self._stir(scan, now)
        due_at = self._due_at()
        if due_at is not None and now >= due_at:
            self._verify_at = None
            await self._read_set(leadership, now)
        elif self._rest.read is not None and (request := self._edits.first()):
            await self._serve(leadership, request)

    async def _pause(self) -> None:
        """Until something is due, signalled or asked; after a fault, until the next look."""
        delay = LOOK_SECONDS
        if not self._fault:
            if self._rest.read is not None and self._edits.first():
                return
            if (due_at := self._due_at()) is not None:
                delay = min(delay, due_at - self._now())
        try:
            async with asyncio.timeout(max(0.0, delay)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _due_at(self) -> float | None:
        """When the source must be read next."""
        due = [at for at in (self._rest.due_at, self._verify_at) if at is not None]
        return min(due, default=None)

    def _look_at(self, scan: Scan) -> None:
        self._scan = scan
        self.watch.look_at(scan)

    def _stir(self, scan: Scan | None, now: float) -> None:
        if scan is not None:
            self._look_at(scan)
        self._rest, _ = step(self._rest, Stirred(), now)

    async def _read_set(self, leadership: Leadership, now: float) -> None:
        snapshot = await self._off_loop(partial(read_source, self._source))
        if snapshot is None or snapshot.scan != self._scan:
            self._stir(snapshot.scan if snapshot else None, now)
            return
        digest = digest_of(snapshot.files, snapshot.errors)
        read = self._rest.read
        if read is None or read.digest != digest:
            work = partial(
                parse_set, digest, snapshot.files, self._parse_whole, snapshot.errors, snapshot.scan.is_missing
            )
            read = await self._off_loop(work)
        await self._put_in_force(leadership, *step(self._rest, SetRead(read), now))

    async def _put_in_force(
        self, leadership: Leadership, rest: Rest, choice: Choice | None, deleted: frozenset[ObjectKey] = frozenset()
    ) -> None:
        """Store a decision, then take it as made: what the disk refuses is decided again."""
        if choice is not None:
            has_changed, self._applied = await leadership.on_records(partial(store_choice, choice, deleted))
            if has_changed:
                log.info("in force from '%s': %d objects", self._source, len(rest.running))
                self.changed.set()
        self._rest = rest
        if rest.read is not None:
            self._say_errors(rest.read)
            self._read = rest.read
            self.listed.set()

    async def _serve(self, leadership: Leadership, request: Request) -> None:
        try:
            request.fulfil(await self._edit(leadership, request.asked))
        except SourceChanged:
            # It stays first, and is planned anew when the source has rested again.
            self._stir(None, self._now())
        except (StoreFault, LeaseLost) as error:
            # Files may be written of which the records know nothing: read them as anybody's.
            self._stir(None, self._now())
            request.fail(error)
            raise
        except Exception as error:
            request.fail(error)

    async def _edit(self, leadership: Leadership, asked: Apply | Delete) -> tuple[Applied, ...]:
        """Plan, write, put in force. SourceChanged when somebody else edits the source meanwhile."""
        read = self._rest.read
        snapshot = await self._off_loop(partial(read_source, self._source))
        if read is None or snapshot is None or digest_of(snapshot.files, snapshot.errors) != read.digest:
            raise SourceChanged
        present = await leadership.on_records(list_deletable)
        work = partial(plan_request, asked, self._source, snapshot, read, present, self._parse, self._parse_whole)
        planned = await self._off_loop(work)
        if planned.changes:
            await self._write(leadership, planned)
            after = await self._off_loop(partial(read_source, self._source))
            if after is not None and after.files == planned.files:
                self._look_at(after.scan)
            # A save in the same tick of the file system's clock as ours looks like ours: read once more after a rest.
            self._verify_at = self._now() + REST_SECONDS
        if planned.changes or planned.deleted:
            written = SetWritten(planned.after, planned.deleted)
            rest, choice = step(self._rest, written, self._now())
            await self._put_in_force(leadership, rest, choice, planned.deleted)
        return planned.results

    async def _write(self, leadership: Leadership, planned: PlannedEdit) -> None:
        # One rename is whole or not by itself; several are remembered until they are done.
        is_remembered = len(planned.changes) > 1
        if is_remembered:
            await leadership.on_records(lambda records: records.begin_write(planned.changes))
        try:
            await self._off_loop(partial(write_changes, self._disk, planned.changes))
        except (OSError, SourceChanged) as error:
            if is_remembered:
                await leadership.on_records(Records.end_write)
            if isinstance(error, OSError):
                raise refusal(
                    str(self._source),
                    f"the source can't be written: {error}. Nothing was changed; make room or give access, try again",
                ) from error
            raise

    def _say_errors(self, read: ReadSet) -> None:
        """Each error once."""
        if read.digest == self._read.digest:
            return
        for error in read.errors:
            log.error("%s:%d: %s", error.file, error.line, error.message)
        if read.errors:
            log.error("set %s of '%s' is not applied; what ran goes on", read.digest, self._source)
        elif self._read.errors:
            log.info("'%s' is valid again: set %s", self._source, read.digest)

    def _say_notices(self) -> None:
        """Recompute the notices; log each when it first holds."""
        notices = tuple(render_notices(self._rest, str(self._source), self._fault, self.watch.fault, self._now()))
        for notice in notices:
            if notice not in self._notices:
                log.warning("%s", notice)
        self._notices = notices

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
