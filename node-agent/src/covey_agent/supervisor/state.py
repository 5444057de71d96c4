"""The supervisor's state: one value a member, all frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from covey_api.instance import InstanceSpec, Member, MemberPhase, MemberRole
from covey_api.messages import MemberAssignment, MemberGoal, Order
from covey_api.node import NodeSpec
from covey_api.reasons import FailureCause

from covey_agent.ports import EngineProcess, EngineProgram
from covey_agent.supervisor.kept import Kept, KeptMember


class Work(StrEnum):
    """What is under way for a member; each is asked for once and ended by its event."""

    FIND = "Find"
    FETCH = "Fetch"
    ENGINE = "Engine"
    FIT = "Fit"
    LAUNCH = "Launch"
    PROBE = "Probe"
    EXAMINE = "Examine"
    STOP = "Stop"
    RELEASE = "Release"
    KEEP_PORT = "KeepPort"


@dataclass(frozen=True, slots=True)
class Failure:
    cause: FailureCause
    message: str
    pool: str = ""
    """Of memory that is short; empty: something else failed."""


@dataclass(frozen=True, slots=True)
class MemberState:
    assignment: MemberAssignment
    goal: MemberGoal
    assigned: bool = True
    phase: MemberPhase = MemberPhase.PENDING
    failure: Failure | None = None
    """Why it is where it is: the last one, gone once it is ready."""
    given_up: bool = False
    """The failure is final for this attempt."""
    work: frozenset[Work] = frozenset()
    weights: Path | None = None
    companions: tuple[Path, ...] = ()
    """Of the Instance's companions, in their order; there once `weights` is."""
    program: EngineProgram | None = None
    kept_port: int = 0
    """Of a rank that isn't started yet: where the others will reach it."""
    fits: bool = False
    fit_refused_since: float | None = None
    fetch_failures: int = 0
    keeper: EngineProcess | None = None
    engine: str = ""
    """Identity of the keeper's engine; after a start of the agent: of the one that ran before."""
    ready: bool = False
    unready: str = ""
    """What the last probe of its engine met; empty: none has ended."""
    started_at: float = 0.0
    ready_at: float = 0.0
    """When it was seen ready, by this agent."""
    wait_until: float = 0.0
    """Nothing is tried before: a backoff, the next probe, the next look at memory."""
    overdue: bool = False
    """It didn't become ready in time, or is wedged, and has to end for it."""
    is_rekeyed: bool = False
    """Its engine was started with another key than it has now: gateways can't use it, and it has to end."""
    dispelled: str = ""
    """The doubt (`suspectSince`) in which it proved that it generates."""
    restarts: int = 0
    restarted_at: tuple[float, ...] = ()

    @property
    def instance_id(self) -> str:
        return self.assignment.instance.spec.instance_id

    @property
    def spec(self) -> InstanceSpec:
        return self.assignment.instance.spec

    @property
    def member(self) -> Member:
        return member_of(self.assignment)

    @property
    def is_alone(self) -> bool:
        """Whether it may be started again by itself: of several members all end as one, and so does the attempt."""
        return self.member.role is MemberRole.SINGLE

    @property
    def needs_weights(self) -> bool:
        """A donor gets its layers from the driver."""
        return self.member.role is not MemberRole.DONOR

    @property
    def answers(self) -> bool:
        """Whether requests come to it: of several members to the first."""
        return self.member.name == self.spec.members[0].name

    @property
    def needs_port(self) -> bool:
        """Ranks find each other in a ring: each has to be told where the next is before any is started."""
        return self.member.role is MemberRole.RANK and not self.kept_port

    @property
    def missing_members(self) -> list[str]:
        """Of a driver: donors that aren't known to be ready in this attempt; of a rank: ranks that lack something."""
        if self.member.role not in (MemberRole.DRIVER, MemberRole.RANK):
            return []
        known = {front.member for front in self.assignment.fronts}
        return [each.name for each in self.spec.members if each.name not in known | {self.member.name}]

    @property
    def is_loading(self) -> bool:
        """An engine is on its way to the memory that it was promised."""
        return Work.LAUNCH in self.work or (self.keeper is not None and not self.ready)

    @property
    def is_doubted(self) -> bool:
        """Gateways doubt that it generates, and it hasn't proven it since. Who answers nothing can prove nothing."""
        return self.answers and self.assignment.suspect_since not in ("", self.dispelled)

    @property
    def is_idle(self) -> bool:
        """Nothing runs, nothing is under way."""
        return self.keeper is None and not self.work


