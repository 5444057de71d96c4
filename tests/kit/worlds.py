"""A small fleet in virtual time around `plan`: agents and gateways at the seam of reports, a store as a dict.

`Worldlet` applies each plan as the loop does (actions, publication, statuses), and its agents follow their assignments
as real ones do, one phase a step. Knobs: `fail` (a member's cause), `pause` (an agent goes silent), `capacity`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count

from covey_api.engines import Lane, UnusableEngine
from covey_api.instance import Instance, MemberPhase, MemberRole
from covey_api.kinds import Kind, ObjectKey
from covey_api.messages import (
    Ask,
    AskAnswer,
    Assignments,
    Demand,
    EndpointDemand,
    Endpoints,
    MemberAssignment,
    MemberGoal,
    MemberReport,
    ModelDemand,
    Order,
    Progress,
    Report,
    UnkeptArtifact,
)
from covey_api.model import Geometry
from covey_api.node import MemoryPool, Node, NodeFacts
from covey_api.reasons import FailureCause
from covey_controller.reconcile.outcomes import CreateInstance, CreateNode, HoldObject, Note, Plan, UpdateInstance
from covey_controller.reconcile.plan import plan
from covey_controller.reconcile.sights import AgentView
from covey_controller.reconcile.world import GatewayView, Memory, Published, World
from covey_controller.seal import seal_instance

from kit import builders

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_NEXT = {
    MemberPhase.PENDING: MemberPhase.FETCHING,
    MemberPhase.FETCHING: MemberPhase.STARTING,
    MemberPhase.STARTING: MemberPhase.READY,
}


SEAL_OF = partial(seal_instance, b"fleet secret")


def facts(total_bytes: int = 8 * builders.GIB) -> NodeFacts:
    return NodeFacts(
        os="linux", architecture="x86_64", cpu_cores=4, pools=(MemoryPool(name="Host", total_bytes=total_bytes),)
    )


def member_report(instance: Instance, phase: MemberPhase = MemberPhase.READY, **changes: object) -> MemberReport:
    """What an agent says of the first member; whole and sealed, as in a full report."""
    fields: dict[str, object] = {
        "instance_id": instance.spec.instance_id,
        "namespace": instance.metadata.namespace,
        "name": instance.metadata.name,
        "member": instance.spec.members[0].name,
        "attempt": instance.spec.attempt,
        "phase": phase,
        "port": 40_000 if phase in (MemberPhase.READY, MemberPhase.DRAINING) else 0,
        "instance": instance,
        "seal": SEAL_OF(instance),
    }
    return MemberReport.model_validate(fields | changes)


def report(members: Iterable[MemberReport] = (), **changes: object) -> Report:
    fields: dict[str, object] = {
        "boot_id": "b0",
        "sequence": 1,
        "version": "0.1.0",
        "full": True,
        "facts": facts(),
        "lanes": (builders.lane(),),
        "blobs": (),
        "members": tuple(members),
    }
    return Report.model_validate(fields | changes)


def fresh_ids(start: int = 1, number: int = 64) -> tuple[str, ...]:
    return tuple(f"{index:016x}" for index in range(start, start + number))


def world(*objects: Kind, **changes: object) -> World:
    """A leader that has seen its fleet whole, unless changed."""
    base = World(
        term=1,
        led_since=0.0,
        objects=objects,
        agents=(),
        gateways=(),
        answers={},
        published=Published(),
        memory=Memory(complete=True, expected=frozenset(), planned_at=99.0, watching_since=0.0),
        fresh_ids=fresh_ids(),
        timestamp="2026-01-01T00:00:00Z",
        engine_key=lambda instance_id: f"key-{instance_id}",
        seal_of=SEAL_OF,
    )
    return replace(base, **changes)  # pyright: ignore[reportArgumentType]  # builders take any field by name


def _role_of(assignment: MemberAssignment) -> MemberRole:
    return next(each.role for each in assignment.instance.spec.members if each.name == assignment.member)


def _waits_for_others(assignment: MemberAssignment) -> bool:
    """Whether it is a driver that hasn't been told of all its donors, or a rank of all the others."""
    known = {each.member for each in assignment.fronts} | {assignment.member}
    is_told = _role_of(assignment) in (MemberRole.DRIVER, MemberRole.RANK)
    return is_told and len(known) < len(assignment.instance.spec.members)


