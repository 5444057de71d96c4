"""The one function that turns an outcome into conditions, as kstatus reads them.

| outcome | Ready | Reconciling | Stalled |
|---|---|---|---|
| `Done` | True | - | - |
| `Waiting` | False (Unknown when its node is silent) | True | - |
| `Stalled` | False | - | True |

Nearly always nothing has changed: then the stored conditions are the answer, and no other ones are made.
"""

from collections.abc import Sequence
from typing import NamedTuple, assert_never

from covey_api.meta import Condition, ConditionStatus, Status
from covey_api.reasons import NodeReason, ReadyReason

from covey_controller.reconcile.outcomes import Done, Outcome, Stalled, Waiting

# Condition messages are cut here (their schema says so).
MAX_MESSAGE = 4096
_UNKNOWN = frozenset({ReadyReason.NODE_UNKNOWN.value, NodeReason.NODE_UNKNOWN.value})


class Claim(NamedTuple):
    """What a condition says, without its times."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""


def conditions_of(
    outcome: Outcome, stored: Status, generation: int, timestamp: str, extra: Sequence[Claim] = ()
) -> tuple[Condition, ...]:
    """`Ready`, what kstatus wants beside it, and `extra`. A condition that keeps its status keeps its time."""
    claims = (*_claims_of(outcome), *extra)
    if len(claims) == len(stored.conditions) and all(
        _is_said(claim, before, generation) for claim, before in zip(claims, stored.conditions, strict=True)
    ):
        return stored.conditions
    stored_by_type = {condition.type: condition for condition in stored.conditions}
    return tuple(_dated(claim, stored_by_type.get(claim.type), generation, timestamp) for claim in claims)


def _claims_of(outcome: Outcome) -> tuple[Claim, ...]:
    reason, message = outcome.reason, outcome.message[:MAX_MESSAGE]
    match outcome:
        case Done():
            return (Claim("Ready", ConditionStatus.TRUE, reason, message),)
        case Waiting():
            ready = ConditionStatus.UNKNOWN if reason in _UNKNOWN else ConditionStatus.FALSE
            return (
                Claim("Ready", ready, reason, message),
                Claim("Reconciling", ConditionStatus.TRUE, reason, message),
            )
        case Stalled():
            return (
                Claim("Ready", ConditionStatus.FALSE, reason, message),
                Claim("Stalled", ConditionStatus.TRUE, reason, message),
            )
        case _:
            assert_never(outcome)


def _is_said(claim: Claim, before: Condition, generation: int) -> bool:
    """Whether the stored condition says just that."""
    return (
        before.type == claim.type
        and before.status is claim.status
        and before.reason == claim.reason
        and before.message == claim.message
        and before.observed_generation == generation
    )


def _dated(claim: Claim, before: Condition | None, generation: int, timestamp: str) -> Condition:
    is_same = before is not None and before.status is claim.status
    return Condition(
        type=claim.type,
        status=claim.status,
        reason=str(claim.reason),
        message=claim.message,
        observed_generation=generation,
        last_transition_time=before.last_transition_time if before is not None and is_same else timestamp,
    )


def is_changed(outcome: Outcome, stored: Status) -> bool:
    """Whether `Ready` says something else than it did: worth an event."""
    before = next((condition for condition in stored.conditions if condition.type == "Ready"), None)
    return before is None or before.reason != outcome.reason or before.message != outcome.message[:MAX_MESSAGE]


def make_claim(kind: str, *, is_true: bool, reason: str, message: str = "") -> Claim:
    """One more condition; `conditions_of` dates it."""
    status = ConditionStatus.TRUE if is_true else ConditionStatus.FALSE
    return Claim(kind, status, reason, message[:MAX_MESSAGE])
