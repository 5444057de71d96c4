"""How a snapshot of the controller changes the wishes. The rules that keep a fleet alive when a controller errs:

- A snapshot below the newest accepted `(term, serial)` changes nothing.
- One without `complete: true` may add members and changes none: a controller that hasn't seen everything yet stops,
  drains and replaces nothing.
- A member that a complete snapshot doesn't name becomes a stray: it runs on and is reported whole; the controller,
  which may have lost its store, decides. Only what has ended already is forgotten (in `step`).
- Within an attempt a goal only moves forward; an attempt only grows.
- An engine whose key is another one now (the fleet's secret was lost and made anew) is of no use to anybody: it ends,
  and is started with the new one.
"""

from dataclasses import replace

from covey_api.messages import Assignments, MemberAssignment, MemberGoal

from covey_agent.supervisor.state import MemberState, State, Work

_PROGRESS = {MemberGoal.SERVE: 0, MemberGoal.DRAIN: 1, MemberGoal.STOP: 2}


def is_outdated(state: State, assignments: Assignments) -> bool:
    return state.order is not None and state.order.is_after(assignments.order)


def accept_snapshot(state: State, assignments: Assignments) -> State:
    """The state with the snapshot's wishes; the same one when it is outdated."""
    if is_outdated(state, assignments):
        return state
    state = replace(state, order=assignments.order, spec=assignments.spec)
    for assignment in assignments.members:
        existing = state.members.get(assignment.instance.spec.instance_id)
        if existing is None:
            state = state.with_member(MemberState(assignment, assignment.goal))
        elif assignments.complete:
            state = state.with_member(accept_wish(existing, assignment))
    if assignments.complete:
        named = {assignment.instance.spec.instance_id for assignment in assignments.members}
        for key, member in state.members.items():
            if key not in named and member.assigned:
                state = state.with_member(replace(member, assigned=False))
    return state


def accept_wish(member: MemberState, assignment: MemberAssignment) -> MemberState:
    """The member under a newer wish for it."""
    attempt = assignment.instance.spec.attempt
    if attempt > member.spec.attempt:
        # Work under way and a keeper of the old attempt go on in the new state: they are stopped from there.
        return MemberState(
            assignment,
            assignment.goal,
            work=member.work,
            weights=member.weights,
            companions=member.companions,
            program=member.program,
            keeper=member.keeper,
            engine=member.engine,
            ready=member.ready,
            started_at=member.started_at,
        )
    if attempt < member.spec.attempt:
        return replace(member, assigned=True)
    goal = max(member.goal, assignment.goal, key=_PROGRESS.__getitem__)
    has_engine = member.keeper is not None or Work.LAUNCH in member.work
    is_rekeyed = member.is_rekeyed or (has_engine and assignment.key != member.assignment.key)
    return replace(member, assignment=assignment, goal=goal, assigned=True, is_rekeyed=is_rekeyed)
