"""The breaker: which revision failed on which node, why, and when it may be tried there again.

Two memories. `Placement.status.failures` is what people and the planner see: one entry per engine of a node and the
current revision, until a member is Ready there, the revision changes or somebody changes the annotation
`covey.dev/retry`. The leader's `backoffs` say when the next try is due; a new leader has none and may try at once: one
try, not a storm.

An agent's refusal for want of memory says less: of lanes that fill the pool that is short, and nothing of the others.
Any other failure is the whole engine's: who would run on the CPU for ever, because a download broke off once?

Restarts of a `Single` member are its agent's (phase Backoff); here a member is failed only when the agent gave up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from covey_api.engines import HOST_POOL
from covey_api.instance import InstanceGoal, InstanceSpec, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.meta import RETRY_ANNOTATION
from covey_api.placement import Failure, Placement
from covey_api.reasons import EventReason, FailureCause
from covey_planner.types import Barred, NodeState

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.sights import MemberSight, Sight
from covey_controller.reconcile.wanted import barred_by
from covey_controller.reconcile.world import Backoff, Spot

# `Placement.status.failures` holds at most this many (its schema says so).
MAX_FAILURES = 64
# An agent that takes assignments reports each member at once; a member it doesn't name for this long never started.
NEVER_REPORTED_SECONDS = 30.0
# First wait before the next attempt, doubled each time: a crash may be a moment's bad luck, a full disk is not.
FIRST_WAIT_SECONDS = 10.0
PERSON_WAIT_SECONDS = 120.0
# Long enough to be quiet, short enough that a cured machine is used again while its operator watches.
MAX_WAIT_SECONDS = 300.0
# A failure this long after the last one's wait is a new story.
FORGET_SECONDS = 600.0
_NEEDS_A_PERSON = frozenset(
    {
        FailureCause.ARTIFACT_CORRUPT,
        FailureCause.SIGNATURE_REFUSED,
        FailureCause.NO_USABLE_ENGINE,
        FailureCause.MISSING_LIBRARY,
        FailureCause.DISK_FULL,
    }
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an Instance has failed."""

    node: str
    cause: FailureCause
    message: str
    pool: str = ""
    """Of memory that its agent found too little in; empty: it didn't say."""


def fault_of(draft: Draft, sight: Sight) -> Fault | None:
    """The fault of the current attempt; None while there is none."""
    since = draft.absent.get(sight.id)
    failed = [member for member in sight.members if member.phase is MemberPhase.FAILED]
    for member in sorted(failed, key=lambda each: _hearsay(sight, each)):  # whose end it was, if it is known
        node = _blamed_by(sight, member, is_late=since is not None and draft.now >= since + NEVER_REPORTED_SECONDS)
        if node is None:
            return None  # the others are about to speak
        cause = (member.report.cause if member.report else None) or FailureCause.EXITED
        message, pool = (member.report.message, member.report.pool) if member.report else ("", "")
        return Fault(node, cause, message, pool)
    if since is None or draft.now < since + NEVER_REPORTED_SECONDS:
        return None
    absent = [member.node.name for member in sight.members if member.node and _is_absent(member)]
    node = next(iter(absent), sight.instance.spec.members[0].node)
    message = f"agent of node '{node}' did not report it within {int(NEVER_REPORTED_SECONDS)} s of its assignment"
    return Fault(node, FailureCause.NEVER_REPORTED, message)


def _hearsay(sight: Sight, member: MemberSight) -> int:
    """How far what it says is from whose end it was: 0, its own; 1, its keeper was linked to that one; 2, it was told;
    3, it was told of itself."""
    if member.report is None or member.report.cause is not FailureCause.NEIGHBOUR_ENDED:
        return 0
    if _teller_of(sight, member) is None:
        return 1
    return 3 if _named_in(sight, member) is member else 2


def _blamed_by(sight: Sight, member: MemberSight, *, is_late: bool) -> str | None:
    """The node that it says it was. None: it was only told, and the node of whom that is says nothing of it yet.

    What one keeper says of another that neither this one nor its own node has seen is counted against who said it.
    """
    own = member.node.name if member.node else ""
    named = _named_in(sight, member) if _hearsay(sight, member) else None
    if named is None:
        return own
    teller = _teller_of(sight, member)
    if teller is None or _is_silent(named):
        return _node_of(sight, named)
    if (named is member or named.phase is not MemberPhase.FAILED) and not is_late:
        return None
    return _node_of(sight, teller)


def _is_silent(member: MemberSight) -> bool:
    return member.report is None or member.node is None or member.node.state is not NodeState.READY


def _node_of(sight: Sight, member: MemberSight) -> str:
    return next(each.node for each in sight.instance.spec.members if each.name == member.name)


def _named_in(sight: Sight, member: MemberSight) -> MemberSight | None:
    """The member whose end this one's keeper noticed, or was told of: it may be told before its own agent tells it."""
    return _find_words(sight, member, lambda message, words: message.startswith(words))


def _teller_of(sight: Sight, member: MemberSight) -> MemberSight | None:
    """The member by whose word it knows; None: it noticed by itself, or is of a version that doesn't say."""
    return _find_words(sight, member, lambda message, words: message.endswith(f"(heard from {words})"))


def _find_words(sight: Sight, member: MemberSight, is_it: Callable[[str, str], bool]) -> MemberSight | None:
    message = member.report.message if member.report else ""
    pairs = zip(sight.members, sight.instance.spec.members, strict=True)
    return next((seen for seen, m in pairs if is_it(message, f"member '{m.name}' on node '{m.node}'")), None)


