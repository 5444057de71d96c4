"""Figures of all workers: each counts in its own column, and who is asked adds up."""

from bisect import bisect_left

from covey_gateway.figures import (
    ENDED_WAITING,
    MAX_MODELS,
    OK,
    OTHER_MODEL,
    TOKEN_BUCKETS,
    WAIT_BUCKETS,
    Figures,
    Histogram,
    ModelFigures,
)
from covey_gateway.records import Record
from covey_gateway.workers.memory import Memory, Row

_MODEL, _REQUESTS, _LIMITED = "model ", "requests ", "limited "
_PROMPT, _CACHED, _COMPLETION, _EJECTIONS = range(4)
_HELD = 4
_FIRST = _HELD + len(WAIT_BUCKETS) + 2
_DURATION = _FIRST + len(WAIT_BUCKETS) + 2
_INTERVAL = _DURATION + len(WAIT_BUCKETS) + 2
_WIDTH = _INTERVAL + len(TOKEN_BUCKETS) + 2
"""Cells of a histogram: its total, each bucket, and what is above all."""


class SharedFigures(Figures):
    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory = memory
        self._column = memory.column
        self._names: dict[tuple[str, str], str] = {}
        """The label of each model: rows only become more, so that it stays what it is."""
        self._labels: dict[str, Row] = {}
        self._counts: dict[str, Row] = {}
        self._requests: dict[tuple[int, str, str], Row] = {}

    def label(self, namespace: str, name: str) -> str:
        label = self._names.get((namespace, name))
        if label is None:
            label = self._names[namespace, name] = self._choose_label(namespace, name)
        return label

    def _choose_label(self, namespace: str, name: str) -> str:
        label = super().label(namespace, name)
        if not label or label in self._labels or self._memory.find(f"{_MODEL}{label}"):
            return label
        return label if sum(1 for _ in self._memory.names(_MODEL)) < MAX_MODELS else OTHER_MODEL

    def count_ejection(self, namespace: str, name: str) -> None:
        row = self._of_label(self.label(namespace, name))
        if self._column is not None:
            row.columns[self._column][_EJECTIONS] += 1

    def add(self, record: Record) -> None:
        """As `Figures` does, in cells."""
        label = self.label(record.namespace, record.model)
        row = self._of_label(label)
        kind = (record.status, record.format, label)
        counted = self._requests.get(kind)
        if counted is None:
            counted = self._requests[kind] = self._row_of(f"{_REQUESTS}{record.status} {record.format} {label}")
        if self._column is not None:
            counted.columns[self._column][0] += 1
        if record.limit:
            self._count(_LIMITED, record.limit)
        if not record.model or self._column is None:
            return
        cells, floats = row.columns[self._column], row.floats[self._column]
        _observe(cells, floats, _DURATION, WAIT_BUCKETS, record.ended_at - record.began_at)
        if record.sent_at is None:
            if record.status in ENDED_WAITING:
                _observe(cells, floats, _HELD, WAIT_BUCKETS, record.ended_at - record.began_at)
            return
        _observe(cells, floats, _HELD, WAIT_BUCKETS, record.sent_at - record.began_at)
        cost = record.cost
        cells[_PROMPT] += cost.prompt
        cells[_CACHED] += cost.cached
        cells[_COMPLETION] += cost.completion
        first, last = record.first_byte_at, record.last_byte_at
        if record.status == OK and first is not None and last is not None:
            _observe(cells, floats, _FIRST, WAIT_BUCKETS, first - record.began_at)
            if cost.completion > 1:
                _observe(cells, floats, _INTERVAL, TOKEN_BUCKETS, (last - first) / (cost.completion - 1))

    def whole(self) -> Figures:
        found = Figures()
        found.observe = self.observe
        for name in self._memory.names(_MODEL):
            label = name.removeprefix(_MODEL)
            row = self._of_label(label)
            found.models[label] = ModelFigures(
                prompt_tokens=row.sum(_PROMPT),
                cached_tokens=row.sum(_CACHED),
                completion_tokens=row.sum(_COMPLETION),
                ejections=row.sum(_EJECTIONS),
                held=_read(row, _HELD, WAIT_BUCKETS),
                first_token=_read(row, _FIRST, WAIT_BUCKETS),
                token_interval=_read(row, _INTERVAL, TOKEN_BUCKETS),
                duration=_read(row, _DURATION, WAIT_BUCKETS),
            )
        for name in self._memory.names(_REQUESTS):
            status, form, label = name.removeprefix(_REQUESTS).split(" ", 2)
            if label in found.models:
                found.models[label].requests[int(status), form] = self._row_of(name).sum(0)
        for name in self._memory.names(_LIMITED):
            found.limited[name.removeprefix(_LIMITED)] = self._row_of(name).sum(0)
        return found

    def _of_label(self, label: str) -> Row:
        found = self._labels.get(label)
        if found is None:
            found = self._labels[label] = self._memory.row(f"{_MODEL}{label}", 0, _WIDTH)
        return found

    def _count(self, kind: str, name: str) -> None:
        row = self._row_of(f"{kind}{name}")
        if self._column is not None:
            row.columns[self._column][0] += 1

    def _row_of(self, name: str) -> Row:
        found = self._counts.get(name)
        if found is None:
            found = self._counts[name] = self._memory.row(name, 0, 1)
        return found


def _observe(
    cells: "memoryview[int]", floats: "memoryview[float]", at: int, bounds: tuple[float, ...], value: float
) -> None:
    floats[at] += value
    cells[at + 1 + bisect_left(bounds, value)] += 1


def _read(row: Row, at: int, bounds: tuple[float, ...]) -> Histogram:
    found = Histogram(bounds)
    found.total = row.sum_floats(at)
    found.counts = [row.sum(at + 1 + bucket) for bucket in range(len(bounds) + 1)]
    return found
