"""The files store: composes source, records and lease into the ports `Store` and `Source`.

Two threads do what blocks: one reads and writes the source, one owns SQLite; so a large set that is being parsed never
delays a write of status. Readers of objects touch neither.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import uuid4

from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import Status
from covey_api.node import Node

from covey_controller.ports import Applied, CreatedT, Event, HeldT, Lease, LeaseLost, SourceState
from covey_controller.stores.files.database import StoreDamaged, StoreFault, move_aside
from covey_controller.stores.files.events import RecordedEvent
from covey_controller.stores.files.holding import Holding, open_records
from covey_controller.stores.files.lease import LeaderLock
from covey_controller.stores.files.request import Apply, Delete
from covey_controller.stores.files.rest import ParseDocuments
from covey_controller.stores.files.source import FolderSource
from covey_controller.stores.files.writing import Disk
from covey_controller.stores.git.settings import GitSettings
from covey_controller.stores.git.source import GitSource

log = logging.getLogger(__name__)

# A source that is read takes well under a second; after this the reconciler sees what the store held before.
LISTED_SECONDS = 10.0


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _mint_uid() -> str:
    return str(uuid4())


class FilesStore:
    """`Store` and `Source` on a folder and a SQLite file. `run` must run for as long as it is used."""

    def __init__(
        self,
        source: Path | GitSettings,
        state: Path,
        parse: ParseDocuments,
        *,
        allow_empty: bool = False,
        utc_now: Callable[[], datetime] = _utc_now,
        mint_uid: Callable[[], str] = _mint_uid,
        disk: Disk | None = None,
    ) -> None:
        """`state`: the controller's folder in the state folder."""
        self._path, self._lock_path = store_paths(source_name(source), state)
        self._utc_now = utc_now
        self._mint_uid = mint_uid
        self._source: FolderSource | GitSource
        if isinstance(source, GitSettings):
            self._source = GitSource(source, clone_path(source, state), parse, allow_empty=allow_empty)
        else:
            self._source = FolderSource(source, parse, allow_empty=allow_empty, utc_now=utc_now, disk=disk or Disk())
        self._threads = ThreadPoolExecutor(1, "store")
        # One thread owns the file.
        self.writes_at_once = 1
        self._holding: Holding | None = None
        self._has_led = asyncio.Event()
        self._last_term = 0
        self._moved: tuple[str, ...] = ()

    async def run(self) -> None:
        """Follow the source whenever this process leads; ends only by cancellation."""
        try:
            async with asyncio.TaskGroup() as group:
                if isinstance(self._source, FolderSource):
                    group.create_task(self._source.watch.run())
                group.create_task(self.follow())
        finally:
            self._close()

    async def follow(self) -> None:
        """As `run`, by looking every few seconds only, without the kernel's signals."""
        try:
            while True:
                await self._has_led.wait()
                self._has_led.clear()
                if self._holding is not None:
                    await self._source.follow(self._holding)
        finally:
            self._close()

    async def acquire_lease(self, holder: str) -> Lease:
        """Wait until this process leads; a new, higher term each time. StoreFault if the store can't be opened."""
        if self._holding is not None and not self._holding.is_lost():
            return await self.raise_term(self._last_term)
        await self._end_holding()
        lock = LeaderLock(self._lock_path)
        try:
            self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            await lock.acquire(holder)
            self._holding = await self._open(lock, holder)
        except OSError as error:
            lock.release()
            raise (
                error
                if isinstance(error, StoreFault)
                else StoreFault(f"'{self._lock_path}' must be lockable; got '{error.strerror}'")
            ) from error
        except BaseException:
            lock.release()
            raise
        self._last_term = self._holding.lease.term
        self._source.listed.clear()
        self._has_led.set()
        return self._holding.lease

    async def raise_term(self, above: int) -> Lease:
        """A new lease with a term above `above`; the one before is lost. ValueError for a term beyond all bounds."""
        holding = self._require_holding()
        term = await holding.on_records(lambda records: records.raise_term(above))
        before = holding.lease
        holding.lease = Lease(term, before.holder, asyncio.Event())
        self._last_term = term
        before.lost.set()
        return holding.lease

    async def list_objects(self) -> Mapping[ObjectKey, Kind]:
        """All objects in force, once the source was read; after `LISTED_SECONDS`, what the store held before."""
        try:
            async with asyncio.timeout(LISTED_SECONDS):
                await self._source.listed.wait()
        except TimeoutError:
            log.warning("the source wasn't read within %.0f s; listing what ran before", LISTED_SECONDS)
        holding = self._require_holding()
        self._source.changed.clear()
        return holding.records.objects

    async def wait_changed(self, timeout_seconds: float) -> bool:
        """True when desired objects have changed since the last `list_objects`; False after the timeout."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._source.changed.wait()
        except TimeoutError:
            return False

    async def create(self, instance: CreatedT) -> CreatedT:
        """Store a new Instance, or the Node of a machine that joined. Conflict if the name is taken."""
        created = await self._require_holding().on_records(lambda records: records.create(instance))
        if isinstance(instance, Node):
            self._source.changed.set()
        return created

    async def update(self, item: HeldT) -> HeldT:
        """Replace an Instance's spec; every object is held already. Conflict as the port says."""
        return await self._require_holding().on_records(lambda records: records.update(item))

    async def delete(self, key: ObjectKey, uid: str) -> None:
        """Remove an Instance, or a Node whose deletion was carried out. Conflict if the uid differs."""
        await self._require_holding().on_records(lambda records: records.delete(key, uid))

    async def write_status(self, key: ObjectKey, status: Status, events: tuple[Event, ...] = ()) -> None:
        """Replace an object's status and record events; an equal status or a missing object writes nothing."""
        await self._require_holding().on_records(lambda records: records.write_status(key, status, events))

    async def list_events(self, key: ObjectKey) -> tuple[RecordedEvent, ...]:
        """What was recorded about an object, the last at the end."""
        return await self._require_holding().on_records(lambda records: records.events(key))

    def source_state(self) -> SourceState:
        state = self._source.state()
        return replace(state, notices=(*self._moved, *state.notices))

    def refresh_source(self) -> None:
        """Look at the source now: somebody says that it has changed."""
        self._source.refresh()

    def read_secret(self, namespace: str, name: str, key: str) -> bytes | None:
        """One value of an encrypted Secret of the set in force; None if there is none. Kept in memory only."""
        return self._source.read_secret(ObjectKey("Secret", namespace, name), key)

    async def apply_documents(self, text: str, name: str, author: str = "") -> tuple[Applied, ...]:
        """Merge documents into the source and put them in force at once. InvalidSet: nothing was written."""
        self._require_holding()
        return await self._source.ask(Apply(text, name, author))

    async def delete_documents(self, keys: tuple[ObjectKey, ...], author: str = "") -> tuple[Applied, ...]:
        """Take documents out of the source; what they asked for goes at once, a Node is drained first.

        KeyError names one that isn't there.
        """
        self._require_holding()
        return await self._source.ask(Delete(keys, author))

    def _require_holding(self) -> Holding:
        if self._holding is None or self._holding.is_lost():
            raise LeaseLost("this process doesn't lead any more, or not yet: take the lease first")
        return self._holding

    async def _open(self, lock: LeaderLock, holder: str) -> Holding:
        """Open the store, repaired if need be, and take the next term in it."""
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._threads)
        work = partial(open_records, self._path, lock, self._utc_now, self._mint_uid)
        try:
            records = await in_thread(work)
        except StoreDamaged as error:
            aside = await in_thread(move_aside, self._path)
            self._moved = (
                f"the store was damaged ({error}) and was moved to '{aside}'; a new one is rebuilt from the source "
                "and the agents",
            )
            log.error("%s", self._moved[0])
            records = await in_thread(work)
        try:
            term = await in_thread(records.raise_term, self._last_term)
        except BaseException:
            records.close()
            raise
        lease = Lease(term, holder, asyncio.Event())
        return Holding(lock, records, self._threads, lease, self._source.wake)

    async def _end_holding(self) -> None:
        if self._holding is not None:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._holding.records.close)
            self._holding.lock.release()
            self._holding = None

    def _close(self) -> None:
        self._source.close()
        self._threads.shutdown(wait=True)
        if self._holding is not None:
            self._holding.lease.lost.set()
            self._holding.records.close()
            self._holding.lock.release()
            self._holding = None


def source_name(source: Path | GitSettings) -> Path | str:
    """What a source is told apart by."""
    return str(source.address) if isinstance(source, GitSettings) else source


def store_paths(source: Path | str, state: Path) -> tuple[Path, Path]:
    """The store and the lock file of a source, a folder or a git address; one of each per source."""
    digest = _digest_source(source)
    return state / f"store-{digest}.sqlite", state / f"leader-{digest}.lock"


def clone_path(source: GitSettings, state: Path) -> Path:
    """The clone of a git source; its lock is beside it."""
    return state / f"git-{_digest_source(str(source.address))}"


def _digest_source(source: Path | str) -> str:
    name = source if isinstance(source, str) else os.path.abspath(source)
    return hashlib.sha256(name.encode()).hexdigest()[:12]
