"""The one function that turns an outcome into conditions, as kstatus reads them.

| outcome | Ready | Reconciling | Stalled |
|---|---|---|---|
| `Done` | True | - | - |
| `Waiting` | False (Unknown when its node is silent) | True | - |
| `Stalled` | False | - | True |
"""

from collections.abc import Sequence
from typing import assert_never

from covey_api.meta import Condition, ConditionStatus, Status
from covey_api.reasons import NodeReason, ReadyReason

from covey_controller.reconcile.outcomes import Done, Outcome, Stalled, Waiting

# Condition messages are cut here (their schema says so).
MAX_MESSAGE = 4096
_UNKNOWN = frozenset({ReadyReason.NODE_UNKNOWN.value, NodeReason.NODE_UNKNOWN.value})


def conditions_of(
    outcome: Outcome, stored: Status, generation: int, timestamp: str, extra: Sequence[Condition] = ()
) -> tuple[Condition, ...]:
    """`Ready`, what kstatus wants beside it, and `extra`. A condition that keeps its status keeps its time."""
    reason, message = outcome.reason.value, outcome.message[:MAX_MESSAGE]
    match outcome:
        case Done():
            states = {"Ready": ConditionStatus.TRUE}
        case Waiting():
            ready = ConditionStatus.UNKNOWN if reason in _UNKNOWN else ConditionStatus.FALSE
            states = {"Ready": ready, "Reconciling": ConditionStatus.TRUE}
        case Stalled():
            states = {"Ready": ConditionStatus.FALSE, "Stalled": ConditionStatus.TRUE}
        case _:
            assert_never(outcome)
    made = [Condition(type=name, status=status, reason=reason, message=message) for name, status in states.items()]
    before = {condition.type: condition for condition in stored.conditions}
    return tuple(_dated(each, before.get(each.type), generation, timestamp) for each in (*made, *extra))


def _dated(condition: Condition, before: Condition | None, generation: int, timestamp: str) -> Condition:
    is_same = before is not None and before.status is condition.status
    since = before.last_transition_time if before is not None and is_same else timestamp
    return condition.model_copy(update={"observed_generation": generation, "last_transition_time": since})


def is_changed(outcome: Outcome, stored: Status) -> bool:
    """Whether `Ready` says something else than it did: worth an event."""
    before = next((condition for condition in stored.conditions if condition.type == "Ready"), None)
    return before is None or (before.reason, before.message) != (outcome.reason.value, outcome.message[:MAX_MESSAGE])


def condition(kind: str, *, is_true: bool, reason: str, message: str = "") -> Condition:
    """One more condition; `conditions_of` dates it."""
    status = ConditionStatus.TRUE if is_true else ConditionStatus.FALSE
    return Condition(type=kind, status=status, reason=reason, message=message[:MAX_MESSAGE])
