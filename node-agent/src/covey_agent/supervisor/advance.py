"""What one member does next, from where it stands: level-triggered, so no lost or doubled event leads it astray."""

from dataclasses import dataclass, replace

from covey_api.instance import MemberPhase
from covey_api.messages import MemberGoal
from covey_api.reasons import FailureCause

from covey_agent.ports import EngineProcess
from covey_agent.supervisor.effects import (
    CancelWork,
    CheckFit,
    Effect,
    EnsureEngine,
    Examine,
    FetchArtifact,
    KeepPort,
    Loading,
    Probe,
    StartKeeper,
    StopKeeper,
)
from covey_agent.supervisor.state import Failure, MemberState, State, Work

# From SIGTERM to SIGKILL. What was in flight has been drained before; an engine needs this to let go of its memory.
STOP_GRACE_SECONDS = 5.0

# A try that has lasted this long since it could begin is not refused any more (`engines.proof.LOADING_SECONDS`): it
# waits for an answer.
SILENT_SECONDS = 1.5

# A time that is over for this long when it is looked at was over while the agent itself stood still.
PAUSED_SECONDS = 5.0
# What an engine then has left to show that it became ready meanwhile.
LOOK_SECONDS = 15.0

# Ended by CancelWork without an event.
_CANCELLABLE = frozenset({Work.FETCH, Work.ENGINE, Work.FIT})


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of the rest of the node a member's next step depends on."""

    loading: tuple[Loading, ...]
    is_fit_under_way: bool


def observe_surroundings(state: State, instance_id: str) -> Surroundings:
    others = [member for key, member in state.members.items() if key != instance_id]
    loading = tuple(
        Loading(
            member.keeper.pid if member.keeper else 0,
            member.member.costs,
            "" if member.overdue or Work.STOP in member.work else member.assignment.instance.metadata.name,
        )
        for member in others
        if member.is_loading
    )
    return Surroundings(loading, any(Work.FIT in member.work for member in others))


def advance(state: State, member: MemberState, now: float) -> tuple[MemberState, tuple[Effect, ...]]:
    """The member's next state and what to do for it. Doing it twice at the same time does nothing the second time.

    1. What runs isn't known yet, or the last keeper isn't gone yet: wait.
    2. A keeper lives:
       a. it has to end (goal Stop, the agent closes, another attempt or key is wished, overdue): stop it, once;
       b. it drains: serve what is in flight;
       c. it is ready: serve; look at it when gateways doubt that it generates;
       d. it had its time to become ready while the agent was paused, which says nothing of it: it gets one more look;
       e. it had its time to become ready: it is overdue, and ends as in a;
       f. else probe it.
    3. A keeper is being started: wait, it can't be called back.
    4. It is not to run (any goal but Serve, or the agent closes): stopped.
    5. It was given up: failed, until another attempt.
    6. It waits (backoff, memory): wait.
    7. Weights or engine are missing: get both at once.
    8. It is a rank without a port: keep one. It is a driver, and not all of its donors are ready, or a rank, and others
       lack something: wait for the next snapshot.
    9. It hasn't been checked against fresh memory: check, one member of the node at a time.
    10. Start its keeper.
    """
    if Work.FIND in member.work or Work.RELEASE in member.work:  # 1
        return member, ()
    if member.keeper is not None:  # 2
        return _advance_living(state, member, member.keeper, now)
    if Work.LAUNCH in member.work:  # 3
        return replace(member, phase=MemberPhase.STARTING), ()
    if member.goal is not MemberGoal.SERVE or state.closing:  # 4
        effects = (CancelWork(member.instance_id),) if member.work else ()
        return replace(member, phase=MemberPhase.STOPPED, work=member.work - _CANCELLABLE), effects
    if member.given_up:  # 5
        return replace(member, phase=MemberPhase.FAILED), ()
    if now < member.wait_until:  # 6
        return member, ()
    return _advance_towards_start(state, member)


