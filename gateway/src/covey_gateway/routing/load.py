"""What this gateway knows of one endpoint by itself: how much is there, and whether it answers."""

from collections.abc import Mapping
from dataclasses import dataclass

from covey_gateway.limits import ASIDE_FIRST_SECONDS, ASIDE_LONGEST_SECONDS
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
    in_flight: int = 0
    aside: Aside | None = None
    heard_at: float | None = None
    """When a request that is over had its last byte from it."""
    is_silent: bool = False
    """Whether it owes bytes and has given none to anybody for a while."""
    failures: int = 0
    """Answers in a row that were its own failures."""


IDLE = Load()


def measure_outstanding(target: Target, loads: Mapping[str, Load]) -> float:
    """With one more request, for the endpoint's size."""
    return (loads.get(target.id, IDLE).in_flight + 1) / (target.slots * target.weight)
