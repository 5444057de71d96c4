"""The kube store: composes mirror, lease, writes and events into the ports `Store` and `Leaders`.

Reading never waits for the API server: objects are the mirror's. Every write first asks whether this process still
leads, on its own clock.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from covey_api.fleet import FleetClaim
from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import Status
from covey_api.node import Node
from covey_api.reasons import EventReason

from covey_controller.ports import Conflict, CreatedT, Event, HeldT, LeaderAddress, Lease
from covey_controller.stores.kube.claim import FleetClaims
from covey_controller.stores.kube.client import KubeClient
from covey_controller.stores.kube.credentials import InvalidLogin
from covey_controller.stores.kube.errors import KubeError
from covey_controller.stores.kube.events import EventRecorder
from covey_controller.stores.kube.lease import LeaseHolder
from covey_controller.stores.kube.lease_record import LOOK_SECONDS
from covey_controller.stores.kube.mirror import Change, Entry
from covey_controller.stores.kube.news import News
from covey_controller.stores.kube.sync import Sync
from covey_controller.stores.kube.writes import ObjectWriter

log = logging.getLogger(__name__)

# When the process ends, letting go is a courtesy to the next one, which waits 15 s without it.
RELEASE_SECONDS = 2.0


# Half of the client's connections: the Lease, reviews of tokens and lists find one at once also in a large turn. Each
# write is a round trip and a sync of etcd's disk, which takes several in one.
WRITES_AT_ONCE = 8


def _utc_now() -> datetime:
    return datetime.now(UTC)


class KubeStore:
    """`Store` and `Leaders` on an API server. `run` must run for as long as it is used."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        *,
        observe_address: Callable[[], LeaderAddress],
        authority: str,
        utc_now: Callable[[], datetime] = _utc_now,
    ) -> None:
        """`namespace`: the controller's own, which holds its Lease. `authority`: the digest of the fleet's.

        `observe_address` is asked when the Lease is taken: by then, both APIs listen.
        """
        self._news = News()
        self.sync = Sync(client, client.login, self._on_change)
        self._writer = ObjectWriter(client, self.sync, self._news)
        self._leadership = LeaseHolder(client, namespace, observe_address)
        claim = FleetClaim(namespace=namespace, authority=authority)
        self._claims = FleetClaims(client, self.sync, self._writer, claim)
        self._events = EventRecorder(client, utc_now)
        self.writes_at_once = WRITES_AT_ONCE

    @property
    def is_synced(self) -> bool:
        """Readiness: every kind was listed whole a short while ago."""
        return self.sync.is_synced

    @property
    def synced_age_seconds(self) -> float:
        """How old the last whole list is; infinite before the first."""
        return self.sync.synced_age_seconds

    @property
    def tried_age_seconds(self) -> float:
        """Liveness: for how long no list came to an end, good or bad."""
        return self.sync.tried_age_seconds

    async def run(self) -> None:
        """Follow the API server, and keep the lease whenever this process has it; ends only by cancellation."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.sync.run())
                group.create_task(self._events.run())
                group.create_task(self._keep_lease())
        finally:
            await self._release()

    def leader_address(self) -> LeaderAddress | None:
        """Of another process that leads now; None while this one leads, or nobody does."""
        return self._leadership.leader_address()

    async def acquire_lease(self, holder: str) -> Lease:
        """Wait until this process leads; a new, higher term each time."""
        if self._leadership.current() is not None:
            return await self.raise_term(self._leadership.last_term)
        said = ""
        while True:
            why = await self._why_not(holder)
            if not why:
                lease = await self._leadership.take(holder, self._highest_term())
                why = "somebody else was quicker" if lease is None else await self._why_not_begun()
                if lease is not None and not why:
                    return lease if lease.term > self._highest_term() else await self.raise_term(lease.term)
            if why != said:
                said = why
                log.info("waiting to lead: %s", why)
            await asyncio.sleep(LOOK_SECONDS)

    async def raise_term(self, above: int) -> Lease:
        """A new lease with a term above `above`; the one before is lost. ValueError for a term beyond all bounds."""
        return await self._leadership.raise_term(max(above, self._highest_term()))

    async def list_objects(self) -> Mapping[ObjectKey, Kind]:
        """All objects as they are known; waits for the first whole list only."""
        await self.sync.listed.wait()
        self._news.changed.clear()
        return self.sync.objects

    async def wait_changed(self, timeout_seconds: float) -> bool:
        """True when desired objects have changed since the last `list_objects`; False after the timeout."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._news.changed.wait()
        except TimeoutError:
            return False

    async def create(self, instance: CreatedT) -> CreatedT:
        """Store a new Instance, or the Node of a machine that joined. Conflict if the name is taken."""
        self._leadership.require()
        created = await self._writer.create(instance)
        if isinstance(instance, Node):
            self._news.changed.set()
        return created

    async def update(self, item: HeldT) -> HeldT:
        """Replace an Instance's spec; add finalizers. Conflict as the port says."""
        self._leadership.require()
        return await self._writer.update(item)

    async def delete(self, key: ObjectKey, uid: str) -> None:
        """Remove an Instance, or a Node or Placement whose deletion was carried out. Conflict if the uid differs."""
        self._leadership.require()
        await self._writer.delete(key, uid)

    async def write_status(self, key: ObjectKey, status: Status, events: tuple[Event, ...] = ()) -> None:
        """Replace an object's status and record events; an equal status or a missing object writes nothing."""
        self._leadership.require()
        await self._writer.apply_status(key, status)
        for event in events:
            if not _is_told(event, status) and (entry := self._writer.entry(event.key)) is not None:
                self._events.record(event, entry.uid)

    async def _why_not(self, holder: str) -> str:
        """Why this process can't lead yet, in words; empty if it can."""
        if not await self._leadership.look(holder):
            return f"the Lease is held by '{self._leadership.seen_holder()}'"
        if not self.sync.is_synced:
            return "the API server's objects have not been listed"
        return await self._claims.why_not()

    async def _why_not_begun(self) -> str:
        """List everything, and claim this cluster's fleet, as its leader. If that fails, lead no more, and say why.

        The list begins after the Lease was taken: a store that was emptied or put back took the Lease with it, so no
        leader ever acts on what another store held.
        """
        try:
            await self.sync.list_anew()
            await self._claims.ensure()
            why = await self._claims.why_not()
            for mirror in self.sync.mirrors.values():
                for key, entry in mirror.entries.items():
                    self._tell_fault(key, entry)
        except (Conflict, KubeError, InvalidLogin) as error:
            why = f"this cluster's fleet can't be listed and claimed: {error}"
        if why:
            await self._release()
        return why

    def _on_change(self, change: Change) -> None:
        self._news.observe(change)
        if change.after is not None and change.after.fault != (change.before.fault if change.before else ""):
            self._tell_fault(change.key, change.after)

    def _tell_fault(self, key: ObjectKey, entry: Entry) -> None:
        """To who describes the object: there is no status of ours in it to say so."""
        if entry.fault and self._leadership.current() is not None:
            words = f"this version of the controller can't read it whole, {entry.fault}"
            self._events.record(Event(key, EventReason.UNREADABLE, words, warning=True), entry.uid)

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._leadership.release()
        except (KubeError, TimeoutError) as error:
            log.debug("the Lease can't be released, it runs out: %s", error)

    async def _keep_lease(self) -> None:
        while True:
            await self._leadership.taken.wait()
            self._leadership.taken.clear()
            await self._leadership.keep()

    def _highest_term(self) -> int:
        terms = (item.spec.term for item in self.sync.objects.values() if isinstance(item, Instance))
        return max(terms, default=0)


def _is_told(event: Event, status: Status) -> bool:
    """Whether an Instance's own condition says the same: each step of a start would be one more write otherwise."""
    if event.warning or event.key.kind != Instance.__name__:
        return False
    return any((each.reason, each.message) == (event.reason, event.message) for each in status.conditions)