def _waits_for_word(sight: Sight) -> bool:
    """All that is known of its end is what a member was told of another, whose own node says nothing of it."""
    failed = [member for member in sight.members if member.phase is MemberPhase.FAILED]
    nearest = min(failed, key=lambda each: _hearsay(sight, each), default=None)
    return nearest is not None and _blamed_by(sight, nearest, is_late=False) is None


def observe_absence(draft: Draft) -> None:
    """Since when each running Instance is missing from the reports of a node that is there, or whose end it was is."""
    absent: dict[str, float] = {}
    for sight in draft.sights.values():
        is_short = any(_is_absent(member) for member in sight.members) or _waits_for_word(sight)
        if sight.instance.spec.goal is InstanceGoal.RUN and is_short:
            absent[sight.id] = draft.absent.get(sight.id, draft.now)
            draft.wake_at(absent[sight.id] + NEVER_REPORTED_SECONDS)
    draft.absent = absent


def _is_absent(member: MemberSight) -> bool:
    node = member.node
    is_there = node is not None and node.state is NodeState.READY and node.agent is not None
    has_reported = is_there and node is not None and node.report is not None and node.report.members is not None
    return has_reported and (member.report is None or member.phase is MemberPhase.STOPPED)


def plan_failures(draft: Draft, key: ObjectKey, placement: Placement, revision: str | None) -> tuple[Failure, ...]:
    """The Placement's failures as they are now; each new one is noted once and lengthens its backoff.

    What is ready takes back what was said of its own lane and revision only, and before what fails now is counted:
    else a replica that is refused beside one that runs would be tried there again and again, without a wait.
    """
    kept = {} if _is_retry_asked(draft, key, placement, revision) else _stored(placement, revision)
    sights = draft.sights_of(key)
    for sight in sights:
        if sight.phase is MemberPhase.READY and sight.is_confirmed:
            draft.failed.pop(sight.id, None)
            for barred in _lanes_of(sight.instance.spec) if sight.instance.spec.revision == revision else ():
                kept.pop(barred, None)
    for sight in sights:
        spec = sight.instance.spec
        fault = fault_of(draft, sight) if spec.goal is InstanceGoal.RUN else None
        if fault is None:
            continue
        barred = barred_of(spec, fault)
        if draft.failed.get(sight.id) != spec.attempt:
            draft.failed[sight.id] = spec.attempt
            _count_failure(draft, Spot(key, spec.revision, barred), fault.cause)
            message = f"attempt {spec.attempt} on node '{fault.node}' failed: {fault.cause}: {fault.message}"
            draft.note(sight.instance.key, EventReason.FAILED, message, warning=True)
        if spec.revision == revision:
            kept[barred] = Failure(
                node=fault.node,
                engine=spec.engine,
                pool=barred.pool,
                revision=spec.revision,
                cause=fault.cause,
                message=fault.message,
            )
    return tuple(kept[barred] for barred in sorted(kept))[:MAX_FAILURES]


def barred_of(spec: InstanceSpec, fault: Fault) -> Barred:
    """What it says of its node: for want of memory, of lanes that fill the pool that is short; else of the engine.

    Where it is the host's, of which an accelerator's lane takes the least: of the whole engine. The processor's lane
    needs more of it, and would be tried next.
    """
    if fault.cause is not FailureCause.INSUFFICIENT_MEMORY:
        return Barred(fault.node, spec.engine)
    own = _pools_on(spec, fault.node)
    pool = fault.pool if fault.pool in own else next(iter(own), "")
    is_whole = pool == HOST_POOL and own[0] != HOST_POOL
    return Barred(fault.node, spec.engine, "" if is_whole else pool)


def _pools_on(spec: InstanceSpec, node: str) -> list[str]:
    """The pools that it fills there; its lane's own is the first."""
    return [costs.pool for member in spec.members if member.node == node for costs in member.costs]


def _lanes_of(spec: InstanceSpec) -> Iterator[Barred]:
    for member in spec.members:
        yield Barred(member.node, spec.engine)
        yield from (Barred(member.node, spec.engine, pool) for pool in _pools_on(spec, member.node))


def _stored(placement: Placement, revision: str | None) -> dict[Barred, Failure]:
    stored = placement.status.failures
    return {barred_by(failure): failure for failure in stored if revision is None or failure.revision == revision}


def _is_retry_asked(draft: Draft, key: ObjectKey, placement: Placement, revision: str | None) -> bool:
    """Whether the retry annotation has a value that was not honoured yet; its backoffs end with it."""
    asked = placement.metadata.annotations.get(RETRY_ANNOTATION, "")
    is_new = bool(asked) and draft.retries.get(key) != asked
    if asked:
        draft.retries[key] = asked
    for spot in [spot for spot in draft.backoffs if spot.placement == key]:
        if is_new or (revision is not None and spot.revision != revision):
            del draft.backoffs[spot]
    return is_new


def _count_failure(draft: Draft, spot: Spot, cause: FailureCause) -> None:
    """While the revision fails anywhere its story goes on: in a large fleet its turn comes back late to each node."""
    last = draft.backoffs.get(spot)
    until = max((each.until for other, each in draft.backoffs.items() if other[:2] == spot[:2]), default=0.0)
    count = last.count + 1 if last and draft.now < until + FORGET_SECONDS else 1
    first = PERSON_WAIT_SECONDS if cause in _NEEDS_A_PERSON else FIRST_WAIT_SECONDS
    wait = min(first * 2.0 ** min(count - 1, 16), MAX_WAIT_SECONDS)
    draft.backoffs[spot] = Backoff(count, draft.now + wait)


def due_at(draft: Draft, spot: Spot) -> float:
    """When this revision may be tried again there."""
    backoff = draft.backoffs.get(spot)
    return backoff.until if backoff else draft.now
