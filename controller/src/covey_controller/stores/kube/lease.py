"""Leadership by a `coordination.k8s.io/Lease`: taken, renewed, and given up in time.

Whoever was paused must not write when it wakes: `require` compares its own clock with the last answered renewal before
every write, whichever task wakes first. The clock counts while the machine sleeps, where the system has such a one.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from covey_controller.ports import MAX_TERM, LeaderAddress, Lease, LeaseLost
from covey_controller.stores.kube.client import MERGE_PATCH, JsonObject, KubeClient
from covey_controller.stores.kube.errors import KubeError
from covey_controller.stores.kube.lease_record import (
    GIVE_UP_SECONDS,
    LEASE_NAME,
    MAX_TRANSITIONS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    LeaseRecord,
    LeaseWatch,
    parse_lease,
    render_lease,
)

log = logging.getLogger(__name__)


class LeaseHolder:
    """At most one holding of the Lease in one namespace."""

    def __init__(self, client: KubeClient, namespace: str, observe_address: Callable[[], LeaderAddress]) -> None:
        self._client = client
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._words = f"Lease '{namespace}/{LEASE_NAME}'"
        self._observe_address = observe_address
        self._watch = LeaseWatch()
        self._record: LeaseRecord | None = None
        """As written last by us, or as seen last while somebody else holds it."""
        self._lease: Lease | None = None
        self._valid_until = 0.0
        self._writing = asyncio.Lock()
        self.taken = asyncio.Event()
        """Set with each new holding."""
        self.last_term = 0

    def leader_address(self) -> LeaderAddress | None:
        """Of whoever else held it when this process looked last."""
        if self._lease is not None or self._record is None or not self._record.holder:
            return None
        is_over = self._watch.observe(self._record, observe_seconds())
        return None if is_over else self._record.address

    def current(self) -> Lease | None:
        """This process's lease while it leads."""
        if self._lease is not None and observe_seconds() >= self._valid_until:
            self.lose(f"{self._words} was not renewed for {GIVE_UP_SECONDS:.0f} s")
        return self._lease

    def require(self) -> Lease:
        """The lease, at this moment. LeaseLost if there is none: nothing may be written."""
        lease = self.current()
        if lease is None:
            raise LeaseLost("this process doesn't lead any more, or not yet: take the lease first")
        return lease

    def lose(self, words: str) -> None:
        if self._lease is not None:
            log.error("stopped leading (term %d): %s", self._lease.term, words)
            self._lease.lost.set()
            self._lease = None
            self._record = None

    async def look(self, holder: str) -> bool:
        """Look at the Lease; True if `holder`, a name that only this process has, may take it now."""
        record = self._record = await self._read()
        return record is None or record.holder == holder or self._watch.observe(record, observe_seconds())

    def seen_holder(self) -> str:
        """Who held it when this process looked last; empty for nobody."""
        return self._record.holder if self._record is not None else ""

    async def take(self, holder: str, above: int) -> Lease | None:
        """Take it as it was looked at, with a term above `above` and its own. None if somebody was quicker."""
        seen = self._record
        began = observe_seconds()
        record = LeaseRecord(
            holder=holder,
            renewed="",
            term=next_term(max(above, self.last_term, seen.term if seen else 0)),
            address=self._observe_address(),
            transitions=min(seen.transitions + 1, MAX_TRANSITIONS) if seen else 0,
            version=seen.version if seen else "",
        )
        try:
            self._record = await self._write(record, is_taken=True)
        except KubeError as error:
            if error.is_conflict or error.is_missing:
                return None
            raise
        return self._begin(record, began)

    async def raise_term(self, above: int) -> Lease:
        """A new lease of this same holder with a higher term; the one before is lost."""
        async with self._writing:
            before = self.require()
            record = self._held()
            began = observe_seconds()
            raised = replace(record, term=next_term(max(above, record.term)), address=self._observe_address())
            try:
                self._record = await self._write(raised, is_taken=True)
            except KubeError as error:
                if not error.is_conflict and not error.is_missing:
                    raise
                self.lose(f"{self._words} was changed by somebody else")
                raise LeaseLost(f"{self._words} was changed by somebody else") from error
            before.lost.set()
            return self._begin(raised, began)

    async def keep(self) -> None:
        """Renew the holding until it is lost. Never raises for what the API server does."""
        while self.current() is not None:
            try:
                async with asyncio.timeout(GIVE_UP_SECONDS):
                    await self._renew()
            except (KubeError, TimeoutError, OSError, ValueError) as error:
                log.debug("%s can't be renewed now: %s", self._words, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                await asyncio.sleep(RENEW_SECONDS)

    async def release(self) -> None:
        """Let the next one lead at once."""
        async with self._writing:
            if self.current() is None:
                return
            record = self._held()
            self._lease, lease = None, self._lease
            if lease is not None:
                lease.lost.set()
            await self._write(replace(record, holder=""), is_taken=False)

    async def _renew(self) -> None:
        """1. Written: held on. 2. Somebody else's, gone, or older: lost. 3. Only edited: again, to the new version."""
        async with self._writing:
            lease = self.current()
            if lease is None:
                return
            record, began = self._held(), observe_seconds()
            try:
                renewed = await self._write(record, is_taken=False)
            except KubeError as error:
                if self._lease is not lease or (not error.is_conflict and not error.is_missing):
                    raise
                found = await self._read()
                why = _why_lost(record, found)
                if found is None or why:
                    if self._lease is lease:
                        self.lose(f"{self._words} {why}")
                    return
                renewed = await self._write(replace(record, version=found.version), is_taken=False)
            # An answer that comes after this holding was given up is no word about the one that was taken since.
            if self._lease is lease:
                self._record, self._valid_until = renewed, began + GIVE_UP_SECONDS

    def _begin(self, record: LeaseRecord, began: float) -> Lease:
        self._valid_until = began + GIVE_UP_SECONDS
        self.last_term = record.term
        self._lease = Lease(record.term, record.holder, asyncio.Event())
        self.taken.set()
        return self._lease

    def _held(self) -> LeaseRecord:
        if self._record is None:
            raise LeaseLost("this process doesn't lead any more")
        return self._record

    async def _read(self) -> LeaseRecord | None:
        try:
            return parse_lease(await self._client.request("GET", f"{self._folder}/{LEASE_NAME}"))
        except KubeError as error:
            if error.is_missing:
                return None
            raise

    async def _write(self, record: LeaseRecord, *, is_taken: bool) -> LeaseRecord:
        body: JsonObject = render_lease(record, datetime.now(UTC), is_taken=is_taken)
        if not record.version:
            return parse_lease(await self._client.request("POST", self._folder, body=body))
        path = f"{self._folder}/{LEASE_NAME}"
        return parse_lease(await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH))


def _why_lost(held: LeaseRecord, found: LeaseRecord | None) -> str:
    """Why what is stored is no holding of ours any more; empty if somebody only edited it."""
    if found is None:
        return "is gone"
    if found.holder != held.holder or found.term > held.term:
        return f"is held by '{found.holder}'"
    if int(found.version) < int(held.version):
        return "is an older one: the API server's store was put back"
    return ""


def next_term(above: int) -> int:
    """The term above all that are known. ValueError for one beyond all bounds."""
    if above >= MAX_TERM:
        raise ValueError(f"term must be at most {MAX_TERM}; somebody reported {above}. Find out who, and remove it")
    return above + 1


def observe_seconds() -> float:
    """Seconds that also count while the machine sleeps, on Linux; elsewhere the monotonic clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