@dataclass(slots=True)
class FakeAgent:
    """Follows assignments one phase a step."""

    name: str
    total_bytes: int = 8 * builders.GIB
    members: dict[str, MemberReport] = field(default_factory=dict[str, MemberReport])
    applied: Order | None = None
    is_complete: bool = False
    paused: bool = False
    fail: Callable[[Instance], FailureCause | None] = lambda _: None
    started: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    seen: float = 0.0
    unreadable: bool = False
    unmeasured: str = ""
    """What it says of headers that are sound."""
    deaf: bool = False
    """Reports, and follows nothing."""
    version: str = "0.1.0"
    address: str = "127.0.0.1"
    front_port: int = 0
    """Of everything that is ready on it."""
    progress: Progress | None = None
    """Of every member."""
    lanes: tuple[Lane, ...] = (builders.lane(),)
    cards: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes by pool of what has memory of its own."""
    blobs: tuple[str, ...] = ()
    unusable: tuple[UnusableEngine, ...] | None = ()
    unkept: tuple[UnkeptArtifact, ...] = ()
    used: Callable[[Instance], int] = lambda _: 0
    """Host memory that an engine takes, in bytes."""
    headers: dict[str, Geometry] = field(default_factory=dict[str, Geometry])
    """By source, where it is another than SmolLM2's."""
    lies: dict[str, object] = field(default_factory=dict[str, object])
    """What it puts into the artifacts that it answers with."""

    @property
    def applied_term(self) -> int:
        return self.applied.term if self.applied else 0

    def follow(self, assignments: Assignments) -> None:
        if self.applied is not None and self.applied.is_after(assignments.order):
            return
        self.applied = assignments.order
        self.is_complete = assignments.complete
        assigned = {each.instance.spec.instance_id: each for each in assignments.members}
        for instance_id, each in assigned.items():
            now = self.members.get(instance_id)
            if now is None or now.attempt < each.instance.spec.attempt:
                if each.goal is MemberGoal.SERVE:
                    self.members[instance_id] = member_report(
                        each.instance, MemberPhase.PENDING, seal=each.seal, member=each.member
                    )
                    self.started.append((instance_id, each.instance.spec.attempt))
            else:
                advanced = self._advance(now, each.instance, each.goal)
                if advanced.phase is MemberPhase.STARTING and _waits_for_others(each):
                    # A rank that waits has kept a port.
                    advanced = now.model_copy(update={"front_port": self.front_port * self._is_rank(each)})
                self.members[instance_id] = advanced.model_copy(update={"seal": each.seal, "member": each.member})
        if assignments.complete:
            self.members = {key: each for key, each in self.members.items() if key in assigned}

    def _is_rank(self, assignment: MemberAssignment) -> bool:
        return _role_of(assignment) is MemberRole.RANK

    def _advance(self, now: MemberReport, instance: Instance, goal: MemberGoal) -> MemberReport:
        if now.phase in (MemberPhase.FAILED, MemberPhase.STOPPED):
            return now
        if goal is MemberGoal.STOP:
            return member_report(instance, MemberPhase.STOPPED)
        if goal is MemberGoal.DRAIN:
            return member_report(instance, MemberPhase.DRAINING) if now.phase is MemberPhase.READY else now
        phase = _NEXT.get(now.phase, now.phase)
        if phase is MemberPhase.READY and (cause := self.fail(instance)) is not None:
            return member_report(instance, MemberPhase.FAILED, cause=cause, message="it broke")
        return member_report(instance, phase)

    def report(self) -> Report:
        members = [
            each.model_copy(
                update={"front_port": self.front_port if each.port else each.front_port, "progress": self.progress}
                | self._usage(each)
            )
            for each in sorted(self.members.values(), key=lambda each: each.instance_id)
        ]
        where = {
            "address": self.address,
            "machine": f"machine-{self.name}",
            "blobs": self.blobs,
            "unusable": self.unusable,
            "unkept": self.unkept,
        }
        return report(
            members, version=self.version, applied=self.applied, facts=self._facts(), lanes=self.lanes, **where
        ).model_copy(update={"unusable": self.unusable, "unkept": self.unkept})

    def _facts(self) -> NodeFacts:
        known = facts(self.total_bytes)
        cards = tuple(MemoryPool(name=name, total_bytes=count) for name, count in sorted(self.cards.items()))
        return known.model_copy(update={"pools": (*known.pools, *cards)})

    def _usage(self, member: MemberReport) -> dict[str, int]:
        if not member.port or member.instance is None:
            return {}
        return {"pid": 1000 + member.attempt, "used_bytes": self.used(member.instance)}

    def answer(self, ask: Ask) -> AskAnswer:
        if self.unreadable:
            return AskAnswer(id=ask.id, error="no such file")
        named = {"source": ask.source, "name": ask.source.rsplit("/", 1)[-1], "sha256": ask.sha256 or None}
        artifact = builders.artifact(**named | self.lies)
        if self.unmeasured:
            return AskAnswer(id=ask.id, artifact=artifact, error=self.unmeasured)
        return AskAnswer(id=ask.id, artifact=artifact, geometry=self.headers.get(ask.source, builders.geometry()))


