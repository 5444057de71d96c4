"""What this gateway knows of one endpoint by itself: how much is there, and whether it answers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from covey_gateway.limits import ASIDE_FIRST_SECONDS, ASIDE_LONGEST_SECONDS, FAILURES_ASIDE
from covey_gateway.routing.table import Target


@dataclass(frozen=True, slots=True)
class Aside:
    """Why an endpoint gets no requests."""

    until: float
    seconds: float
    is_probed: bool = False
    """A request is trying it."""
    is_busy: bool = False
    """It answered, last: that it takes nothing for now."""

    def blocks(self, now: float) -> bool:
        return self.is_probed or now < self.until


@dataclass(frozen=True, slots=True)
class Owed:
    """How long requests waited for a byte that their client, or a deadline, ended before any came."""

    at: float
    seconds: float


def set_aside(previous: Aside | None, now: float, asked_seconds: float = 0.0, *, is_busy: bool = False) -> Aside:
    """After a refusal. Requests that fail together count as one. `asked_seconds`: for how long the engine asked to be
    spared, heeded up to `ASIDE_LONGEST_SECONDS`. `is_busy`: it answered that it takes nothing for now."""
    if previous is not None and now < previous.until:
        return replace(previous, is_busy=is_busy, is_probed=False)
    seconds = ASIDE_FIRST_SECONDS if previous is None else min(previous.seconds * 2, ASIDE_LONGEST_SECONDS)
    spared = max(seconds, min(asked_seconds, ASIDE_LONGEST_SECONDS))
    return Aside(now + spared, seconds, is_busy=is_busy)


@dataclass(slots=True)
class Load:
    in_flight: int = 0
    elsewhere: int = 0
    """Requests in flight there from other workers of this gateway, when it was last looked for."""
    aside: Aside | None = None
    trial: int = 0
    """Which request of this process tries it, as `Target.trial` says; 0: none."""
    heard_at: float | None = None
    """When a request that is over had its last byte from it."""
    is_silent: bool = False
    """Whether it owes bytes and has given none to anybody for a while."""
    owed: Owed | None = None
    """What the next one's waiting is added to, unless a byte came since."""
    left_at: list[float] = field(default_factory=list[float])
    """When clients left while their prompts were read: engines read on for a while, each in a slot."""
    failures: int = 0
    """Answers in a row that were its own failures."""

    @property
    def occupied(self) -> int:
        """Slots' worth of requests: those in flight, and those that were left and are read on."""
        return self.in_flight + self.elsewhere + len(self.left_at)

    def is_tried_by(self, target: Target) -> bool:
        """Whether this is what the request was given that tries it."""
        return bool(target.trial) and target.trial == self.trial

    def is_tried_beside(self, target: Target) -> bool:
        """Whether another request tries it, whose outcome counts: this one was there before, and says nothing new."""
        return self.aside is not None and self.aside.is_probed and not self.is_tried_by(target)

    @property
    def is_failing(self) -> bool:
        """Whether it takes connections, and fails at what is asked."""
        return self.failures >= FAILURES_ASIDE

    @property
    def is_unreachable(self) -> bool:
        """Whether it is set aside since nothing answered there."""
        return self.aside is not None and not self.aside.is_busy and not self.is_failing


IDLE = Load()


def measure_outstanding(target: Target, loads: Mapping[str, Load]) -> float:
    """With one more request, for the endpoint's size."""
    return (loads.get(target.id, IDLE).occupied + 1) / (target.slots * target.weight)


def judge_failure(load: Load, siblings: Collection[Load | None], now: float, *, is_tried: bool = False) -> bool:
    """It failed at a request. True: so often in a row that it is set aside now. `is_tried`: another request tries it.

    `siblings`: of all endpoints of its model, itself too; None: nothing is known of one. Failures set none aside that
    would be more than half of them: what fails everywhere is the requests' fault, and better one that fails than none.
    """
    load.failures += 1
    others = sum(1 for each in siblings if each is not None and each is not load and each.aside is not None)
    if is_tried or not load.is_failing or others + 1 > len(siblings) // 2:
        return False
    was_open = load.aside is None or now >= load.aside.until
    load.aside = set_aside(load.aside, now)
    return was_open
