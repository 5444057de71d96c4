"""The leader: takes the lease, lists the store, then observes, plans, acts and reports for as long as it leads.

Level-triggered: whatever woke it, it looks at everything again. What it wrote itself only makes it look once more. It
holds no decision of its own; those are `reconcile.plan`'s.

Order within a turn: actions on the store, each with its precondition; then what agents and gateways get; then statuses.
As many writes of independent objects at a time as the store bears (`writes_at_once`).
A `Conflict` ends the turn: somebody else wrote, so the world is observed again. So does a write that a foreign rule
refuses (`Refused`): the next turn plans without the Placement that it was for. A store that fails ends it too, but
gateways still hear which endpoints serve no more. A leader that hears of a higher term takes the lease anew above it.
Losing the lease ends the leadership, not the process.

Between turns it rests until something wakes it or is due (`Plan.wake_at`, `next_silence`).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from covey_api.access_key import AccessKey
from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import Status
from covey_api.placement import Placement
from covey_api.reasons import EventReason
from covey_fleet_client.tasks import run_apart

from covey_controller.at_once import run_at_once, split_actions
from covey_controller.board import FleetBoard
from covey_controller.history import History
from covey_controller.ports import Conflict, Event, Lease, LeaseLost, Refused, Store
from covey_controller.reconcile.begin import stay_awake, was_paused
from covey_controller.reconcile.fleet import next_silence
from covey_controller.reconcile.outcomes import (
    Action,
    CreateInstance,
    CreateNode,
    DeleteObject,
    HoldObject,
    Note,
    Plan,
    StatusWrite,
    UpdateInstance,
)
from covey_controller.reconcile.plan import plan
from covey_controller.reconcile.world import Memory, World
from covey_controller.set_aside import AGAIN_SECONDS, SetAside, refused_status
from covey_controller.utc import render_utc

log = logging.getLogger(__name__)

# One turn takes in what arrives together: a report of each node, an event of each file.
DEBOUNCE_SECONDS = 0.01
# While a plan is made nobody is answered and no lease renewed. One that takes long is followed by as long a rest, so
# that a large fleet that joins doesn't plan at each report; no longer than this, since an engine's end is to leave the
# table within a second.
MAX_DEBOUNCE_SECONDS = 0.4
# A store on a local disk answers in milliseconds; one that doesn't for this long is broken.
STORE_SECONDS = 30.0
FIRST_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 5.0
# A store that fails is tried once a second at most, however much is reported.
NEWS_BACKOFF_SECONDS = 1.0
# Remembered so that each is told once; one rule of somebody refuses a few objects at most.
MAX_REFUSALS = 256
# Well below `PAUSE_SECONDS`.
STIR_SECONDS = 5.0
# Instances that one turn may create; the next one follows at once.
MAX_CREATED_PER_TURN = 64


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the loop can't know by itself."""

    holder: str
    """Random per process: a new holding is a new term."""
    engine_key: Callable[[str], str]
    seal_of: Callable[[Instance], str]
    mint_id: Callable[[], str]
    utc_now: Callable[[], datetime]
    deny_agent: Callable[[str], Awaitable[None]]
    """Refuse the certificates of a node that is being removed, for good."""
    prepare: Callable[[], Awaitable[None]]
    """Read anew what another leader may have written, before anybody is answered."""
    allow_empty: bool = False
    stopwatch: Callable[[], float] = time.perf_counter
    """Seconds that also pass within one turn of the event loop, as its own clock's needn't."""
    on_turn: Callable[[float, Exception | None], None] = lambda seconds, error: None
    """Told of each turn's end: how long it took, and what failed."""
    version: str = ""
    """The controller's; empty: compared with nobody's."""


class HigherTerm(Exception):
    """Somebody has seen a leader of a higher term."""

    def __init__(self, term: int) -> None:
        super().__init__(f"a term of {term} was reported")
        self.term = term


class _PlacementSetAside(Exception):
    """A rule of the store forbids a write: this turn ends, and the next one plans without the Placement."""


