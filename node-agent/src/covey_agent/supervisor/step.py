"""`step`: one event in, the next state and what to do out. Total: any event in any state, also twice, also late.

event          member has               outcome
KeeperFound    is looked for            it is the member's engine; ready at once if it is the one that was
KeeperMissed   its engine is recorded   as EngineExited; else nothing ran
ArtifactReady, EngineReady              on to the fit, when both are there
PortKept       a rank                   the others are told; PortMissed ends its attempt
ArtifactFailed, EngineFailed            again with a backoff while that may help, then given up
               asked to come later      again within a minute, as often as it takes
FitChecked     fits                     its keeper is started
               doesn't fit              looked at again each second for 15 s, then given up
               waits for one that loads looked at again 5 s later; the 15 s begin when nobody loads there
KeeperStarted  any                      it is the member's engine
KeeperFailed   any                      as a crash
Probed         the same engine          ready, or probed again
Examined       generates                not doubted any more, until gateways doubt it anew
               computes                 looked at again 5 s later, while it is doubted
               dead                     has to end: overdue
any end        one of several members   given up: the attempt is over, and the controller's to begin anew
EngineExited   another engine, or none  nothing
               overdue                  given up: a wedge is never retried
               not to run any more      stopped, or the next attempt is started
               ended as asked           started again, not counted
               crash                    restarted 0.5 s, 1 s, 2 s later; the fourth within 60 s: given up, or the
                                        fourth in a row of engines that never were ready, however long each took
               a crash that will recur  given up
KeeperReleased any                      another keeper may be started
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, assert_never

from covey_api.instance import MemberPhase
from covey_api.messages import MemberAssignment, MemberGoal
from covey_api.reasons import FailureCause

from covey_agent.ports import EngineProcess
from covey_agent.supervisor.advance import advance
from covey_agent.supervisor.effects import CancelWork, Effect, FindKeeper, Forget, Keep, ReleaseKeeper
from covey_agent.supervisor.events import (
    ArtifactFailed,
    ArtifactReady,
    AssignmentsReceived,
    CloseAsked,
    EngineExited,
    EngineFailed,
    EngineReady,
    Event,
    Examined,
    FitChecked,
    KeeperFailed,
    KeeperFound,
    KeeperMissed,
    KeeperReleased,
    KeeperStarted,
    PortKept,
    PortMissed,
    Probed,
    Ticked,
)
from covey_agent.supervisor.judging import judge_examination, judge_fit, judge_probe
from covey_agent.supervisor.kept import Kept
from covey_agent.supervisor.snapshot import accept_snapshot
from covey_agent.supervisor.state import (
    Failure,
    MemberState,
    State,
    Work,
    is_kept_alike,
    keep_state,
    restore_state,
)

# A member is restarted this often within this time; whatever crashes more is broken, and the controller's to judge.
MAX_RESTARTS = 3
RESTART_WINDOW_SECONDS = 60.0
FIRST_BACKOFF_SECONDS = 0.5
# A fetch resumes by itself; these tries, up to a minute apart, outlast an outage of some four minutes.
MAX_FETCH_FAILURES = 8
FIRST_FETCH_BACKOFF_SECONDS = 1.0
LONGEST_FETCH_BACKOFF_SECONDS = 60.0

# Trying again may help without anybody doing anything.
_PASSING = frozenset({FailureCause.ARTIFACT_UNAVAILABLE, FailureCause.DISK_FULL})
# A restart would end the same way.
_RECURRING = frozenset(
    {
        FailureCause.MISSING_LIBRARY,
        FailureCause.ARTIFACT_CORRUPT,
        FailureCause.SIGNATURE_REFUSED,
        FailureCause.NO_USABLE_ENGINE,
    }
)

Change = Callable[[MemberState], MemberState]
_Event = TypeVar("_Event")


def begin(kept: Kept, strays: tuple[MemberAssignment, ...], boot_id: str) -> tuple[State, tuple[Effect, ...]]:
    """The first state after a start, and the search for what still runs."""
    state = restore_state(kept, strays, boot_id)
    return state, tuple(FindKeeper(key, member.engine) for key, member in state.members.items())


def step(state: State, event: Event, now: float) -> tuple[State, tuple[Effect, ...]]:
    """The state after the event, and the effects in the order in which to begin them."""
    before = state
    state, effects = _apply(state, event, now)
    state, effects = _advance_all(state, effects, now)
    if any(isinstance(effect, CancelWork) for effect in effects):  # a check that was called off lets the next begin
        state, effects = _advance_all(state, effects, now)
    return state, effects if is_kept_alike(before, state) else (Keep(keep_state(state)), *effects)


def _advance_all(state: State, effects: tuple[Effect, ...], now: float) -> tuple[State, tuple[Effect, ...]]:
    for key in tuple(state.members):
        member, more = advance(state, state.members[key], now)
        state = state.with_member(member)
        effects += more
        is_over = member.is_idle and member.phase in (MemberPhase.STOPPED, MemberPhase.FAILED)
        if is_over and not member.assigned and not state.closing:  # what closing stopped is wished still
            state, effects = state.without_member(key), (*effects, Forget(key))
    return state, effects


def _apply(state: State, event: Event, now: float) -> tuple[State, tuple[Effect, ...]]:
    match event:
        case AssignmentsReceived(assignments):
            return accept_snapshot(state, assignments), ()
        case CloseAsked():
            return replace(state, closing=True), ()
        case Ticked():
            return state, ()
        case EngineExited():
            return _apply_exit(state, event, now)
        case _:
            member = state.members.get(event.instance_id)
            return (state, ()) if member is None else (state.with_member(_change(member, event, now)), ())


def _change(
    member: MemberState,
    event: KeeperFound
    | KeeperMissed
    | ArtifactReady
    | ArtifactFailed
    | EngineReady
    | EngineFailed
    | PortKept
    | PortMissed
    | FitChecked
    | KeeperStarted
    | KeeperFailed
    | Probed
    | Examined
    | KeeperReleased,
    now: float,
) -> MemberState:
    match event:
        case KeeperFound(_, process):
            if Work.FIND not in member.work:  # told a second time, when that engine may have ended
                return member
            member = replace(member, work=member.work - {Work.FIND})
            return _hold(member, process, process.identity == member.engine and member.ready, now)
        case KeeperMissed(_, identity, cause, message):
            member = replace(member, work=member.work - {Work.FIND})
            if member.keeper is not None or not member.engine:
                return member
            member = replace(member, engine="", ready=False)
            if not member.is_alone:
                return _end_attempt(member, cause, message)
            return _crash(member, Failure(cause, message), now) if cause and identity else member
        case ArtifactReady(_, weights, companions):
            return replace(member, work=member.work - {Work.FETCH}, weights=weights, companions=companions)
        case EngineReady(_, program):
            return replace(member, work=member.work - {Work.ENGINE}, program=program)
        case ArtifactFailed():
            return _fail_fetch(member, Work.FETCH, event, now)
        case EngineFailed():
            return _fail_fetch(member, Work.ENGINE, event, now)
        case PortKept(_, port):
            return replace(member, work=member.work - {Work.KEEP_PORT}, kept_port=port)
        case PortMissed(_, cause, message):
            return _crash(replace(member, work=member.work - {Work.KEEP_PORT}), Failure(cause, message), now)
        case FitChecked():
            return judge_fit(member, event, now)
        case KeeperStarted(_, process):
            member = replace(member, work=member.work - {Work.LAUNCH}, kept_port=0)
            return _hold(member, process, process.identity == member.engine and member.ready, now)
        case KeeperFailed(_, cause, message):
            if Work.LAUNCH not in member.work:
                return member
            member = replace(member, work=member.work - {Work.LAUNCH}, weights=None, program=None, kept_port=0)
            return _crash(member, Failure(cause, message), now)
        case Probed(_, identity, unready):
            return judge_probe(member, identity, unready, now)
        case Examined():
            return judge_examination(member, event, now)
        case KeeperReleased():
            return replace(member, work=member.work - {Work.RELEASE})
    assert_never(event)


def _hold(member: MemberState, process: EngineProcess, is_ready: bool, now: float) -> MemberState:
    """The member with this engine. Told twice about one engine, nothing changes."""
    if member.keeper == process:
        return member
    return replace(
        member,
        keeper=process,
        engine=process.identity,
        ready=is_ready,
        unready="",
        started_at=now,
        wait_until=now,
        overdue=False,
    )


def _fail_fetch(member: MemberState, work: Work, event: ArtifactFailed | EngineFailed, now: float) -> MemberState:
    if work not in member.work:
        return member
    failure = Failure(event.cause, event.message)
    member = replace(member, work=member.work - {work}, failure=failure)
    if event.cause in _PASSING and event.retry_after_seconds:
        # The server isn't asked before, but what others have by then is theirs to give.
        delay = min(LONGEST_FETCH_BACKOFF_SECONDS, max(FIRST_FETCH_BACKOFF_SECONDS, event.retry_after_seconds))
        return replace(member, phase=MemberPhase.BACKOFF, wait_until=now + delay)
    member = replace(member, fetch_failures=member.fetch_failures + 1)
    if failure.cause not in _PASSING or member.fetch_failures >= MAX_FETCH_FAILURES:
        return replace(member, given_up=True)
    delay = min(LONGEST_FETCH_BACKOFF_SECONDS, FIRST_FETCH_BACKOFF_SECONDS * 2.0 ** (member.fetch_failures - 1))
    return replace(member, phase=MemberPhase.BACKOFF, wait_until=now + delay)


def _apply_exit(state: State, event: EngineExited, now: float) -> tuple[State, tuple[Effect, ...]]:
    member = state.members.get(event.instance_id)
    if member is None or member.keeper is None or member.keeper.identity != event.identity:
        return state, ()
    is_other_attempt = member.keeper.attempt != member.spec.attempt
    is_superseded = is_other_attempt or member.is_rekeyed
    is_overdue, was_ready = member.overdue, member.ready
    member = replace(
        member,
        work=member.work - {Work.STOP, Work.PROBE, Work.EXAMINE} | {Work.RELEASE},
        keeper=None,
        engine="",
        ready=False,
        overdue=False,
        is_rekeyed=False,
        dispelled="",
        weights=None,
        program=None,
    )
    is_wished = member.goal is MemberGoal.SERVE and not state.closing
    if is_overdue:
        member = replace(member, given_up=True)
    elif is_wished and not member.is_alone:
        member = member if is_other_attempt else _end_attempt(member, event.cause, event.message)
    elif event.cause is not None and is_wished and not is_superseded:
        member = _crash(member, Failure(event.cause, event.message), now, was_ready=was_ready)
    return state.with_member(member), (ReleaseKeeper(event.instance_id),)


def _crash(member: MemberState, failure: Failure, now: float, *, was_ready: bool = True) -> MemberState:
    """`was_ready`: else earlier restarts count whatever their age: a large model takes minutes to each crash."""
    if not member.is_alone:
        return _end_attempt(member, failure.cause, failure.message)
    recent = tuple(at for at in member.restarted_at if not was_ready or now - at < RESTART_WINDOW_SECONDS)
    member = replace(member, failure=failure, restarted_at=recent)
    if failure.cause in _RECURRING or len(recent) >= MAX_RESTARTS:
        return replace(member, given_up=True, phase=MemberPhase.FAILED)
    return replace(
        member,
        phase=MemberPhase.BACKOFF,
        wait_until=now + FIRST_BACKOFF_SECONDS * 2 ** len(recent),
        restarts=member.restarts + 1,
        restarted_at=(*recent, now),
    )


def _end_attempt(member: MemberState, cause: FailureCause | None, message: str) -> MemberState:
    """Of one of several members. An end that is no failure of a single one is one here: the others have ended too."""
    words = message or "nothing is left of its engine: its machine was started anew"
    failure = Failure(cause or FailureCause.KEEPER_LOST, words)
    return replace(member, failure=failure, given_up=True, phase=MemberPhase.FAILED)
