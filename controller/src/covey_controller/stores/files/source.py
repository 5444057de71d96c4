"""Follows a source: looks, waits for rest, reads, puts in force; and edits it when people apply or delete by name.

One task does all of that, one thing after the other, so an edit never meets a half-done reading. What is decided is
`rest`'s; what is read is `folder`'s; what is kept is `records`'. This module owns the order, the words and the waiting.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

from covey_controller.ports import Applied, LeaseLost
from covey_controller.stores.files.database import StoreFault
from covey_controller.stores.files.edit_queue import EditQueue, Request, refusal
from covey_controller.stores.files.file_memory import FileMemory
from covey_controller.stores.files.folder import Scan, digest_of, read_source, scan_source
from covey_controller.stores.files.in_force import Leadership, list_deletable
from covey_controller.stores.files.notices import LOOK_SECONDS, render_notices
from covey_controller.stores.files.records import Records
from covey_controller.stores.files.request import Apply, Delete, PlannedEdit, plan_request
from covey_controller.stores.files.rest import (
    REST_SECONDS,
    ParseDocuments,
    Rest,
    SetRead,
    SetWritten,
    Stirred,
    parse_set,
    step,
)
from covey_controller.stores.files.standing import Standing, Words
from covey_controller.stores.files.watch import Watch
from covey_controller.stores.files.writing import Disk, SourceChanged, finish_write, write_changes

log = logging.getLogger(__name__)

_WORDS = Words(
    error="%(file)s:%(line)d: %(message)s",
    refused="set %(digest)s of '%(name)s' is not applied; what ran goes on",
    valid="'%(name)s' is valid again: set %(digest)s",
)


class FolderSource:
    """The source of one store."""

    def __init__(
        self, source: Path, parse: ParseDocuments, *, allow_empty: bool, utc_now: Callable[[], datetime], disk: Disk
    ) -> None:
        self._source = source
        self._parse = parse
        self._parse_whole = FileMemory(parse)
        self._standing = Standing(str(source), _WORDS, log, allow_empty=allow_empty)
        self._utc_now = utc_now
        self._disk = disk
        self._wake = asyncio.Event()
        self._edits = EditQueue(str(source), self._wake.set)
        self._scan: Scan | None = None
        self._verify_at: float | None = None
        self._fault = ""
        self.wake = self._wake.set
        """Look now."""
        self.refresh = self._wake.set
        self.watch = Watch(source, self.wake)
        self.listed = self._standing.listed
        self.changed = self._standing.changed
        self.state = self._standing.state
        self.read_secret = self._standing.read_secret

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
        self._standing.close()

    async def _begin(self, leadership: Leadership) -> None:
        """Finish what an ended process began to write, and take up what was in force."""
        changes = await leadership.on_records(Records.unfinished_write)
        if changes:
            left = await self._standing.off_loop(partial(finish_write, self._disk, changes))
            await leadership.on_records(Records.end_write)
            log.warning("finished an edit of the source that was cut off; files changed since: %s", left or "none")
        running = await self._standing.take_up(leadership)
        scan = await self._standing.off_loop(partial(scan_source, self._source))
        now = self._now()
        # A source that nobody touched for long has rested already; a clock that is wrong costs one rest.
        age = self._utc_now().timestamp() - scan.newest_seconds
        stirred_at = now - (0.0 if scan.is_missing else max(0.0, age))
        allow_empty = self._standing.rest.allow_empty
        self._standing.rest = Rest(allow_empty, running, stirred_at=stirred_at, unrest_since=now)
        self._look_at(scan)

    async def _turn(self, leadership: Leadership) -> None:
        """Look once, and do what is due."""
        scan = await self._standing.off_loop(partial(scan_source, self._source))
        now = self._now()
        if scan != self._scan:
            self._stir(scan, now)
        due_at = self._due_at()
        if due_at is not None and now >= due_at:
            self._verify_at = None
            await self._read_set(leadership, now)
        elif self._standing.rest.read is not None and (request := self._edits.first()):
            await self._serve(leadership, request)

    async def _pause(self) -> None:
        """Until something is due, signalled or asked; after a fault, until the next look."""
        delay = LOOK_SECONDS
        if not self._fault:
            if self._standing.rest.read is not None and self._edits.first():
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
        due = [at for at in (self._standing.rest.due_at, self._verify_at) if at is not None]
        return min(due, default=None)

    def _look_at(self, scan: Scan) -> None:
        self._scan = scan
        self.watch.look_at(scan)

    def _stir(self, scan: Scan | None, now: float) -> None:
        if scan is not None:
            self._look_at(scan)
        self._standing.rest, _ = step(self._standing.rest, Stirred(), now)

    async def _read_set(self, leadership: Leadership, now: float) -> None:
        snapshot = await self._standing.off_loop(partial(read_source, self._source))
        if snapshot is None or snapshot.scan != self._scan:
            self._stir(snapshot.scan if snapshot else None, now)
            return
        digest = digest_of(snapshot.files, snapshot.errors)
        read = self._standing.rest.read
        if read is None or read.digest != digest:
            work = partial(
                parse_set, digest, snapshot.files, self._parse_whole, snapshot.errors, snapshot.scan.is_missing
            )
            read = await self._standing.off_loop(work)
        await self._standing.put_in_force(leadership, *step(self._standing.rest, SetRead(read), now))
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
        read = self._standing.rest.read
        snapshot = await self._standing.off_loop(partial(read_source, self._source))
        if read is None or snapshot is None or digest_of(snapshot.files, snapshot.errors) != read.digest:
            raise SourceChanged
        present = await leadership.on_records(list_deletable)
        work = partial(plan_request, asked, self._source, snapshot, read, present, self._parse, self._parse_whole)
        planned = await self._standing.off_loop(work)
        if planned.changes:
            await self._write(leadership, planned)
            after = await self._standing.off_loop(partial(read_source, self._source))
            if after is not None and after.files == planned.files:
                self._look_at(after.scan)
            # A save in the same tick of the file system's clock as ours looks like ours: read once more after a rest.
            self._verify_at = self._now() + REST_SECONDS
        if planned.changes or planned.deleted:
            written = SetWritten(planned.after, planned.deleted)
            rest, choice = step(self._standing.rest, written, self._now())
            await self._standing.put_in_force(leadership, rest, choice, planned.deleted)
        return planned.results

    async def _write(self, leadership: Leadership, planned: PlannedEdit) -> None:
        # One rename is whole or not by itself; several are remembered until they are done.
        is_remembered = len(planned.changes) > 1
        if is_remembered:
            await leadership.on_records(lambda records: records.begin_write(planned.changes))
        try:
            await self._standing.off_loop(partial(write_changes, self._disk, planned.changes))
        except (OSError, SourceChanged) as error:
            if is_remembered:
                await leadership.on_records(Records.end_write)
            if isinstance(error, OSError):
                raise refusal(
                    str(self._source),
                    f"the source can't be written: {error}. Nothing was changed; make room or give access, try again",
                ) from error
            raise

    def _say_notices(self) -> None:
        words = render_notices(self._standing.rest, str(self._source), self._fault, self.watch.fault, self._now())
        self._standing.say_notices(list(words))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
