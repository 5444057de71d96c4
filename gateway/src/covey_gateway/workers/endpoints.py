"""What is at each endpoint, and who waits for it, at all workers together.

A line has room for one more where all workers' sent requests leave a slot and, of a shared cache, their reservations
leave the tokens. Who is next is so for all of them: of each worker's first in line the highest priority, then who came
first. Whoever can't be sent because another worker's first is before it, or makes room, wakes that worker; a look each
second is there for what is lost. A worker that hasn't looked at its deadlines for `STUCK_SECONDS` holds nobody back.
"""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from covey_gateway.limits import MAX_SENT
from covey_gateway.routing.line import Line, Member, Ticket
from covey_gateway.routing.load import Aside, Load
from covey_gateway.workers.memory import Memory, Row

ENDPOINT = "endpoint "
"""Rows whose names begin so are of what is at an endpoint now: what is in a dead worker's column is over."""
PROCESS = "process"
STUCK_SECONDS = 3.0

_IN_FLIGHT, _SENT, TOKENS, _WAITING, _PRIORITY, _SINCE, _TRIES = range(7)
ENDPOINT_WIDTH = 7
# Of all workers: until when it is set aside and for how long that is (milliseconds; 0: it isn't), whether it answered
# that it takes nothing for now, and how often in a row it failed.
_UNTIL, _ASIDE, _BUSY, _FAILURES = range(4)
ENDPOINT_COMMON = 4
# Of a process: its clients, what it holds, lines of its log that were dropped, when it looked last (milliseconds).
_CONNECTIONS, _HELD, _DROPPED, _BEAT = range(4)
PROCESS_WIDTH = 4
LEVELS_OF_PROCESS = (_CONNECTIONS, _HELD, _BEAT)
"""All but the count of lines, which goes on."""


class SharedEndpoints:
    """`wakes`: a pipe of each worker, to tell it that it may be its turn. `clock` is monotonic, the machine's."""

    def __init__(self, memory: Memory, wakes: tuple[int, ...], clock: Callable[[], float]) -> None:
        self._memory = memory
        self.column = memory.column
        self._wakes = wakes
        self.clock = clock
        self._rows: dict[str, Row] = {}
        self._others: dict[str, tuple[memoryview, ...]] = {}
        self._lines: dict[str, SharedLine] = {}
        self._process = memory.row(PROCESS, 0, PROCESS_WIDTH)
        self._dropped_before = 0 if self.column is None else self._process.columns[self.column][_DROPPED]

    def row(self, id_: str) -> Row:
        found = self._rows.get(id_)
        if found is None:
            found = self._rows[id_] = self._memory.row(f"{ENDPOINT}{id_}", ENDPOINT_COMMON, ENDPOINT_WIDTH)
        return found

    def forget(self, id_: str) -> None:
        """It left the table. One of that name that comes later is another one."""
        if (row := self._rows.pop(id_, None)) is not None:
            with row.lock:
                for cell in range(ENDPOINT_COMMON):
                    row.common[cell] = 0
        self._others.pop(id_, None)
        self._lines.pop(id_, None)

    def line(self, id_: str) -> "SharedLine":
        """The same again, where the one before has become idle."""
        found = self._lines.get(id_)
        if found is None:
            found = self._lines[id_] = SharedLine(self, self.row(id_))
        return found

    def tell_in_flight(self, id_: str, count: int) -> None:
        if self.column is not None:
            self.row(id_).columns[self.column][_IN_FLIGHT] = count

    def count_elsewhere(self, id_: str) -> int:
        """Requests in flight at other workers."""
        others = self._others.get(id_)
        if others is None:
            columns = self.row(id_).columns
            others = tuple(cells for column, cells in enumerate(columns) if column != self.column)
            self._others[id_] = others
        found = 0
        for cells in others:
            found += cells[_IN_FLIGHT]
        return found

    def look_aside(self, id_: str, load: Load) -> None:
        """Take over what all workers know of its failures."""
        row = self.row(id_)
        load.failures = row.common[_FAILURES]
        if until := row.common[_UNTIL]:
            is_tried = any(cells[_TRIES] for cells in row.columns)
            is_busy = bool(row.common[_BUSY])
            load.aside = Aside(until / 1000, row.common[_ASIDE] / 1000, is_probed=is_tried, is_busy=is_busy)
        else:
            load.aside = None

    @contextmanager
    def changing(self, id_: str, load: Load) -> Generator[None]:
        """What is made of it within is so for all workers. Nothing else is locked meanwhile."""
        row = self.row(id_)
        with row.lock:
            self.look_aside(id_, load)
            yield
            aside = load.aside
            row.common[_FAILURES] = load.failures
            row.common[_UNTIL] = 0 if aside is None else max(1, round(aside.until * 1000))
            row.common[_ASIDE] = 0 if aside is None else round(aside.seconds * 1000)
            row.common[_BUSY] = aside is not None and aside.is_busy
            if self.column is not None:
                row.columns[self.column][_TRIES] = load.trial

    def count_all(self, id_: str) -> tuple[int, int]:
        """Requests in flight at all workers, and how many of them wait for their turn."""
        row = self.row(id_)
        return row.sum(_IN_FLIGHT), row.sum(_WAITING)

    def tell_process(self, connections: int, held: int, dropped: int) -> None:
        """It looks at its deadlines now."""
        if self.column is not None:
            cells = self._process.columns[self.column]
            cells[_CONNECTIONS], cells[_HELD] = connections, held
            cells[_DROPPED] = self._dropped_before + dropped
            cells[_BEAT] = int(self.clock() * 1000)

    def count_processes(self) -> tuple[int, int, int]:
        """Clients, what is held, and lines that were dropped, of all workers."""
        return self._process.sum(_CONNECTIONS), self._process.sum(_HELD), self._process.sum(_DROPPED)

    def is_stuck(self, column: int) -> bool:
        return self.clock() * 1000 - self._process.columns[column][_BEAT] > STUCK_SECONDS * 1000

    def wake(self, column: int) -> None:
        """A full pipe says the same already."""
        with suppress(OSError):
            os.write(self._wakes[column], b"\0")


