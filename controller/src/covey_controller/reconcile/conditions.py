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


class MadeCondition(NamedTuple):
    """All that a condition is made from."""

    claim: Claim
    generation: int
    last_transition_time: str


def conditions_of(
    outcome: Outcome,
    stored: Status,
    generation: int,
    timestamp: str,
    extra: Sequence[Claim] = (),
    made: dict[MadeCondition, Condition] | None = None,
) -> tuple[Condition, ...]:
    """`Ready`, what kstatus wants beside it, and `extra`. A condition that keeps its status keeps its time.

    `made`: those that were made before; new ones are added.
    """
    claims = (*_claims_of(outcome), *extra) if extra else _claims_of(outcome)
    if _are_said(claims, stored.conditions, generation):
        return stored.conditions
    stored_by_type = {condition.type: condition for condition in stored.conditions}
    made = {} if made is None else made
    return tuple(_dated(claim, stored_by_type.get(claim.type), generation, timestamp, made) for claim in claims)


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


def _are_said(claims: Sequence[Claim], stored: Sequence[Condition], generation: int) -> bool:
    """Whether the stored conditions say just that."""
    if len(claims) != len(stored):
        return False
    for claim, before in zip(claims, stored, strict=True):
        if (
            before.status is not claim.status
            or before.observed_generation != generation
            or before.type != claim.type
            or before.reason != claim.reason
            or before.message != claim.message
        ):
            return False
    return True


def _dated(
    claim: Claim, before: Condition | None, generation: int, timestamp: str, made: dict[MadeCondition, Condition]
) -> Condition:
    is_same = before is not None and before.status is claim.status
    since = before.last_transition_time if before is not None and is_same else timestamp
    key = MadeCondition(claim, generation, since)
    found = made.get(key)
    if found is None:
        found = made[key] = Condition(
            type=claim.type,
            status=claim.status,
            reason=str(claim.reason),
            message=claim.message,
            observed_generation=generation,
            last_transition_time=since,
        )
    return found


def is_changed(outcome: Outcome, stored: Status) -> bool:
    """Whether `Ready` says something else than it did: worth an event."""
    before = next((condition for condition in stored.conditions if condition.type == "Ready"), None)
    return before is None or before.reason != outcome.reason or before.message != outcome.message[:MAX_MESSAGE]


def make_claim(kind: str, *, is_true: bool, reason: str, message: str = "") -> Claim:
    """One more condition; `conditions_of` dates it."""
    status = ConditionStatus.TRUE if is_true else ConditionStatus.FALSE
    return Claim(kind, status, reason, message[:MAX_MESSAGE])
