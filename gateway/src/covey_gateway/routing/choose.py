"""Which endpoint takes a request: the least outstanding for its size, of those that answer.

An endpoint that refuses or resets before a byte is *set aside*: for 1 s, doubling to 30. When the time is over it is
half open: one request may try it, and the others wait for what becomes of it. A separate probe was the alternative; it
would prove that a port listens, not that requests are answered.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey_gateway.limits import ASIDE_FIRST_SECONDS, ASIDE_LONGEST_SECONDS, MAX_OUTSTANDING_PER_SLOT
from covey_gateway.routing.table import Target


@dataclass(frozen=True, slots=True)
class Aside:
    """Why an endpoint gets no requests."""

    until: float
    seconds: float
    is_probed: bool = False
    """A request is trying it."""

    def blocks(self, now: float) -> bool:
        return self.is_probed or now < self.until


def set_aside(previous: Aside | None, now: float) -> Aside:
    """After a refusal. Requests that fail together count as one."""
    if previous is not None and now < previous.until:
        return previous
    seconds = ASIDE_FIRST_SECONDS if previous is None else min(previous.seconds * 2, ASIDE_LONGEST_SECONDS)
    return Aside(now + seconds, seconds)


@dataclass(slots=True)
class Load:
    """What this gateway knows of one endpoint by itself."""

    in_flight: int = 0
    aside: Aside | None = None
    heard_at: float | None = None
    """When a request that is over had its last byte from it."""


@dataclass(frozen=True, slots=True)
class NoneFree:
    """No endpoint may take the request now."""

    is_full: bool
    """True: they answer but have enough waiting; false: they are set aside."""
    retry_after_seconds: int


_IDLE = Load()


def choose_target(
    targets: Sequence[Target], loads: Mapping[str, Load], now: float, turn: int, excluded: str | None = None
) -> Target | NoneFree:
    """1. Leave out the one that just failed for this request, and those set aside.
    2. Leave out those with `MAX_OUTSTANDING_PER_SLOT` requests per slot.
    3. Those that nobody doubts if there are any: on a doubted one a request may wait until its agent ends it, while one
       that is unconfirmed and gone refuses.
    4. Of these, confirmed ones if there are any.
    5. The lowest (in flight + 1) / (slots x weight).
    6. Ties in turns.
    """
    answering = [
        target
        for target in targets
        if target.id != excluded and not ((aside := loads.get(target.id, _IDLE).aside) and aside.blocks(now))
    ]
    if not answering:
        return NoneFree(is_full=False, retry_after_seconds=_seconds_until_open(targets, loads, now))
    free = [
        target
        for target in answering
        if loads.get(target.id, _IDLE).in_flight < target.slots * MAX_OUTSTANDING_PER_SLOT
    ]
    if not free:
        return NoneFree(is_full=True, retry_after_seconds=1)
    trusted = [target for target in free if not target.doubted] or free
    preferred = [target for target in trusted if target.confirmed] or trusted
    if len(preferred) == 1:
        return preferred[0]
    scores = [(loads.get(target.id, _IDLE).in_flight + 1) / (target.slots * target.weight) for target in preferred]
    lowest = min(scores)
    tied = [target for target, score in zip(preferred, scores, strict=True) if score == lowest]
    return tied[turn % len(tied)]


def _seconds_until_open(targets: Sequence[Target], loads: Mapping[str, Load], now: float) -> int:
    waits = [aside.until - now for target in targets if (aside := loads.get(target.id, _IDLE).aside) is not None]
    return max(1, math.ceil(min(waits, default=1.0)))
