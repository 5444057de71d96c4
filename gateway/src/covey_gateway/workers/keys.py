"""What keys have used, at all workers together.

What is limited is admitted under the row's lock, so two workers never let two through where one may. Minutes and the
day are cells of all: one is written at a time, so who is killed in between loses one request's count at most. What is
under way and what a key used in all are columns.
"""

from covey_gateway.routing.quotas import NO_LIMITS, Limits, Quota, Spent, Window
from covey_gateway.workers.memory import Memory, Row

# Seconds that a window has cells for: 61 count.
_RING = 64
_AT, _TOTAL, _NEWEST, _FIRST = 0, 1, 2, 3
_WINDOW = _FIRST + _RING
_LAST_MINUTE = 60
# A cell of the ring: the second above, its count below.
_SHIFT, _MASK = 32, 2**32 - 1

_DAY, _SPENT, _REPORTED, _FLEET, _REQUESTS, _TOKENS = 0, 1, 2, 3, 4, 4 + _WINDOW
_COMMON = 4 + 2 * _WINDOW
_COUNTS = 5
"""Of requests, estimated ones, and tokens of prompts, cached and generated: `Counts`."""
UNDER_WAY = "under way of "
"""Rows whose names begin so are of requests under way: what is in a dead worker's column is over."""


class SharedWindow(Window):
    """`add` is called under the lock."""

    __slots__ = ("_cells",)

    def __init__(self, cells: memoryview) -> None:
        super().__init__()
        self._cells = cells

    def add(self, count: int, now: float) -> None:
        cells = self._cells
        # Never before what another one wrote: clocks of event loops stand still for a turn.
        second = max(int(now), cells[_AT])
        if cells[_AT] != second:
            # Anew each second, whatever was counted by whom: a worker killed in here spoils one second's sum.
            cells[_TOTAL] = self._add_up(second)
            cells[_AT] = second
        at = _FIRST + second % _RING
        counted = cells[at] & _MASK if cells[at] >> _SHIFT == second else 0
        cells[at] = second << _SHIFT | min(_MASK, counted + count)
        cells[_TOTAL] += count
        cells[_NEWEST] = second

    def look(self, now: float) -> int:
        cells = self._cells
        self.total = cells[_TOTAL] if int(now) <= cells[_AT] else self._add_up(int(now))
        return self.total

    def frees_after(self, count: int, now: float) -> int:
        second = max(int(now), self._cells[_AT])
        if not count:
            return max(1, self._cells[_NEWEST] + _LAST_MINUTE + 1 - int(now))
        left, until = self.look(now), second
        for cell in sorted(self._cells[_FIRST:]):
            if cell >> _SHIFT < second - _LAST_MINUTE:
                continue
            if left <= count:
                break
            left -= cell & _MASK
            until = (cell >> _SHIFT) + _LAST_MINUTE + 1
        return max(1, until - int(now))

    def _add_up(self, second: int) -> int:
        oldest = (second - _LAST_MINUTE) << _SHIFT
        return sum(cell & _MASK for cell in self._cells[_FIRST:] if cell >= oldest)


class SharedQuota(Quota):
    """`column`: this worker's; None: of who serves nobody."""

    def __init__(self, row: Row, under_way: Row, column: int | None, day: int) -> None:
        super().__init__(
            requests=SharedWindow(row.common[_REQUESTS : _REQUESTS + _WINDOW]),
            tokens=SharedWindow(row.common[_TOKENS : _TOKENS + _WINDOW]),
            day=day,
        )
        self._row = row
        self._under_way = under_way
        self._column = column

    def admit(self, limits: Limits, now: float, wall: float) -> Spent | None:
        if limits == NO_LIMITS:
            self.in_flight += 1
            self._publish()
            return None
        with self._row.lock:
            self._load()
            spent = super().admit(limits, now, wall)
            self._publish()
            self._store()
        return spent

    def end(self) -> None:
        super().end()
        self._publish()

    def carry(self, in_flight: int) -> None:
        super().carry(in_flight)
        self._publish()

    def charge(self, limits: Limits, tokens: int, now: float, wall: float) -> None:
        with self._row.lock:
            self._load()
            super().charge(limits, tokens, now, wall)
            self._store()

    def hear_fleet(self, day: int, fleet_today: int, reported_today: int, wall: float) -> None:
        with self._row.lock:
            self._load()
            super().hear_fleet(day, fleet_today, reported_today, wall)
            self._store()

    def look_spent(self) -> int:
        self._load()
        return super().look_spent()

    def _publish(self) -> None:
        if self._column is not None:
            self._under_way.columns[self._column][0] = self.in_flight

    def _load(self) -> None:
        self.elsewhere = self._under_way.sum(0) - self.in_flight
        self.day, self.spent_today, self.reported_today, self.fleet_today = self._row.common[:_REQUESTS]

    def _store(self) -> None:
        """The day last: sums of another one must not be taken for its own."""
        cells = self._row.common
        cells[_SPENT], cells[_REPORTED], cells[_FLEET] = self.spent_today, self.reported_today, self.fleet_today
        cells[_DAY] = self.day


class SharedCounts:
    """A key's usage."""

    __slots__ = ("_column", "_row")

    def __init__(self, row: Row, column: int | None) -> None:
        self._row = row
        self._column = column

    def add(self, estimated: bool, prompt: int, cached: int, completion: int) -> None:
        if self._column is not None:
            cells = self._row.columns[self._column]
            cells[0] += 1
            cells[1] += estimated
            cells[2] += prompt
            cells[3] += cached
            cells[4] += completion

    def look(self) -> tuple[int, int, int, int, int]:
        requests, estimated, prompt, cached, completion = (self._row.sum(cell) for cell in range(_COUNTS))
        return requests, estimated, prompt, cached, completion


class SharedKeys:
    """Of all keys, by their hash."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def has(self, hash_: str) -> bool:
        """Whether anybody used it."""
        return self._memory.find(f"key {hash_}")

    def quota(self, hash_: str, day: int) -> SharedQuota:
        return SharedQuota(
            self._memory.row(f"key {hash_}", _COMMON, 0),
            self._memory.row(f"{UNDER_WAY}{hash_}", 0, 1),
            self._memory.column,
            day,
        )

    def counts(self, hash_: str) -> SharedCounts:
        return SharedCounts(self._memory.row(f"usage {hash_}", 0, _COUNTS), self._memory.column)
