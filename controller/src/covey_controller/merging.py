"""Reports of one agent boot, put together: each leaves out what hasn't changed since the last one. Pure.

What is said again in the same words stays the very same object, at the cost of comparing it once, when it comes: plans
look at what is identical no closer, and a full report after a broken connection would be news to each of them.
"""

from typing import TypeVar

from covey_api.messages import MemberReport, Report

T = TypeVar("T")
_WHOLE = ("facts", "lanes", "unusable", "unkept", "blobs", "applied")


def merge_report(before: Report | None, report: Report) -> Report:
    """One agent boot's report with what it left out because it hadn't changed."""
    if before is None:
        return report
    own = report.__dict__
    merged = {name: _newer(getattr(before, name), own[name]) for name in _WHOLE}
    merged["members"] = _merge_members(before.members, report.members)
    # By identity: what is equal is told apart by `_newer`, and must be the object from before.
    news = {name: value for name, value in merged.items() if value is not own[name]}
    return report.model_copy(update=news) if news else report


def _newer(before: T | None, said: T | None) -> T | None:
    return before if said is None or said == before else said


def _merge_members(
    before: tuple[MemberReport, ...] | None, said: tuple[MemberReport, ...] | None
) -> tuple[MemberReport, ...] | None:
    if said is None:
        return before
    whole = {(member.instance_id, member.member): member for member in before or ()}
    merged = tuple(_merge_member(whole.get((member.instance_id, member.member)), member) for member in said)
    return _newer(before, merged)


def _merge_member(before: MemberReport | None, member: MemberReport) -> MemberReport:
    if before is None:
        return member
    if member.instance is None:
        member = member.model_copy(update={"instance": before.instance, "seal": before.seal})
    return before if member == before else member
