"""One holding of the lease: for as long as this process leads, the lock, the records and the thread that owns them."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from covey_controller.ports import Lease, LeaseLost
from covey_controller.stores.files.database import StoreDamaged, open_database
from covey_controller.stores.files.lease import LeaderLock
from covey_controller.stores.files.records import Records

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class Holding:
    """This process leads: the lock, the open records, and the lease as others know it."""

    lock: LeaderLock
    records: Records
    threads: ThreadPoolExecutor
    lease: Lease
    on_lost: Callable[[], None]

    def is_lost(self) -> bool:
        if not self.lease.lost.is_set() and not self.records.is_leading():
            self.lose("the lock file or the store was taken away")
        return self.lease.lost.is_set()

    def lose(self, words: str) -> None:
        if not self.lease.lost.is_set():
            log.error("stopped leading (term %d): %s", self.lease.term, words)
            self.lease.lost.set()
            self.on_lost()

    async def on_records(self, work: Callable[[Records], T]) -> T:
        """Run `work` in the records' thread. LeaseLost when this holding has ended; StoreFault if the disk refuses."""
        if self.lease.lost.is_set():
            raise LeaseLost("this process doesn't lead any more")
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, work, self.records)
        except LeaseLost as error:
            self.lose(str(error))
            raise
        except StoreDamaged as error:
            self.lose(f"the store is damaged: {error}")
            raise LeaseLost("the store is damaged; it is made anew when the lease is taken again") from error


def open_records(path: Path, lock: LeaderLock, utc_now: Callable[[], datetime], mint_uid: Callable[[], str]) -> Records:
    """The records of a store file, writable while the lock is held and the file is in its place."""
    database = open_database(path)
    try:
        return Records(database, lambda: lock.is_held() and database.is_in_place(), utc_now, mint_uid)
    except BaseException:
        database.close()
        raise