@dataclass(slots=True)
class FakeGateway:
    """Applies tables; `in_flight` counts stay until a test ends them."""

    name: str = "g"
    applied: Order | None = None
    routed: frozenset[str] = frozenset()
    nodes: tuple[str, ...] = ()
    """Of the table it has."""
    in_flight: dict[str, int] = field(default_factory=dict[str, int])
    unreachable: set[str] = field(default_factory=set[str])
    path_failures: dict[str, str] = field(default_factory=dict[str, str])
    heard: dict[str, float] = field(default_factory=dict[str, float])
    """By instanceId: how long ago its last byte came."""
    silent: dict[str, float] = field(default_factory=dict[str, float])
    """By instanceId: for how long a request on it has waited for a byte."""
    held: dict[str, float] = field(default_factory=dict[str, float])
    """By Model: for how long the oldest request that waits for it has."""
    refused: dict[str, float] = field(default_factory=dict[str, float])
    """By Model: how long ago a request that doesn't wait was refused."""
    seen: float = 0.0
    stuck: bool = False
    dead: bool = False
    """It says nothing any more, and its stream is broken."""

    def follow(self, table: Endpoints) -> None:
        is_newer = self.applied is None or not self.applied.is_after(table.order)
        if is_newer and not self.stuck:
            self.applied = table.order
            self.routed = frozenset(each.instance_id for each in table.endpoints)
            self.nodes = tuple(sorted({each.node for each in table.endpoints}))

    def demand(self, term: int | None = None) -> Demand:
        """What it tells a leader of this term; None: it hasn't heard of any."""
        endpoints = [EndpointDemand(instance_id=each, in_flight=n) for each, n in sorted(self.in_flight.items())]
        endpoints += [EndpointDemand(instance_id=e, in_flight=0, unreachable=True) for e in sorted(self.unreachable)]
        endpoints += [
            EndpointDemand(instance_id=each, in_flight=0, unreachable=True, path_failure=words)
            for each, words in sorted(self.path_failures.items())
        ]
        endpoints += [
            EndpointDemand(
                instance_id=each,
                in_flight=int(each in self.silent),
                last_byte_seconds=self.heard.get(each),
                oldest_silent_seconds=self.silent.get(each),
            )
            for each in sorted(self.heard.keys() | self.silent.keys())
        ]
        models = tuple(
            ModelDemand(
                namespace="default",
                name=name,
                held=int(name in self.held),
                oldest_seconds=self.held.get(name, 0.0),
                refused_seconds=self.refused.get(name),
            )
            for name in sorted(self.held.keys() | self.refused.keys())
        )
        is_foreign = self.applied is not None and self.applied.term != term
        return Demand(
            gateway=self.name,
            address="http://127.0.0.1:1",
            applied=self.applied,
            endpoints=tuple(endpoints),
            nodes=self.nodes if is_foreign else (),
            models=models,
        )


