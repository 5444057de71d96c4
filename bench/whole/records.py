"""What was measured, by benchmark, as it lies in `docs/reference/benchmarks.json`: every printed line with its day.

A run replaces what it measured. Where it failed, what it didn't come to stays with the day on which it was measured.
"""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from whole.catalogue import BENCHES, Bench, Figure, Match

Line = dict[str, Any]


@dataclass(slots=True)
class Record:
    """The last run of a benchmark. `outcome` is empty where it ended well; each of `lines` has `measured`, its day."""

    day: str
    machine: str
    seconds: float
    load_before: float
    load_after: float
    outcome: str = ""
    lines: list[Line] = field(default_factory=list[Line])


@dataclass(frozen=True, slots=True)
class Value:
    """Of a figure: the median, least and most of the lines that match, and when they were measured."""

    median: float
    least: float
    most: float
    day: str

    def is_held(self, figure: Figure) -> bool:
        assert figure.bound is not None
        return self.median >= figure.bound if figure.is_least else self.median <= figure.bound


def read_records(path: Path) -> dict[str, Record]:
    if not path.exists():
        return {}
    return {name: Record(**found) for name, found in json.loads(path.read_text(encoding="utf-8")).items()}


def write_records(path: Path, records: Mapping[str, Record]) -> None:
    order = {bench.name: index for index, bench in enumerate(BENCHES)}
    known = {name: asdict(records[name]) for name in sorted(records, key=lambda name: order.get(name, len(order)))}
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def merge(bench: Bench, before: Record | None, now: Record) -> Record:
    """`now`, with the lines of `before` for figures that `now` hasn't got because it failed."""
    if before is not None and now.outcome:
        for figure in bench.figures:
            if observe_value(figure, now.lines) is None:
                now.lines += [line for line in before.lines if _is_of(figure, line) and line not in now.lines]
    return now


def observe_value(figure: Figure, lines: Iterable[Line]) -> Value | None:
    """None where a line that it needs was not printed."""
    every = list(lines)
    found = [line for line in every if _matches(figure.match, line) and figure.key in line]
    if not found:
        return None
    values = [float(line[figure.key]) * figure.scale for line in found]
    more, whole = _median(figure.plus, figure.key, every), _median(figure.of, figure.key, every)
    if (figure.plus and more is None) or (figure.of and not whole):
        return None
    values = [(value + (more or 0.0)) / (whole or 1.0) for value in values]
    return Value(statistics.median(values), min(values), max(values), max(str(line["measured"]) for line in found))


def _median(match: Match | None, key: str, lines: list[Line]) -> float | None:
    found = [float(line[key]) for line in lines if match is not None and _matches(match, line) and key in line]
    return statistics.median(found) if found else None


def _is_of(figure: Figure, line: Line) -> bool:
    return any(match is not None and _matches(match, line) for match in (figure.match, figure.plus, figure.of))


def _matches(match: Match, line: Line) -> bool:
    return all(line.get(key) == value for key, value in match.items())
