"""The board between the reconciler's loop and the fleet API: reports in, snapshots out. One event loop, no locks.

It owns the merging of reports and the orders of snapshots. It decides nothing: what a report means is `reconcile`'s.

Serials grow by one with each snapshot of whatever stream; content that didn't change gets none, so a quiet fleet has
quiet streams. A reader that is slow gets the newest snapshot only. Rejected: a queue per reader (unbounded, or lossy in
the wrong place) and a serial per stream (agents and gateways compare one order).
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import contextmanager

from covey_api.messages import (
    NODE_SILENCE_SECONDS,
    Ask,
    AskAnswer,
    Assignments,
    Cancel,
    Demand,
    DemandAnswer,
    Endpoints,
    MemberGoal,
    Order,
    Report,
    ReportAnswer,
    Wanted,
    WantedAnswer,
)
from covey_api.meta import Message

from covey_controller.cancels import Cancels, render_line
from covey_controller.merging import merge_report
from covey_controller.name_claims import NameClaims, NameTaken
from covey_controller.open_asks import OpenAsks
from covey_controller.ports import AgentSession, GatewaySession, Observed
from covey_controller.readers import Reader, Readers
from covey_controller.reconcile.doubts import silent_ids
from covey_controller.reconcile.fleet import routed_ids
from covey_controller.reconcile.sights import AgentView
from covey_controller.reconcile.world import GatewayView, Published
from covey_controller.sharing import Sharing
from covey_controller.usages import Usages

# A gateway that left is forgotten after this; drains stopped waiting for it long before.
FORGET_SECONDS = 600.0
# Answers that wait for the loop; more than are ever open at once.
MAX_ANSWERS = 1024
# How far above its own a leader believes terms: a start a second for eleven days.
MAX_TERM_LEAP = 1_000_000
# How often one peer is believed that others lead, in so many seconds. Each time this leadership ends: whoever says so
# again and again makes it up, and no drain would ever come to its end.
MAX_LEAPS = 3
LEAPS_SECONDS = 600.0

_ASSIGNED = tuple(name for name in Assignments.model_fields if name != "serial")
_ROUTED = tuple(name for name in Endpoints.model_fields if name != "serial")
_NEWS = tuple(name for name in Report.model_fields if name not in ("sequence", "readings", "full", "applied"))

_log = logging.getLogger(__name__)


class FleetBoard:
    """`Board` of the ports. `wake` is set when the loop has something to look at.

    `machine` as `observe_machine` says: keep-alives go out on its beats.
    """

    def __init__(self, clock: Callable[[], float], machine: str = "") -> None:
        self._clock = clock
        self._observed = Observed()
        self._term = 0
        self._serial = 0
        self._disbelieved: set[str] = set()
        self._leaps: dict[str, list[float]] = {}
        """When each peer was believed that there is a higher term, lately."""
        self._claims = NameClaims()
        self._views: dict[str, AgentView] = {}
        """By node, as they were observed last."""
        self._boots: dict[str, list[str]] = {}
        """Of agents whose streams are open, by node."""
        self._assignments: dict[str, Assignments] = {}
        self._endpoints: Endpoints | None = None
        self._is_draining = False
        self._began = clock()
        self._readers = Readers(machine)
        self._cancels = Cancels()
        self._asks = OpenAsks()
        self._sharing = Sharing(clock)
        self.usages = Usages()
        self.wake = asyncio.Event()

    # What the loop does with it.

    def begin(self, term: int) -> None:
        """A new leadership: nothing is published yet, serials start again, and every agent is asked for all it holds.

        Its store may be another one than the last leadership's: of members that were assigned, only a full report
        holds the Instance, and one that isn't known could not be adopted.
        """
        self._term, self._serial, self._began = term, 0, self._clock()
        self._assignments, self._endpoints = {}, None
        for session in self._observed.agents.values():
            session.report = None

    def publish(self, assignments: Mapping[str, Assignments], endpoints: Endpoints | None) -> None:
        """Stream what differs from what is streamed. No endpoints: gateways keep what they have."""
        for node in sorted(assignments):
            before = self._assignments.get(node)
            if before is None or _differ(before, assignments[node], _ASSIGNED):
                self._assignments[node] = assignments[node].model_copy(update={"serial": self._next_serial()})
                self._readers.wake("node", node)
        for node in self._assignments.keys() - assignments.keys():
            del self._assignments[node]
        self._is_draining = any(
            member.goal is not MemberGoal.SERVE for each in assignments.values() for member in each.members
        )
        before = self._endpoints
        if endpoints is not None and (before is None or _differ(before, endpoints, _ROUTED)):
            self._endpoints = endpoints.model_copy(update={"serial": self._next_serial()})
            self._readers.wake("gateway")

    @property
    def published(self) -> Published:
        return Published(self._endpoints, dict(self._assignments))

    @property
    def observed(self) -> Observed:
        return self._observed

    def observe_agents(self) -> tuple[AgentView, ...]:
        """Of an agent that said nothing since, the very same value: plans look closer at what is another one."""
        return tuple(self._view_agent(each) for each in self._observed.agents.values())

    def _view_agent(self, session: AgentSession) -> AgentView:
        node, report = session.node, session.report
        disconnected = None if session.connected else session.disconnected_at
        rival = self._claims.rival_heard(node)
        before = self._views.get(node)
        if (
            before is not None
            and before.report is report
            and before.seen == session.last_seen
            and before.disconnected == disconnected
            and before.rival == rival
        ):
            return before
        made = self._views[node] = AgentView(node, session.last_seen, report, disconnected, rival)
        return made

    def observe_gateways(self) -> tuple[GatewayView, ...]:
        self.forget_gateways()
        return tuple(
            GatewayView(each.name, each.last_seen, each.connected, each.demand)
            for each in self._observed.gateways.values()
        )

    def forget_agent(self, node: str) -> None:
        """It was removed: what it said counts no more. Its streams are ended by the refusal of its certificate."""
        self._observed.agents.pop(node, None)
        self._views.pop(node, None)

    def take_answers(self, ids: tuple[str, ...]) -> None:
        """These have been used; they are dropped."""
        for ask_id in ids:
            self._observed.answers.pop(ask_id, None)

    # What the control API does with it.

    async def ask(self, node: str, ask: Ask) -> AskAnswer:
        """What the node answers. TimeoutError after the ask's own time, TooManyAsks."""
        answered = self._asks.open(node, ask)
        try:
            self._readers.wake("node", node)
            async with asyncio.timeout(ask.expires_seconds):
                return await answered
        finally:
            self._asks.close(node, ask.id)

    # What the fleet API does with it.

    @property
    def order(self) -> Order:
        return Order(term=self._term, serial=self._serial)

    def on_report(self, node: str, report: Report) -> ReportAnswer:
        """Merge a report and wake the loop when it matters.

        1. Of another machine than the one that has this name: NameTaken.
        2. Not full, and what came before is unknown: the agent is asked for all.
        3. Older than what is known (a retry that came late): its content is dropped.
        4. Merged; the loop wakes if anything but readings changed, or the node was silent.
        """
        now = self._clock()
        if not self._claims.admit(node, report.boot_id, now, is_streaming=self._is_holder_streaming(node)):
            raise NameTaken(node)
        session = self._observed.agents.setdefault(node, AgentSession(node))
        before = session.report if session.report and session.report.boot_id == report.boot_id else None
        was_silent = session.report is None or now - session.last_seen >= NODE_SILENCE_SECONDS
        session.last_seen = now
        if was_silent:  # whatever it says: that it speaks is news
            self.wake.set()
        if before is None and not report.full:
            return self._answer(resend=True)
        if before is not None and report.sequence < before.sequence:
            return self._answer()
        merged = merge_report(before, report)
        if session.report is None or self._is_news(session.report, merged):
            self.wake.set()
        session.report = merged
        self._observe_term(f"node '{node}'", merged)
        return self._answer()

    def on_beat(self, node: str, report: Report) -> ReportAnswer | None:
        """`on_report`, of a report that says no more than that the node lives. None, and nothing done, of any other.

        The boot that has the name is never refused, so neither is this.
        """
        session = self._observed.agents.get(node)
        known = session.report if session is not None else None
        if known is None or report.full or not report.boot_id == known.boot_id == self._claims.holder(node):
            return None
        is_news = report.facts is not None or report.lanes is not None or report.blobs is not None
        if is_news or report.members is not None:
            return None
        return self.on_report(node, report)

    def on_demand(self, gateway: str, demand: Demand) -> DemandAnswer:
        """Keep it; the loop wakes when a table was applied, or what drains or can't be reached changed."""
        now = self._clock()
        session = self._observed.gateways.setdefault(gateway, GatewaySession(gateway))
        # Without a stream it counts for a while after each word: that it counts again is news, and so is when it ends.
        if not session.connected and (session.demand is None or now - session.last_seen >= NODE_SILENCE_SECONDS):
            self.wake.set()
        before, session.demand, session.last_seen = session.demand, demand, now
        if before != demand and self._weigh(before) != self._weigh(demand):
            self.wake.set()
        self._observe_order(f"gateway '{gateway}'", demand.applied)
        self.usages.hear(gateway, demand)
        live = sum(
            each.connected or (each.demand is not None and now - each.last_seen < NODE_SILENCE_SECONDS)
            for each in self._observed.gateways.values()
        )
        return DemandAnswer(term=self._term, serial=self._serial, spent=self.usages.spent(), gateways=live)

    def on_cancel(self, gateway: str, cancel: Cancel) -> int:
        """Tell all other gateways that are connected; how many these are."""
        self._cancels.add(gateway, cancel)
        self._readers.wake("gateway")
        return sum(each.connected for each in self._observed.gateways.values() if each.name != gateway)

    def on_answer(self, node: str, answer: AskAnswer) -> None:
        """Keep the answer of an ask that is open on this node; others are dropped."""
        if self._asks.take(node, answer):
            return
        assignments = self._assignments.get(node)
        is_open = assignments is not None and any(ask.id == answer.id for ask in assignments.asks)
        if is_open and len(self._observed.answers) < MAX_ANSWERS:
            self._observed.answers[answer.id] = answer
            self.wake.set()

    def on_wanted(self, node: str, wanted: Wanted) -> WantedAnswer:
        """Where a node gets a blob that it lacks; it wakes nobody, for no plan depends on it."""
        return self._sharing.answer(node, wanted, self._observed.agents)

    def watch_assignments(self, node: str, boot: str = "") -> AsyncGenerator[Assignments | None]:
        """The newest snapshot now and after each change; None every `KEEPALIVE_SECONDS`.

        Of another machine than the one that has this name: NameTaken, or the end once another has it. An agent that
        doesn't say its boot is believed.
        """
        is_streaming = self._is_holder_streaming(node)
        if boot and not self._claims.may_stream(node, boot, self._clock(), is_streaming=is_streaming):
            raise NameTaken(node)
        return self._stream_assignments(node, boot)

    async def _stream_assignments(self, node: str, boot: str) -> AsyncGenerator[Assignments | None]:
        session = self._observed.agents.setdefault(node, AgentSession(node))
        with self._reading("node", node, session) as reader, self._streaming(node, boot):
            last: tuple[int, int] | None = None
            told: set[str] = set()
            held = self._claims.holder(node)
            while not boot or self._claims.holder(node) in (held, boot):
                if self._claims.holder(node) == boot:
                    held = boot
                snapshot, asks = self._assignments.get(node), self._asks.of(node)
                order = (snapshot.term, snapshot.serial) if snapshot is not None else None
                if snapshot is not None and (order != last or any(ask.id not in told for ask in asks)):
                    last, told = order, {ask.id for ask in asks}
                    yield snapshot.model_copy(update={"asks": (*snapshot.asks, *asks)}) if asks else snapshot
                elif not await reader.wait_news():
                    yield None

    async def watch_endpoints(self, gateway: str) -> AsyncGenerator[Endpoints | None]:
        """The newest table now and after each change, cancels as they come; None every `KEEPALIVE_SECONDS`."""
        session = self._observed.gateways.setdefault(gateway, GatewaySession(gateway))
        with self._reading("gateway", gateway, session) as reader:
            last: tuple[int, int] | None = None
            told = self._cancels.newest
            while True:
                snapshot = self._endpoints
                cancels, told = self._cancels.after(told, gateway), self._cancels.newest
                if cancels:
                    yield render_line(cancels)
                elif snapshot is not None and (order := (snapshot.term, snapshot.serial)) != last:
                    last = order
                    yield snapshot
                elif not await reader.wait_news():
                    yield None

    def may_be_there(self, gateway: str) -> bool:
        """Whether it was heard in the last minutes, or could not have been."""
        self.forget_gateways()
        return gateway in self._observed.gateways or self._clock() - self._began <= FORGET_SECONDS

    # Inside.

    @contextmanager
    def _reading(self, kind: str, name: str, session: AgentSession | GatewaySession) -> Generator[Reader]:
        """A stream is open: its session is connected until its last stream ends."""
        session.connected = True
        if isinstance(session, AgentSession):
            session.disconnected_at = None
        self.wake.set()
        try:
            with self._readers.reading(kind, name) as reader:
                yield reader
        finally:
            if not self._readers.is_read(kind, name):
                session.connected = False
                if isinstance(session, AgentSession):
                    session.disconnected_at = self._clock()
                self.wake.set()

    @contextmanager
    def _streaming(self, node: str, boot: str) -> Generator[None]:
        boots = self._boots.setdefault(node, [])
        boots.append(boot)
        try:
            yield
        finally:
            boots.remove(boot)
            if not boots:
                self._boots.pop(node, None)

    def _is_holder_streaming(self, node: str) -> bool:
        return self._claims.holder(node) in self._boots.get(node, ())

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _answer(self, *, resend: bool = False) -> ReportAnswer:
        return ReportAnswer(term=self._term, serial=self._serial, resend=resend)

    def _observe_term(self, peer: str, report: Report) -> None:
        self._observe_order(peer, report.applied)
        for member in report.members or ():
            if member.instance is not None:
                self._hear_term(peer, member.instance.spec.term)

    def _observe_order(self, peer: str, applied: Order | None) -> None:
        """The highest term that anybody acts on. A serial of this term that was never given out is somebody else's:

        a store that was lost counts terms anew, and whoever has seen the old ones would wait for ever. It counts as a
        higher term.
        """
        if applied is None:
            return
        is_foreign = applied.term == self._term and applied.serial > self._serial
        self._hear_term(peer, applied.term + 1 if is_foreign else applied.term)

    def _hear_term(self, peer: str, term: int) -> None:
        """A leap that no count of leaders explains is a lie: believed once, it would use up all terms there are."""
        if term <= max(self._term, self._observed.highest_term):
            return
        if term > self._term + MAX_TERM_LEAP:
            self._disbelieve(peer, f"a term of {term}, far above this one ({self._term})")
            return
        now = self._clock()
        leaps = [at for at in self._leaps.get(peer, ()) if now - at < LEAPS_SECONDS]
        if len(leaps) >= MAX_LEAPS:
            self._disbelieve(peer, f"ever higher terms, {MAX_LEAPS} within {LEAPS_SECONDS:.0f} s, that nobody led with")
            return
        self._leaps[peer] = [*leaps, now]
        _log.warning("%s has seen a term of %d, above this one (%d)", peer, term, self._term)
        self._observed.highest_term = term
        self.wake.set()

    def _disbelieve(self, peer: str, words: str) -> None:
        """Said once of each peer."""
        if peer not in self._disbelieved and len(self._disbelieved) < MAX_ANSWERS:
            self._disbelieved.add(peer)
            _log.error("%s reports %s: it is not believed", peer, words)

    def _is_news(self, before: Report, report: Report) -> bool:
        """Whether anything differs that a plan may depend on; the order applied matters to what drains alone."""
        if self._is_draining and before.applied != report.applied:
            return True
        return _differ(before, report, _NEWS)

    def _weigh(self, demand: Demand | None) -> tuple[object, ...]:
        """What of a demand decides anything.

        Requests on what left the table, what can't be reached, what is silent, whether an earlier table is there and
        whom it names; while something drains or yields, the table applied; Models that wait; of what scales, how many
        replicas its requests are worth.
        """
        if demand is None:
            return ()
        asked = tuple((m.namespace, m.name, m.held, m.refused_seconds is None) for m in demand.models)
        targets = {e.instance_id: e.target for e in self._endpoints.endpoints if e.target} if self._endpoints else {}
        worth = tuple(
            (e.instance_id, -(-e.in_flight // targets[e.instance_id]))
            for e in demand.endpoints
            if e.instance_id in targets
        )
        routed = routed_ids(self._endpoints)
        leaving = tuple((e.instance_id, e.in_flight > 0) for e in demand.endpoints if e.instance_id not in routed)
        shunned = tuple((e.instance_id, e.path_failure) for e in demand.endpoints if e.unreachable or e.path_failure)
        is_leaving = self._is_draining or bool(asked)
        applied = demand.applied if is_leaving else demand.applied is not None
        return (applied, leaving, shunned, silent_ids(demand), demand.nodes, asked, worth)

    def forget_gateways(self) -> None:
        """Those that left long ago."""
        now = self._clock()
        for name, session in list(self._observed.gateways.items()):
            if not session.connected and now - session.last_seen > FORGET_SECONDS:
                del self._observed.gateways[name]
                self.usages.forget(name)


def _differ(before: Message, after: Message, names: tuple[str, ...]) -> bool:
    """Whether any of these fields does; what is the very same object is not looked into."""
    old, new = before.__dict__, after.__dict__
    for name in names:  # noqa: SIM110  (asked with every report)
        if old[name] is not new[name] and old[name] != new[name]:
            return True
    return False