@dataclass(frozen=True, slots=True)
class State:
    order: Order | None = None
    spec: NodeSpec = field(default_factory=NodeSpec)
    boot_id: str = ""
    members: Mapping[str, MemberState] = field(default_factory=dict[str, MemberState])
    """By `instanceId`; sorted."""
    closing: bool = False

    @property
    def is_finding(self) -> bool:
        """It isn't known yet what runs: nothing may be reported."""
        return any(Work.FIND in member.work for member in self.members.values())

    @property
    def is_closed(self) -> bool:
        """Nothing runs, and nothing will."""
        return self.closing and all(member.is_idle for member in self.members.values())

    def with_member(self, member: MemberState) -> "State":
        """Itself, if the member is as it was."""
        known = self.members.get(member.instance_id)
        if known is member or known == member:
            return self
        members = {**self.members, member.instance_id: member}
        return replace(self, members=dict(sorted(members.items())))

    def without_member(self, instance_id: str) -> "State":
        members = {key: member for key, member in self.members.items() if key != instance_id}
        return replace(self, members=members)


def member_of(assignment: MemberAssignment) -> Member:
    """Its entry in the Instance; the first one when the name is unknown, so that `step` is total."""
    members = assignment.instance.spec.members
    return next((one for one in members if one.name == assignment.member), members[0])


def keep_state(state: State) -> Kept:
    """The part that outlives the agent."""
    return Kept(
        order=state.order,
        spec=state.spec,
        boot_id=state.boot_id,
        members=tuple(_keep_member(member) for member in state.members.values()),
    )


def is_kept_alike(before: State, after: State) -> bool:
    """Whether `keep_state` of both is equal, without making it: most steps change nothing that is kept."""
    if before is after:
        return True
    if (before.order, before.spec, before.boot_id) != (after.order, after.spec, after.boot_id):
        return False
    if before.members.keys() != after.members.keys():
        return False
    members = ((member, after.members[key]) for key, member in before.members.items())
    return all(old is new or _kept_of(old) == _kept_of(new) for old, new in members)


def _keep_member(member: MemberState) -> KeptMember:
    return KeptMember(**_kept_of(member))


def _kept_of(member: MemberState) -> dict[str, Any]:
    """Fields of a KeptMember."""
    failure = member.failure if member.given_up else None
    return {
        "assignment": member.assignment,
        "goal": member.goal,
        "assigned": member.assigned,
        "engine": member.engine,
        "ready": member.ready,
        "is_rekeyed": member.is_rekeyed,
        "failed": failure.cause if failure else None,
        "message": failure.message if failure else "",
        "pool": failure.pool if failure else "",
        "restarts": member.restarts,
        "restarted_at": member.restarted_at,
    }


def restore_state(kept: Kept, strays: tuple[MemberAssignment, ...], boot_id: str) -> State:
    """The state after a start: what was kept, and living members that were not.

    Every member is to be found first (`Work.FIND`): whether its keeper lives decides everything else. Restart times of
    another boot mean nothing on this one's clock.
    """
    is_same_boot = kept.boot_id == boot_id
    members = {one.assignment.instance.spec.instance_id: _restore_member(one, is_same_boot) for one in kept.members}
    for assignment in strays:
        found = MemberState(assignment, MemberGoal.SERVE, assigned=False, work=frozenset({Work.FIND}))
        members.setdefault(found.instance_id, found)
    return State(kept.order, kept.spec, boot_id, dict(sorted(members.items())))


def _restore_member(kept: KeptMember, is_same_boot: bool) -> MemberState:
    return MemberState(
        assignment=kept.assignment,
        goal=kept.goal,
        assigned=kept.assigned,
        failure=Failure(kept.failed, kept.message, kept.pool) if kept.failed else None,
        given_up=kept.failed is not None,
        work=frozenset({Work.FIND}),
        engine=kept.engine,
        ready=kept.ready,
        is_rekeyed=kept.is_rekeyed,
        restarts=kept.restarts,
        restarted_at=kept.restarted_at if is_same_boot else (),
    )