def _advance_living(
    state: State, member: MemberState, keeper: EngineProcess, now: float
) -> tuple[MemberState, tuple[Effect, ...]]:
    if keeper.attempt != member.spec.attempt or member.is_rekeyed:  # 2a
        return _stop(replace(member, phase=MemberPhase.PENDING))
    if member.overdue:
        return _stop(replace(member, phase=MemberPhase.DRAINING if member.ready else MemberPhase.STARTING))
    if member.goal is MemberGoal.STOP or state.closing:
        return _stop(replace(member, phase=MemberPhase.DRAINING))
    if member.goal is MemberGoal.DRAIN:  # 2b
        return replace(member, phase=MemberPhase.DRAINING), ()
    if member.ready:  # 2c
        if member.phase is not MemberPhase.READY or member.failure is not None or member.fetch_failures:
            member = replace(member, phase=MemberPhase.READY, failure=None, fetch_failures=0)
        if not member.is_doubted or Work.EXAMINE in member.work or now < member.wait_until:
            return member, ()
        look = Examine(member.instance_id, member.assignment, keeper)
        return replace(member, work=member.work | {Work.EXAMINE}), (look,)
    late = now - member.started_at - member.spec.startup_seconds
    if late >= PAUSED_SECONDS:  # 2d
        member = replace(member, started_at=member.started_at + late + LOOK_SECONDS)
    elif late >= 0:  # 2e
        is_silent = Work.PROBE in member.work and now - member.wait_until >= SILENT_SECONDS
        met = "it took the smallest request, and has given no answer" if is_silent else member.unready
        words = f"no token within `startupSeconds` ({member.spec.startup_seconds} s) of the engine's start"
        failure = Failure(FailureCause.NOT_READY_IN_TIME, f"{words}: {met}" if met else words)
        return _stop(replace(member, phase=MemberPhase.STARTING, overdue=True, failure=failure))
    if member.phase is not MemberPhase.STARTING:
        member = replace(member, phase=MemberPhase.STARTING)
    if Work.PROBE in member.work or now < member.wait_until:
        return member, ()
    effect = Probe(member.instance_id, member.assignment, keeper)  # 2f
    return replace(member, work=member.work | {Work.PROBE}), (effect,)


def _stop(member: MemberState) -> tuple[MemberState, tuple[Effect, ...]]:
    if Work.STOP in member.work:
        return member, ()
    effect = StopKeeper(member.instance_id, STOP_GRACE_SECONDS)
    return replace(member, work=member.work | {Work.STOP}), (effect,)


def _advance_towards_start(state: State, member: MemberState) -> tuple[MemberState, tuple[Effect, ...]]:
    key, spec = member.instance_id, member.spec
    if member.program is None or (member.weights is None and member.needs_weights):  # 7
        effects: list[Effect] = []
        work = member.work
        if member.weights is None and member.needs_weights and Work.FETCH not in work:
            effects.append(FetchArtifact(key, spec.artifact, tuple(each.artifact for each in spec.companions)))
            work |= {Work.FETCH}
        if member.program is None and Work.ENGINE not in work:
            version, architecture = spec.engine_version or None, member.assignment.architecture
            effects.append(EnsureEngine(key, spec.engine, state.spec, version, architecture))
            work |= {Work.ENGINE}
        return replace(member, phase=MemberPhase.FETCHING, work=work), tuple(effects)
    if member.needs_port:  # 8
        if Work.KEEP_PORT in member.work:
            return member, ()
        return replace(member, phase=MemberPhase.PENDING, work=member.work | {Work.KEEP_PORT}), (KeepPort(key),)
    if member.missing_members:
        return replace(member, phase=MemberPhase.PENDING), ()
    if not member.fits:  # 9
        around = observe_surroundings(state, key)
        if Work.FIT in member.work or around.is_fit_under_way:
            return member, ()
        effect = CheckFit(key, member.member.costs, around.loading)
        return replace(member, work=member.work | {Work.FIT}), (effect,)
    port = member.kept_port
    effect = StartKeeper(key, member.assignment, member.weights, member.program, member.companions, port)  # 10
    work = member.work | {Work.LAUNCH}
    started = replace(member, phase=MemberPhase.STARTING, fits=False, work=work, is_rekeyed=False)
    return started, (effect,)


def next_due(state: State, now: float) -> float | None:
    """When a Ticked will change something; None: only an event can."""
    due: list[float] = []
    for member in state.members.values():
        if member.wait_until > now:
            due.append(member.wait_until)
        if member.keeper is not None and not member.ready and not member.overdue:
            due.append(member.started_at + member.spec.startup_seconds)
    return min((at for at in due if at > now), default=None)