class SharedLine(Line):
    """This worker's part of an endpoint's line."""

    def __init__(self, shared: SharedEndpoints, row: Row) -> None:
        super().__init__()
        self._shared = shared
        self._row = row
        self._column = shared.column or 0
        self._cells = row.columns[self._column]
        self._others = tuple((at, cells) for at, cells in enumerate(row.columns) if at != self._column)
        self._since: dict[int, int] = {}
        """Milliseconds, by the member's identity: it is in line as long."""
        self._slots = MAX_SENT
        self._is_bounded = False
        """Whether anybody ever waits there."""

    def try_send(self, ticket: Ticket, slots: int, pool_tokens: int, now: float) -> bool:
        if slots >= MAX_SENT and not pool_tokens:
            return super().try_send(ticket, slots, pool_tokens, now)
        self._slots = slots
        self._is_bounded = True
        rank = (-ticket.priority, self._since_of_first(), self._column)
        with self._row.lock:
            self._tell_sent()  # what was left may be free by now
            first = self._find_first()
            if first is not None and first < rank:
                return False
            self.sent_elsewhere = self.tokens_elsewhere = 0
            for _, cells in self._others:
                self.sent_elsewhere += cells[_SENT]
                self.tokens_elsewhere += cells[TOKENS]
            is_sent = super().try_send(ticket, slots, pool_tokens, now)
            self._tell_sent()
        return is_sent

    def join(self, member: Member, ticket: Ticket) -> None:
        super().join(member, ticket)
        self._since[id(member)] = max(1, int(self._shared.clock() * 1000))
        self._tell_first()

    def leave(self, member: Member, ticket: Ticket) -> None:
        super().leave(member, ticket)
        self._since.pop(id(member), None)

    def take_next(self, slots: int, pool_tokens: int, now: float) -> Member | None:
        member = super().take_next(slots, pool_tokens, now)
        if member is not None:
            self._since.pop(id(member), None)
            self._tell_first()
        return member

    def take_all(self) -> list[Member]:
        self._since.clear()
        return super().take_all()

    def tell(self) -> None:
        """What changed here; and whose turn it is elsewhere, if there is room."""
        if not self._is_bounded:
            return
        with self._row.lock:
            self._tell_sent()
            self._tell_first()
            first = self._find_first()
            if first is None or (self.waiting and self._rank_of_first() < first):
                return
            has_room = self._row.sum(_SENT) < self._slots
        if has_room:
            self._shared.wake(first[2])

    def _tell_sent(self) -> None:
        if self.left:
            self.free_left(self._shared.clock())
        self._cells[_SENT] = self.sent
        self._cells[TOKENS] = self.tokens + (sum(tokens for _, tokens in self.left) if self.left else 0)

    def _tell_first(self) -> None:
        cells = self._cells
        cells[_WAITING] = len(self._since)
        if not self.waiting:
            cells[_SINCE] = 0
            return
        cells[_PRIORITY] = max(self.waiting)
        cells[_SINCE] = self._since_of_first()

    def _since_of_first(self) -> int:
        """Of who is next here; without anybody it is who comes now."""
        if not self.waiting:
            return int(self._shared.clock() * 1000)
        member, _ = next(iter(self.waiting[max(self.waiting)].values()))[0]
        return self._since.get(id(member), 0)

    def _rank_of_first(self) -> tuple[int, int, int]:
        return (-max(self.waiting), self._since_of_first(), self._column)

    def _find_first(self) -> tuple[int, int, int] | None:
        """The rank of who is next of the others' first in line."""
        found: tuple[int, int, int] | None = None
        for column, cells in self._others:
            if not cells[_SINCE] or self._shared.is_stuck(column):
                continue
            rank = (-cells[_PRIORITY], cells[_SINCE], column)
            if found is None or rank < found:
                found = rank
        return found
