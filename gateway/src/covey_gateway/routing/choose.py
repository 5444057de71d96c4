"""Which endpoint takes a request, of those that answer: its conversation's, else the least outstanding for its size.

An endpoint that refuses or resets before a byte is *set aside*: for 1 s, doubling to 30. When the time is over it is
half open: one request may try it, and the others wait for what becomes of it. A separate probe was the alternative; it
would prove that a port listens, not that requests are answered. What fails at one request after another is set aside
alike (`judge_failures`), but never more than half of a model's endpoints: what fails everywhere is the requests' fault.

An endpoint that owes bytes and gives nobody any (`is_silent`) hangs, or reads a long prompt: either way others are
sooner.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey_gateway.limits import MAX_OUTSTANDING_PER_SLOT
from covey_gateway.routing.affinity import Homes, choose_home
from covey_gateway.routing.load import IDLE, Load, measure_outstanding
from covey_gateway.routing.table import Target


@dataclass(frozen=True, slots=True)
class NoneFree:
    """No endpoint may take the request now."""

    is_full: bool
    """True: they answer but have enough waiting; false: they are set aside."""
    retry_after_seconds: int


def choose_target(
    targets: Sequence[Target],
    loads: Mapping[str, Load],
    now: float,
    turn: int,
    excluded: str | None = None,
    conversation: int | None = None,
    homes: Homes | None = None,
    largest: int = 0,
) -> Target | NoneFree:
    """1. Leave out the one that just failed for this request, and those set aside.
    2. Leave out those with `MAX_OUTSTANDING_PER_SLOT` requests per slot.
    3. Those that nobody doubts if there are any: on a doubted one a request may wait until its agent ends it, while one
       that is unconfirmed and gone is set aside by its first request.
    4. Of these, confirmed ones if there are any.
    5. Those that aren't silent, if there are any.
    6. Of a conversation: where that belongs (`choose_home`).
    7. The lowest (in flight + 1) / (slots x weight).
    8. Ties in turns.

    `largest`: slots x weight of the largest of them; 0: not known.
    """
    if conversation is None and largest and (idle := _find_idle(targets, loads, turn, largest, excluded)) is not None:
        return idle
    if conversation is None and (plain := _choose_plainly(targets, loads, turn, excluded)) is not None:
        return plain
    answering = [
        target
        for target in targets
        if target.id != excluded and not ((aside := loads.get(target.id, IDLE).aside) and aside.blocks(now))
    ]
    if not answering:
        return NoneFree(is_full=False, retry_after_seconds=_seconds_until_open(targets, loads, now))
    free = [
        target
        for target in answering
        if (load := loads.get(target.id, IDLE)).in_flight + load.elsewhere < target.slots * MAX_OUTSTANDING_PER_SLOT
    ]
    if not free:
        return NoneFree(is_full=True, retry_after_seconds=1)
    trusted = [target for target in free if not target.doubted] or free
    preferred = [target for target in trusted if target.confirmed] or trusted
    preferred = [target for target in preferred if not loads.get(target.id, IDLE).is_silent] or preferred
    if len(preferred) == 1:
        return preferred[0]
    if conversation is not None and homes is not None:
        return choose_home(preferred, loads, homes, conversation)
    scores = [measure_outstanding(target, loads) for target in preferred]
    lowest = min(scores)
    tied = [target for target, score in zip(preferred, scores, strict=True) if score == lowest]
    return tied[turn % len(tied)]


def _find_idle(
    targets: Sequence[Target], loads: Mapping[str, Load], turn: int, largest: int, excluded: str | None
) -> Target | None:
    """The first from this turn's on with nothing there, where none is larger: those behind it needn't be looked at.
    None: one before it isn't as good as another but for its load."""
    count = len(targets)
    for number in range(turn, turn + count):
        target = targets[number % count]
        load = loads.get(target.id, IDLE)
        if (
            load.aside is not None
            or load.is_silent
            or load.left_at
            or target.doubted
            or not target.confirmed
            or target.slots * target.weight != largest
            or target.id == excluded
        ):
            return None
        if not load.occupied:
            return target
    return None


def _choose_plainly(
    targets: Sequence[Target], loads: Mapping[str, Load], turn: int, excluded: str | None
) -> Target | None:
    """The same in one walk, where every endpoint is as good as another but for its load, as nearly always; None: one
    isn't."""
    lowest, tied = math.inf, list[Target]()
    for target in targets:
        load = loads.get(target.id, IDLE)
        if (
            load.aside is not None
            or load.is_silent
            or load.in_flight + load.elsewhere >= target.slots * MAX_OUTSTANDING_PER_SLOT
            or target.doubted
            or not target.confirmed
            or target.id == excluded
        ):
            return None
        score = (load.in_flight + load.elsewhere + len(load.left_at) + 1) / (target.slots * target.weight)
        if score < lowest:
            lowest, tied = score, [target]
        elif score == lowest:
            tied.append(target)
    return tied[turn % len(tied)] if tied else None


def _seconds_until_open(targets: Sequence[Target], loads: Mapping[str, Load], now: float) -> int:
    waits = [aside.until - now for target in targets if (aside := loads.get(target.id, IDLE).aside) is not None]
    return max(1, math.ceil(min(waits, default=1.0)))
