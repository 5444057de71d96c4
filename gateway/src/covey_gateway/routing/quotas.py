"""What a key may still ask for: requests and tokens of the last minute, tokens of the day, requests at a time.

Decisions only; the time is an argument. A minute is the last sixty whole seconds and the present one, so no minute,
wherever it begins, has more than the limit. Tokens are known when a request ends: a request is refused when what is
known has reached the limit, and what is under way may go beyond it. The day is UTC's. What the fleet spent today is the
controller's to say; what this gateway spent since is added.

Rejected: a bucket that refills (twice the limit passes in its first minute), and reserving `max_tokens` ahead (most
answers are far shorter, so keys would be refused what they are entitled to).
"""

from collections import deque
from dataclasses import dataclass, field, replace
from math import ceil

from covey_gateway.wire.allowances import Allowance

DAY_SECONDS = 86_400
_MINUTE = 60


@dataclass(frozen=True, slots=True)
class Limits:
    """None: without a limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrency: int | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Spent:
    """A limit that was reached."""

    limit: str
    """The AccessKey's field."""
    allowed: int
    frees_after_seconds: int


class Window:
    """How many in each of the last seconds."""

    __slots__ = ("_seconds", "total")

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()
        """Pairs of a second and its count, in order: at most 61."""
        self.total = 0

    def add(self, count: int, now: float) -> None:
        second = int(now)
        if self._seconds and self._seconds[-1][0] >= second:
            self._seconds[-1][1] += count
        else:
            self._seconds.append([second, count])
        self.total += count

    def look(self, now: float) -> int:
        """The total of the last minute."""
        first = int(now) - _MINUTE
        while self._seconds and self._seconds[0][0] < first:
            self.total -= self._seconds.popleft()[1]
        return self.total

    def frees_after(self, count: int, now: float) -> int:
        """Whole seconds until no more than `count` are left."""
        left, until = self.look(now), 0
        for second, of_second in self._seconds:
            if left <= count:
                break
            left -= of_second
            until = second + _MINUTE + 1
        return max(1, ceil(until - now))


@dataclass(slots=True)
class Quota:
    """Of one key at this gateway. Limits are arguments: they may change while requests are under way."""

    in_flight: int = 0
    elsewhere: int = 0
    """Requests in flight of the same key at other workers."""
    requests: Window = field(default_factory=Window)
    tokens: Window = field(default_factory=Window)
    day: int = 0
    """Days since the epoch, of what follows."""
    spent_today: int = 0
    """By this gateway since it began, or since the day did."""
    reported_today: int = 0
    """How much of that the controller has counted."""
    fleet_today: int = 0
    """What the whole fleet had spent then, by the controller's word."""

    def admit(self, limits: Limits, now: float, wall: float) -> Spent | None:
        """Count a request that begins; or why it doesn't. `now` is monotonic, `wall` seconds since the epoch.

        1. Tokens of the day. 2. Tokens, then requests of the minute. 3. Requests at a time.
        """
        if (allowed := limits.tokens_per_day) is not None and self._today(wall) >= allowed:
            return Spent("tokensPerDay", allowed, DAY_SECONDS - int(wall) % DAY_SECONDS)
        if (allowed := limits.tokens_per_minute) is not None and self.tokens.look(now) >= allowed:
            return Spent("tokensPerMinute", allowed, self.tokens.frees_after(allowed - 1, now))
        if (allowed := limits.requests_per_minute) is not None and self.requests.look(now) >= allowed:
            return Spent("requestsPerMinute", allowed, self.requests.frees_after(allowed - 1, now))
        if (allowed := limits.concurrency) is not None and self.in_flight + self.elsewhere >= allowed:
            return Spent("concurrency", allowed, 1)
        if limits.requests_per_minute is not None:
            self.requests.add(1, now)
        self.in_flight += 1
        return None

    def end(self) -> None:
        """A request that was admitted is over."""
        self.in_flight -= 1

    def carry(self, in_flight: int) -> None:
        """So many are under way now: those of another quota of the same name, or none any more."""
        self.in_flight = in_flight

    def look_spent(self) -> int:
        """What was spent today, here."""
        return self.spent_today

    def charge(self, limits: Limits, tokens: int, now: float, wall: float) -> None:
        if limits.tokens_per_minute is not None:
            self.tokens.add(tokens, now)
        self._today(wall)
        self.spent_today += tokens

    def hear_fleet(self, day: int, fleet_today: int, reported_today: int, wall: float) -> None:
        """The controller's word: what the fleet spent on that day, `reported_today` of it here."""
        self._today(wall)
        if day == self.day:
            self.fleet_today, self.reported_today = fleet_today, reported_today

    def allowances(self, limits: Limits, now: float) -> tuple[Allowance | None, Allowance | None]:
        """Of requests and of tokens of the minute."""
        return (
            _allowance(limits.requests_per_minute, self.requests, now),
            _allowance(limits.tokens_per_minute, self.tokens, now),
        )

    def _today(self, wall: float) -> int:
        day = int(wall) // DAY_SECONDS
        if day != self.day:
            self.day, self.spent_today, self.reported_today, self.fleet_today = day, 0, 0, 0
        return self.fleet_today + max(0, self.spent_today - self.reported_today)


def _allowance(allowed: int | None, window: Window, now: float) -> Allowance | None:
    if allowed is None:
        return None
    total = window.look(now)
    return Allowance(allowed, max(0, allowed - total), window.frees_after(0, now) if total else 0)


def share_limits(limits: Limits, gateways: tuple[str, ...], own: str) -> Limits:
    """This gateway's part of a key's limits, so that all parts together are the whole.

    Each has at least one, or a client of it could never be served: of a limit below the number of gateways the parts
    come to that number. The day is the fleet's, by the controller's word, and so isn't divided. A gateway that isn't
    named counts as one more.
    """
    names = sorted({*gateways, own})
    index, count = names.index(own), len(names)
    if count == 1:
        return limits

    def part(whole: int | None) -> int | None:
        return None if whole is None else max(1, whole // count + (index < whole % count))

    return replace(
        limits,
        requests_per_minute=part(limits.requests_per_minute),
        tokens_per_minute=part(limits.tokens_per_minute),
        concurrency=part(limits.concurrency),
    )
