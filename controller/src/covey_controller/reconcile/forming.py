"""What a replica over several nodes waits for, while it isn't there: which of its members lack what.

A driver waits until its donors listen, and ranks wait for one another; both stand at `Pending` meanwhile. So the phase
of the whole says nothing: who is waited for is to be named.
"""

from covey_api.instance import MemberPhase, MemberRole

from covey_controller.reconcile.fleet import worst_of
from covey_controller.reconcile.sights import MemberSight, Sight


def waits_for(sight: Sight) -> tuple[MemberPhase, str]:
    """The worst phase of those that others wait for, and who they are, in words; no words: nobody waits for another."""
    members = sight.instance.spec.members
    unready = [each for each in sight.members if each.phase is not MemberPhase.READY]
    if len(members) < 2 or not unready:
        return sight.phase, ""
    roles = {each.name: each.role for each in members}
    nodes = {each.name: each.node for each in members}
    lacking = [each for each in unready if not _only_waits(each, roles[each.name], unready)]
    if not lacking:
        return MemberPhase.STARTING, "every member has what it needs, and they are about to start"
    named = (
        f"{roles[each.name].lower()} '{each.name}' on node '{nodes[each.name]}', {_explain(each)}" for each in lacking
    )
    return worst_of([each.phase for each in lacking]), f"waits for {'; '.join(named)}"


def _only_waits(member: MemberSight, role: MemberRole, unready: list[MemberSight]) -> bool:
    """It has what it needs but for the others."""
    if member.phase is not MemberPhase.PENDING or member.report is None:
        return False
    if role is MemberRole.RANK:
        return member.report.front_port > 0  # the port that is kept for it, once it lacks nothing more
    return role is MemberRole.DRIVER and len(unready) > 1


def _explain(member: MemberSight) -> str:
    if member.report is None:
        return "which hasn't reported yet"
    cause = f" after {member.report.cause}: {member.report.message}" if member.report.cause is not None else ""
    return f"which is {member.phase}{cause}"