class ReconcileLoop:
    """Leads whenever it can. `run` ends only by cancellation."""

    def __init__(self, store: Store, board: FleetBoard, history: History, surroundings: Surroundings) -> None:
        self._store = store
        self._board = board
        self._history = history
        self._around = surroundings
        self._memory = Memory()
        self._aside = SetAside()
        self._led_since = 0.0
        self._planned_at = 0.0
        self._plan_seconds = 0.0
        self._fresh_ids: tuple[str, ...] = ()
        self._listed = asyncio.Event()
        self._backoff = Backoff()
        self._lease: Lease | None = None
        self.is_leading = False
        """True once this process leads and has listed its store."""

    @property
    def holds_lease(self) -> bool:
        """True while this process leads and knows what earlier leaders wrote."""
        return self._lease is not None and not self._lease.lost.is_set()

    async def run(self) -> None:
        above: int | None = None
        while True:
            above = await run_apart(self._lead_once(above))

    async def _lead_once(self, above: int | None) -> int | None:
        """From taking the lease to its end, or to a failure; the term to lead above next, if one was heard of."""
        try:
            lease = await self._take_lease(above)
            log.info("leading with term %d", lease.term)
            async with asyncio.timeout(STORE_SECONDS):
                await self._around.prepare()
            return await self._lead(lease)
        except Exception as error:
            await self._backoff.wait(error)
            return None
        finally:
            self.is_leading = False
            self._lease = None

    async def _take_lease(self, above: int | None) -> Lease:
        """Waits for as long as somebody else leads."""
        if above is None:
            return await self._store.acquire_lease(self._around.holder)
        async with asyncio.timeout(STORE_SECONDS):
            return await self._store.raise_term(above)

    async def _lead(self, lease: Lease) -> int | None:
        """Until the lease is lost; the term to lead above if a higher one was heard of."""
        self._board.begin(lease.term)
        self._lease = lease
        self._memory = Memory()
        self._aside = SetAside()
        self._led_since = asyncio.get_running_loop().time()
        above: int | None = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_end_when_lost(lease))
                group.create_task(self._watch_store())
                group.create_task(self._stir_for_ever())
                group.create_task(self._turn_for_ever(lease))
        except* LeaseLost:
            log.warning("the lease of term %d is lost; waiting to lead again", lease.term)
        except* HigherTerm as errors:
            above = max(error.term for error in errors.exceptions if isinstance(error, HigherTerm))
            log.warning("a term of %d was reported, above this one (%d): taking the lease anew", above, lease.term)
        return above

    async def _watch_store(self) -> None:
        """Wake the loop when desired objects change; once per listing."""
        while True:
            self._listed.clear()
            if await self._store.wait_changed(STORE_SECONDS):
                self._board.wake.set()
                await self._listed.wait()

    async def _stir_for_ever(self) -> None:
        """Signs of life, also while the store is slow: by them a plan tells a leader that rested from a paused one."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(STIR_SECONDS)
            if was_paused(self._memory, clock()):
                self._board.wake.set()
            self._memory = stay_awake(self._memory, clock())

    async def _turn_for_ever(self, lease: Lease) -> None:
        while True:
            self._board.wake.clear()
            began = asyncio.get_running_loop().time()
            try:
                wake_at = await self._turn(lease)
            except (HigherTerm, LeaseLost):
                raise
            except Exception as error:
                self._tell_turn(began, error)
                await self._backoff.wait(error, self._board.wake)
                continue
            self._tell_turn(began, None)
            self._backoff.reset()
            await self._rest(wake_at)

    def _tell_turn(self, began: float, error: Exception | None) -> None:
        self._around.on_turn(asyncio.get_running_loop().time() - began, error)

    async def _turn(self, lease: Lease) -> float:
        """Observe, plan, act, publish, report; when to turn again at the latest."""
        async with asyncio.timeout(STORE_SECONDS):
            objects = await self._store.list_objects()
        self._listed.set()
        self._require_lead(lease)
        now = asyncio.get_running_loop().time()
        self._top_up_ids()
        self._board.usages.settle(each for each in objects.values() if isinstance(each, AccessKey))
        world = self._observe(lease, self._aside.hide(objects, now))
        began = self._around.stopwatch()
        made = plan(world, now)
        self._plan_seconds = self._around.stopwatch() - began
        actions, statuses = self._aside.allow(made.actions, now), self._aside.allow_statuses(made.statuses, now)
        if actions is not made.actions or statuses is not made.statuses:
            made = replace(made, actions=actions, statuses=statuses)
        self._drop_used_ids(made)
        self._history.observe(objects, world, now)
        self.is_leading = True
        if made.actions:  # the store may refuse, and nothing else of this plan count
            self._memory = replace(self._memory, planned_at=now, watching_since=made.memory.watching_since)
        if not await self._act_on(lease, made, objects, now):
            self._board.publish(self._board.published.assignments, made.endpoints_unacted)
            return now
        self._board.publish(made.assignments, made.endpoints)
        self._board.usages.remember(made.spending)
        awake_at = self._memory.planned_at if made.actions else now  # signs of life while it acted
        self._memory = made.memory if awake_at == now else replace(made.memory, planned_at=awake_at)
        self._planned_at = now
        await self._report(lease, made, objects, now)
        if not self._aside.holds_statuses:  # a header that was read, and isn't stored, would be asked for again
            self._board.take_answers(made.used_answers)
        return now if made.actions or made.statuses else min(made.wake_at, self._aside.wake_at)

    def _observe(self, lease: Lease, objects: tuple[Kind, ...]) -> World:
        return World(
            term=lease.term,
            led_since=self._led_since,
            objects=objects,
            agents=self._board.observe_agents(),
            gateways=self._board.observe_gateways(),
            usage=self._board.usages.observe(),
            answers=dict(self._board.observed.answers),
            published=self._board.published,
            memory=self._memory,
            fresh_ids=self._fresh_ids,
            timestamp=self._timestamp(),
            engine_key=self._around.engine_key,
            seal_of=self._around.seal_of,
            allow_empty=self._around.allow_empty,
            version=self._around.version,
        )

    def _timestamp(self) -> str:
        return render_utc(self._around.utc_now())

    def _top_up_ids(self) -> None:
        missing = MAX_CREATED_PER_TURN - len(self._fresh_ids)
        self._fresh_ids += tuple(self._around.mint_id() for _ in range(missing))

    def _drop_used_ids(self, made: Plan) -> None:
        """Whatever becomes of them: an id that was once planned with is never planned with again."""
        used = {each.instance.spec.instance_id for each in made.actions if isinstance(each, CreateInstance)}
        if used:
            self._fresh_ids = tuple(each for each in self._fresh_ids if each not in used)

    async def _act_on(self, lease: Lease, made: Plan, objects: Mapping[ObjectKey, Kind], now: float) -> bool:
        """All actions; False when one is refused, and its Placement set aside.

        Where the store fails, no engine is told anything new, and what is gone is not routed.
        """
        try:
            for run in split_actions(made.actions):
                works = [partial(self._try, lease, action, objects, now) for action in run]
                await run_at_once(works, self._store.writes_at_once)
        except _PlacementSetAside:
            return False
        except (HigherTerm, LeaseLost):
            raise
        except Exception:  # a Conflict too: whoever writes all the time must keep nobody from hearing what is dead
            self._require_lead(lease)
            self._board.publish(self._board.published.assignments, made.endpoints_unacted)
            raise
        return True

    async def _try(self, lease: Lease, action: Action, objects: Mapping[ObjectKey, Kind], now: float) -> None:
        try:
            await self._act(lease, action)
        except Refused as refusal:
            if (placement := self._aside.add(action, objects, now)) is not None:
                await self._say_refused(placement, refusal)
            elif not self._aside.was_added(action, now):
                raise
            raise _PlacementSetAside from refusal

    async def _act(self, lease: Lease, action: Action) -> None:
        self._require_lead(lease)
        async with asyncio.timeout(STORE_SECONDS):
            match action:
                case DeleteObject(ObjectKey("Node", _, name), uid):
                    # Refused first: cut off in between, it is rather a Node without an agent than one that comes back.
                    await self._around.deny_agent(name)
                    await self._store.delete(action.key, uid)
                    self._board.forget_agent(name)
                case CreateInstance(instance):
                    await self._store.create(instance)
                case CreateNode(node):
                    await self._store.create(node)
                case UpdateInstance(item) | HoldObject(item):
                    await self._store.update(item)
                case _:
                    await self._store.delete(action.key, action.uid)

    async def _say_refused(self, placement: Placement, refusal: Refused) -> None:
        message = f"{refusal}. What runs goes on; it is tried again every {AGAIN_SECONDS:.0f} s"
        note = Note(placement.key, EventReason.WRITE_REFUSED, message, warning=True)
        events: tuple[Event, ...] = ()
        if self._history.record(note):
            log.warning("%s: %s: %s", note.key, note.reason, note.message)
            events = (_event(note),)
        status = refused_status(placement, message, self._timestamp())
        async with asyncio.timeout(STORE_SECONDS):
            try:
                await self._store.write_status(placement.key, status, events)
            except Refused as error:
                log.debug("nor can its status say so: %s", error)
                await self._store.write_status(placement.key, placement.status, events)

    async def _report(self, lease: Lease, made: Plan, objects: Mapping[ObjectKey, Kind], now: float) -> None:
        """Statuses with their events; notes are said once. One that is refused keeps no other from being told.

        What there is to say of an object whose status stays as it is goes with that one, which writes no status.
        """
        notes = [note for note in made.notes if self._history.record(note)]
        for note in notes:
            level = logging.WARNING if note.warning else logging.INFO
            log.log(level, "%s: %s: %s", note.key, note.reason, note.message)
        events: dict[ObjectKey, tuple[Event, ...]] = {}
        for note in notes:
            events[note.key] = (*events.get(note.key, ()), _event(note))

        async def write(one: StatusWrite) -> None:
            self._require_lead(lease)
            try:
                async with asyncio.timeout(STORE_SECONDS):
                    await self._store.write_status(one.key, one.status, events.get(one.key, ()))
            except Refused as refusal:
                self._aside.add_status(one, now)
                self._backoff.say_refusal(str(refusal))

        untold = events.keys() - {one.key for one in made.statuses}
        alone = [one for one in _stored_statuses(made, objects) if one.key in untold] if untold else []
        await run_at_once([partial(write, one) for one in (*made.statuses, *alone)], self._store.writes_at_once)

    def _require_lead(self, lease: Lease) -> None:
        if lease.lost.is_set():
            raise LeaseLost("the lease is lost: somebody else may lead now")
        highest = self._board.observed.highest_term
        if highest > lease.term:
            raise HigherTerm(highest)

    async def _rest(self, wake_at: float) -> None:
        """Until something changed or is due, and a moment more for what arrives with it."""
        loop = asyncio.get_running_loop()
        while not self._board.wake.is_set() and (seconds := self._due(wake_at) - loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._board.wake.wait()
        await asyncio.sleep(min(max(self._plan_seconds, DEBOUNCE_SECONDS), MAX_DEBOUNCE_SECONDS))

    def _due(self, wake_at: float) -> float:
        """When to turn at the latest, by what has been heard up to now."""
        watching_since = self._memory.watching_since or self._led_since
        return min(wake_at, next_silence(self._board.observe_agents(), watching_since, self._planned_at))


class Backoff:
    """Waits that double, and each kind of failure said once until things go well again."""

    def __init__(self) -> None:
        self._seconds = FIRST_BACKOFF_SECONDS
        self._said: set[str] = set()
        self._refusals: set[str] = set()

    async def wait(self, error: Exception, news: asyncio.Event | None = None) -> None:
        """Shorter when there is news: what it means for gateways may not wait for a store that fails."""
        kind = type(error).__name__
        if isinstance(error, Conflict):
            log.debug("observing again: %s", error)
        elif isinstance(error, Refused):
            self.say_refusal(str(error))
        elif kind not in self._said:
            log.error("this turn failed, the next one follows: %s: %s", kind, error, exc_info=error)
        self._said.add(kind)
        at_least = min(self._seconds, NEWS_BACKOFF_SECONDS) if news else self._seconds
        await asyncio.sleep(at_least)
        if news and self._seconds > at_least:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds - at_least):
                    await news.wait()
        self._seconds = min(self._seconds * 2, MAX_BACKOFF_SECONDS)

    def say_refusal(self, message: str) -> None:
        """Once: it is tried again when things go well otherwise."""
        if message not in self._refusals:
            if len(self._refusals) >= MAX_REFUSALS:
                self._refusals.clear()
            self._refusals.add(message)
            log.warning("%s. Everything else goes on; it is tried again, ever more rarely", message)

    def reset(self) -> None:
        self._seconds = FIRST_BACKOFF_SECONDS
        self._said.clear()


async def _end_when_lost(lease: Lease) -> None:
    await lease.lost.wait()
    raise LeaseLost("the lease is lost: somebody else may lead now")


def _stored_statuses(made: Plan, objects: Mapping[ObjectKey, Kind]) -> Iterator[StatusWrite]:
    """Of each object that there is after the plan's actions, as it was before."""
    gone: set[ObjectKey] = set()
    created: list[Kind] = []
    for action in made.actions:
        match action:
            case DeleteObject(key):
                gone.add(key)
            case CreateInstance(item) | CreateNode(item):
                created.append(item)
            case _:
                pass
    for item in (*objects.values(), *created):
        status: object = getattr(item, "status", None)
        if isinstance(status, Status) and item.key not in gone:
            yield StatusWrite(item.key, status)


def _event(note: Note) -> Event:
    return Event(note.key, note.reason, note.message, note.warning)
