"""What a check of one member means for it: its fit, a probe while it loads, a look while it is doubted.

A check whose end nobody waits for any more, or that was of another engine, means nothing.
"""

from dataclasses import replace

from covey_api.instance import MemberPhase
from covey_api.reasons import FailureCause

from covey_agent.supervisor.events import Examined, Finding, FitChecked
from covey_agent.supervisor.state import Failure, MemberState, Work

# An engine that ended has given its memory back within seconds; who still doesn't fit then won't.
FIT_PATIENCE_SECONDS = 15.0
FIT_AGAIN_SECONDS = 1.0
# While another loads: each look lists devices anew, beside the load.
LOADING_AGAIN_SECONDS = 5.0
# Between two probes of an engine that loads: an unready one refuses in a millisecond.
PROBE_AGAIN_SECONDS = 0.2
# Between two looks at a doubted engine that computes: it may stop any moment, and a look costs a few milliseconds.
EXAMINE_AGAIN_SECONDS = 5.0


def judge_probe(member: MemberState, identity: str, unready: str, now: float) -> MemberState:
    if Work.PROBE not in member.work or member.keeper is None or member.keeper.identity != identity:
        return member
    work = member.work - {Work.PROBE}
    if not unready:
        return replace(member, work=work, ready=True, ready_at=now, unready="")
    return replace(member, work=work, unready=unready, wait_until=now + PROBE_AGAIN_SECONDS)


def judge_examination(member: MemberState, event: Examined, now: float) -> MemberState:
    """What was found of an engine that is being stopped, or is not this one, counts no more."""
    if Work.EXAMINE not in member.work or member.keeper is None or member.keeper.identity != event.identity:
        return member
    member = replace(member, work=member.work - {Work.EXAMINE})
    match event.finding:
        case Finding.GENERATES:
            return replace(member, dispelled=event.doubt)
        case Finding.COMPUTES:
            return replace(member, wait_until=now + EXAMINE_AGAIN_SECONDS)
        case Finding.DEAD:
            if not member.ready or Work.STOP in member.work:
                return member
            return replace(member, overdue=True, failure=Failure(FailureCause.WEDGED, event.message))


def judge_fit(member: MemberState, event: FitChecked, now: float) -> MemberState:
    """Patience isn't lost on one that loads, which its `startupSeconds` bounds. It begins once: not anew with each load
    of an engine that crashes again and again."""
    if Work.FIT not in member.work:
        return member
    member = replace(member, work=member.work - {Work.FIT})
    if not event.problem:
        return replace(member, fits=True, fit_refused_since=None)
    member = replace(member, phase=MemberPhase.PENDING)
    if event.waits_for:
        words = f"waits for '{event.waits_for}', which loads: {event.problem}"
        failure = Failure(FailureCause.INSUFFICIENT_MEMORY, words, event.pool)
        return replace(member, failure=failure, wait_until=now + LOADING_AGAIN_SECONDS)
    since = now if member.fit_refused_since is None else member.fit_refused_since
    return replace(
        member,
        failure=Failure(FailureCause.INSUFFICIENT_MEMORY, event.problem, event.pool),
        given_up=now - since >= FIT_PATIENCE_SECONDS,
        fit_refused_since=since,
        wait_until=now + FIT_AGAIN_SECONDS,
    )
