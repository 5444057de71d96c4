"""A leader at rest overlooks nothing: what does not wake it would change no plan, and nothing is due before it looks.

The board decides what wakes the loop, the plan when it is due; here both are held against plans made all the while.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from covey_api.messages import Demand, EndpointDemand, Order, Report
from covey_controller.board import FleetBoard
from covey_controller.name_claims import NameTaken
from covey_controller.reconcile.fleet import next_silence
from covey_controller.reconcile.outcomes import Plan
from covey_controller.reconcile.plan import plan
from covey_controller.reconcile.world import World
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import builders, worlds
from kit.arbitrary import NODES, NOW, arbitrary_worlds, next_reports

GATEWAYS = ("g", "h")


@dataclass(slots=True)
class RestingLeader(worlds.Worldlet):
    """A leader with its real board. `said`: what it knows beside objects and reports."""

    said: World = field(default_factory=worlds.world)
    board: FleetBoard = field(init=False)
    made: Plan = field(init=False)

    def begin(self) -> None:
        """What `said` holds was reported at its time."""
        self.board = FleetBoard(lambda: self.now)
        self.board.begin(self.said.term)
        self.put(*self.said.objects)
        for agent in self.said.agents:
            if agent.report is not None:
                self.now = agent.seen
                self.board.on_report(agent.node, agent.report)
                self.board.observed.agents[agent.node].disconnected_at = agent.disconnected
        for gateway in self.said.gateways:
            self.now = gateway.seen
            if gateway.demand is not None:
                self.board.on_demand(gateway.name, gateway.demand)
                self.board.observed.gateways[gateway.name].connected = gateway.connected
        self.now, self.memory = NOW, self.said.memory

    def observe(self) -> World:
        own = worlds.Worldlet.observe(self)
        return replace(
            self.said,
            objects=own.objects,
            agents=self.board.observe_agents(),
            gateways=self.board.observe_gateways(),
            published=self.board.published,
            memory=own.memory,
            fresh_ids=own.fresh_ids,
            answers={},
        )

    def settle(self) -> None:
        """Turns of one moment, until nothing is left to do and nothing new is published: it may be applied already."""
        for _ in range(20):
            self.board.wake.clear()
            before = self.board.published
            self.made = plan(self.observe(), self.now)
            self._act(self.made)
            self.board.publish(self.made.assignments, self.made.endpoints)
            self.memory = replace(self.made.memory, planned_at=self.now)
            if not self.made.actions and not self.made.statuses and self.board.published == before:
                assert self.due_at(self.now) > self.now, "a plan that was made is not due again at once"
                return
        raise AssertionError("a plan must come to rest")

    def due_at(self, planned_at: float) -> float:
        """As the loop has it."""
        watching_since = self.memory.watching_since or self.said.led_since
        silent = next_silence(self.board.observe_agents(), watching_since, planned_at)
        return min(self.made.wake_at, silent)

    def rest(self, seconds: float) -> None:
        """Time passes; at each second what a plan would do is nothing, until one is due and made."""
        until, planned_at = self.now + seconds, self.now
        while self.now < until:
            due_at = self.due_at(planned_at)
            self.now = min(self.now + 1.0, until, due_at)
            if self.now == due_at:
                self.settle()
                planned_at = self.now
            else:
                self.check(planned_at)

    def check(self, planned_at: float) -> None:
        self.memory = replace(self.memory, planned_at=self.now)
        now_made = plan(self.observe(), self.now)
        assert (now_made.actions, now_made.statuses) == ((), ())
        assert (now_made.assignments, now_made.endpoints) == (self.made.assignments, self.made.endpoints)
        assert now_made.wake_at >= self.due_at(planned_at)


@st.composite
def demands(draw: st.DrawFn, name: str, ids: tuple[str, ...]) -> Demand:
    endpoints = tuple(
        EndpointDemand(
            instance_id=each,
            in_flight=draw(st.integers(0, 2)),
            unreachable=draw(st.booleans()),
            path_failure=draw(st.sampled_from(("", "", "refused"))),
        )
        for each in ids
        if draw(st.booleans())
    )
    applied = draw(st.none() | st.integers(0, 6).map(lambda serial: Order(term=1, serial=serial)))
    return Demand(gateway=name, address="http://127.0.0.1:1", applied=applied, endpoints=endpoints)


def speak(leader: RestingLeader, draw: Callable[[st.SearchStrategy[Report]], Report], data: st.DataObject) -> None:
    """Somebody reports."""
    if data.draw(st.booleans()):
        node = data.draw(st.sampled_from(NODES))
        session = leader.board.observed.agents.get(node)
        before = session.report if session is not None and session.report is not None else worlds.report()
        try:
            leader.board.on_report(node, draw(next_reports(before)))
        except NameTaken:
            return
    else:
        name = data.draw(st.sampled_from(GATEWAYS))
        ids = tuple(each.spec.instance_id for each in leader.instances())
        leader.board.on_demand(name, data.draw(demands(name, ids)))


@settings(max_examples=80, deadline=None)
@given(arbitrary_worlds(), st.data())
def test_what_wakes_no_leader_would_change_no_plan(world: World, data: st.DataObject) -> None:
    leader = RestingLeader(said=world)
    leader.begin()
    leader.settle()
    planned_at = leader.now
    for _ in range(data.draw(st.integers(1, 8))):
        speak(leader, data.draw, data)
        if leader.board.wake.is_set():
            leader.settle()
            planned_at = leader.now
        else:
            leader.check(planned_at)
        leader.rest(data.draw(st.sampled_from((0.05, 0.9, 3.0, 11.0))))
        planned_at = leader.now if leader.made.wake_at < leader.now else planned_at


def test_leader_without_news_looks_every_half_minute() -> None:
    """And finds nothing: an hour of it writes nothing."""
    leader = RestingLeader(said=worlds.world(builders.model(), builders.placement()))
    leader.begin()
    leader.settle()
    leader.rest(3600.0)
    assert leader.made.wake_at - leader.now <= 30.0
