"""Who is sent to an endpoint next, of those that wait for it here. Decisions only; the time is an argument.

An engine takes what it is sent in the order in which it came, so what matters waits here and not there: of the highest
priority the owners (keys) take turns, and each owner's requests go in their order. Whoever is next and doesn't fit
keeps all behind it waiting: a large request is never overtaken by small ones for ever.

Where slots share one cache (`pool_tokens`), what a request may fill of it at most is reserved until it is over: a
cache that is too small ends every stream on it. What a client left is given back a little later, for the engine must
notice first.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Protocol

from covey_gateway.limits import LEFT_POOL_SECONDS


class Member(Protocol):
    """A request that was given an endpoint."""

    def take_turn(self) -> None:
        """It is sent now."""
        ...

    def lose_place(self) -> None:
        """It was taken out of its line, for one of somebody who has fewer here."""
        ...

    def change_line(self) -> None:
        """It was taken out of its line: the endpoint takes nothing any more."""
        ...


@dataclass(frozen=True, slots=True)
class Ticket:
    owner: str = ""
    """Its key; without one its client's address."""
    priority: int = 0
    tokens: int = 0
    """What it may fill of a shared cache."""


NO_TICKET = Ticket()

_Waiting = OrderedDict[str, deque[tuple[Member, Ticket]]]


@dataclass(slots=True)
class Line:
    """Of one endpoint."""

    sent: int = 0
    tokens: int = 0
    """Reserved by what was sent."""
    left: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """When what was sent was left by its client, and how much it had reserved."""
    waiting: dict[int, _Waiting] = field(default_factory=dict[int, _Waiting])
    """By priority, then by owner in the order of their turns."""
    sent_elsewhere: int = 0
    """By other workers of this gateway, as far as that is known."""
    tokens_elsewhere: int = 0

    @property
    def is_idle(self) -> bool:
        return not (self.sent or self.waiting or self.left)

    def fits(self, ticket: Ticket, slots: int, pool_tokens: int, now: float) -> bool:
        if self.sent + self.sent_elsewhere >= slots:
            return False
        if not pool_tokens:
            return True
        self.free_left(now)
        reserved = self.tokens + self.tokens_elsewhere + sum(tokens for _, tokens in self.left)
        return reserved + ticket.tokens <= pool_tokens

    def free_left(self, now: float) -> None:
        """Engines know by now of what was left long enough ago."""
        self.left = [(at, tokens) for at, tokens in self.left if now - at < LEFT_POOL_SECONDS]

    def try_send(self, ticket: Ticket, slots: int, pool_tokens: int, now: float) -> bool:
        """Whether it is sent now: nobody is before it."""
        is_sent = self.fits(ticket, slots, pool_tokens, now)
        if is_sent:
            self.send(ticket)
        return is_sent

    def tell(self) -> None:
        """Others may be waiting for what has changed. Here there are none."""

    def send(self, ticket: Ticket) -> None:
        self.sent += 1
        self.tokens += ticket.tokens

    def end(self, ticket: Ticket, now: float, *, is_left: bool) -> None:
        """What was sent is over. `is_left`: its client went before the answer's end."""
        self.sent -= 1
        self.tokens -= ticket.tokens
        if is_left and ticket.tokens:
            self.left.append((now, ticket.tokens))

    def join(self, member: Member, ticket: Ticket) -> None:
        owners = self.waiting.setdefault(ticket.priority, OrderedDict())
        owners.setdefault(ticket.owner, deque()).append((member, ticket))

    def leave(self, member: Member, ticket: Ticket) -> None:
        """It waited, and does no more."""
        self.waiting[ticket.priority][ticket.owner].remove((member, ticket))
        self._forget_empty(ticket)

    def take_next(self, slots: int, pool_tokens: int, now: float) -> Member | None:
        """Whose turn it is, counted as sent; None: nobody's yet."""
        if not self.waiting:
            return None
        owners = self.waiting[max(self.waiting)]
        owner, queue = next(iter(owners.items()))
        member, ticket = queue[0]
        if not self.try_send(ticket, slots, pool_tokens, now):
            return None
        queue.popleft()
        owners.move_to_end(owner)
        self._forget_empty(ticket)
        return member

    def take_all(self) -> list[Member]:
        """Nobody waits here any more."""
        members = [member for owners in self.waiting.values() for queue in owners.values() for member, _ in queue]
        self.waiting.clear()
        return members

    def count(self, owner: str) -> int:
        """How many of this owner wait."""
        return sum(len(owners.get(owner, ())) for owners in self.waiting.values())

    def _forget_empty(self, ticket: Ticket) -> None:
        owners = self.waiting[ticket.priority]
        if not owners[ticket.owner]:
            del owners[ticket.owner]
        if not owners:
            del self.waiting[ticket.priority]


def choose_displaced(lines: list[Line], ticket: Ticket) -> tuple[Line, Member, Ticket] | None:
    """Who makes room for a newcomer where as many wait as may; None: nobody, the newcomer is refused.

    1. Of the lowest priority, if that isn't above the newcomer's. 2. Of the owner with most of these in one line, if
    the newcomer's has fewer even with one more, or counts for more. 3. The one that came last.
    """
    found = [(priority, line) for line in lines for priority in line.waiting if priority <= ticket.priority]
    if not found:
        return None
    lowest = min(priority for priority, _ in found)
    queues = [
        (len(queue), owner, line, queue)
        for priority, line in found
        if priority == lowest
        for owner, queue in line.waiting[priority].items()
    ]
    most, owner, line, queue = max(queues, key=lambda each: each[0])
    own = max((each.count(ticket.owner) for each in lines), default=0)
    if lowest == ticket.priority and (owner == ticket.owner or own + 1 >= most):
        return None
    return line, *queue[-1]