@dataclass(slots=True)
class Worldlet:
    """The leader's surroundings, in virtual time."""

    objects: dict[ObjectKey, Kind] = field(default_factory=dict[ObjectKey, Kind])
    agents: dict[str, FakeAgent] = field(default_factory=dict[str, FakeAgent])
    gateways: dict[str, FakeGateway] = field(default_factory=dict[str, FakeGateway])
    memory: Memory = field(default_factory=Memory)
    published: Published = field(default_factory=Published)
    term: int = 1
    now: float = 0.0
    led_since: float = 0.0
    serial: int = 0
    writes: int = 0
    notes: list[Note] = field(default_factory=list[Note])
    answers: dict[str, AskAnswer] = field(default_factory=dict[str, AskAnswer])
    allow_empty: bool = False
    version: str = ""
    _ids: Iterator[int] = field(default_factory=lambda: count(1))
    _versions: Iterator[int] = field(default_factory=lambda: count(1))

    def put(self, *items: Kind) -> None:
        for item in items:
            self.objects[item.key] = item

    def remove(self, item: Kind) -> None:
        del self.objects[item.key]

    def add_agents(self, *names: str, total_bytes: int = 8 * builders.GIB) -> None:
        for name in names:
            self.agents[name] = FakeAgent(name, total_bytes)

    def instances(self) -> list[Instance]:
        return sorted((o for o in self.objects.values() if isinstance(o, Instance)), key=lambda i: i.metadata.name)

    def routed(self) -> list[str]:
        """Names of Instances in the published table."""
        table = self.published.endpoints
        return sorted(each.instance.split("/")[1] for each in table.endpoints) if table else []

    def restart_leader(self) -> None:
        """A new leader on the same store: nothing in memory, a higher term."""
        self.memory, self.published, self.serial = Memory(), Published(), 0
        self.term += 1
        self.led_since = self.now

    def lose_store(self) -> None:
        """What only the store knew is gone; what people wrote is read again from their files."""
        for item in [o for o in self.objects.values() if isinstance(o, Instance | Node)]:
            del self.objects[item.key]
        self.restart_leader()

    def observe(self) -> World:
        return World(
            term=self.term,
            led_since=self.led_since,
            objects=tuple(self.objects.values()),
            agents=tuple(AgentView(a.name, a.seen, a.report()) for a in self.agents.values() if a.seen >= 0),
            gateways=tuple(
                GatewayView(g.name, g.seen, not g.dead, g.demand(self.term)) for g in self.gateways.values()
            ),
            answers=self.answers,
            published=self.published,
            memory=self.memory,
            fresh_ids=tuple(f"{next(self._ids):016x}" for _ in range(16)),
            timestamp=(EPOCH + timedelta(seconds=int(self.now))).strftime("%Y-%m-%dT%H:%M:%SZ"),
            engine_key=lambda instance_id: f"key-{instance_id}",
            seal_of=SEAL_OF,
            allow_empty=self.allow_empty,
            version=self.version,
        )

    def step(self, seconds: float = 1.0) -> Plan:
        """Time passes, everybody reports, the leader plans and acts, everybody follows."""
        self.now += seconds
        for agent in self.agents.values():
            if not agent.paused:
                agent.seen = self.now
        for gateway in self.gateways.values():
            if not gateway.dead:
                gateway.seen = self.now
        made = plan(self.observe(), self.now)
        self._act(made)
        self._publish(made)
        self.memory = made.memory
        self.answers = {}
        self._follow()
        return made

    def run(self, seconds: float, each: float = 1.0) -> None:
        for _ in range(int(seconds / each)):
            self.step(each)

    def _act(self, made: Plan) -> None:
        self.notes += made.notes
        for action in made.actions:
            self.writes += 1
            match action:
                case CreateInstance(instance):
                    assert instance.key not in self.objects
                    self.objects[instance.key] = self._stored(instance, uid=f"uid-{next(self._versions)}")
                case UpdateInstance(instance):
                    assert self.objects[instance.key].metadata.uid == instance.metadata.uid
                    self.objects[instance.key] = self._stored(instance, uid=instance.metadata.uid)
                case HoldObject(item):
                    self.objects[item.key] = item
                case CreateNode(node):
                    self.objects[node.key] = node
                case _:
                    assert self.objects[action.key].metadata.uid == action.uid
                    del self.objects[action.key]
        for write in made.statuses:
            if (item := self.objects.get(write.key)) is not None:
                self.writes += 1
                self.objects[write.key] = item.model_copy(update={"status": write.status})

    def _stored(self, instance: Instance, uid: str) -> Instance:
        moment = (EPOCH + timedelta(seconds=int(self.now))).strftime("%Y-%m-%dT%H:%M:%SZ")
        created = instance.metadata.creation_timestamp or moment
        changes = {"uid": uid, "resource_version": str(next(self._versions)), "creation_timestamp": created}
        return instance.model_copy(update={"metadata": instance.metadata.model_copy(update=changes)})

    def _publish(self, made: Plan) -> None:
        assignments = dict(self.published.assignments)
        for node, new in made.assignments.items():
            old = assignments.get(node)
            if old is None or old != new.model_copy(update={"serial": old.serial}):
                assignments[node] = new.model_copy(update={"serial": self._next_serial()})
        self.published = Published(self.published.endpoints, assignments)
        if made.endpoints is not None:
            self.publish_table(made.endpoints)

    def publish_table(self, table: Endpoints) -> None:
        """With the next serial, if it says something new."""
        before = self.published.endpoints
        if before is None or before.model_copy(update={"serial": 0}) != table:
            made = table.model_copy(update={"serial": self._next_serial()})
            self.published = Published(made, self.published.assignments)

    def _next_serial(self) -> int:
        self.serial += 1
        return self.serial

    def _follow(self) -> None:
        for name, assignments in self.published.assignments.items():
            agent = self.agents.get(name)
            if agent is None or agent.paused or agent.deaf:
                continue
            agent.follow(assignments)
            for ask in assignments.asks:
                self.answers[ask.id] = agent.answer(ask)
        for gateway in self.gateways.values():
            if self.published.endpoints is not None and not gateway.dead:
                gateway.follow(self.published.endpoints)
