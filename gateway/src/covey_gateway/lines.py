"""The lines before endpoints: a request that was given one waits here until it is its turn to be sent.

Each gateway has its own. Of an endpoint's slots each may use all, for an engine only lets wait what has none; of a
cache that its slots share each has its part, for what is too much there ends everybody's stream (ADR 57).
"""

from collections.abc import Callable, Iterable

from covey_gateway.routing.line import Line, Member, Ticket, choose_displaced
from covey_gateway.routing.table import Target


class Lines:
    """`clock` is monotonic. `make_line`: of an endpoint by its id; one that other workers have a part of, if there are
    any."""

    def __init__(self, clock: Callable[[], float], make_line: Callable[[str], Line] = lambda _: Line()) -> None:
        self.sharers = 1
        """Gateways that send to the same endpoints, this one too."""
        self._clock = clock
        self._make_line = make_line
        self._lines: dict[str, tuple[Target, Line]] = {}

    @property
    def has_any(self) -> bool:
        """Whether anybody waits or was sent, or what somebody left is perhaps not free yet."""
        return bool(self._lines)

    def pool_of(self, target: Target) -> int:
        """This gateway's part of the cache that the endpoint's slots share; 0: each has its own."""
        return target.kv_tokens and max(1, target.kv_tokens // self.sharers)

    def enter(self, target: Target, member: Member, ticket: Ticket) -> None:
        """It takes its turn now, or when that comes."""
        if self.enter_at_once(target, ticket):
            member.take_turn()
        else:
            _, line = self._lines[target.id]
            line.join(member, ticket)
            self._send_next(target, line)

    def enter_at_once(self, target: Target, ticket: Ticket) -> bool:
        """Whether it is its turn now; else it isn't in the line, and must enter or be forgotten."""
        found = self._lines.get(target.id)
        line = self._make_line(target.id) if found is None else found[1]
        self._lines[target.id] = (target, line)
        if line.waiting:
            return False
        return line.try_send(ticket, target.most_sent, self.pool_of(target), self._clock())

    def leave(self, target: Target, member: Member, ticket: Ticket) -> None:
        """It waits no more."""
        _, line = self._lines[target.id]
        line.leave(member, ticket)
        self._send_next(target, line)

    def end(self, target: Target, ticket: Ticket, *, is_left: bool) -> None:
        """What was sent is over. `is_left`: the engine doesn't know yet."""
        _, line = self._lines[target.id]
        line.end(ticket, self._clock(), is_left=is_left)
        self._send_next(target, line)

    def look_again(self) -> None:
        """Time has passed: what clients left may be free by now."""
        now = self._clock()
        for target, line in list(self._lines.values()):
            line.free_left(now)
            self._send_next(target, line)

    def take_waiting(self, target_id: str) -> list[Member]:
        """Who waited for this endpoint; nobody does any more."""
        found = self._lines.get(target_id)
        if found is None:
            return []
        members = found[1].take_all()
        found[1].tell()
        return members

    def displace(self, targets: Iterable[Target], ticket: Ticket) -> Member | None:
        """Who makes room for a newcomer, out of its line by now."""
        lines = [found[1] for target in targets if (found := self._lines.get(target.id)) is not None]
        chosen = choose_displaced(lines, ticket)
        if chosen is None:
            return None
        line, member, its_ticket = chosen
        line.leave(member, its_ticket)
        line.tell()
        return member

    def count_waiting(self, target_id: str) -> int:
        """How many wait for this endpoint."""
        found = self._lines.get(target_id)
        if found is None:
            return 0
        return sum(len(queue) for owners in found[1].waiting.values() for queue in owners.values())

    def _send_next(self, target: Target, line: Line) -> None:
        while (member := line.take_next(target.most_sent, self.pool_of(target), self._clock())) is not None:
            member.take_turn()
        line.tell()
        if line.is_idle:
            self._lines.pop(target.id, None)
