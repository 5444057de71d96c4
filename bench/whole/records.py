"""What was measured, by benchmark, as it lies in `docs/reference/benchmarks.json`: every printed line with its day.

A run replaces what it measured. Where it failed, what it didn't come to stays with the day on which it was measured, if
that was on the same machine. A figure is of one run: old lines are never counted with new ones.
"""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from whole.catalogue import BENCHES, Bench, Figure, Match

Line = dict[str, Any]
RUNS_AGO = "runsAgo"


@dataclass(slots=True)
class Record:
    """The last run of a benchmark. `outcome` is empty where it ended well; each of `lines` has `measured`, its day, and
    where it is of an earlier run `runsAgo`."""

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
    if before is None or not now.outcome or before.machine != now.machine:
        return now
    missing = [figure for figure in bench.figures if observe_value(figure, now.lines) is None]
    kept = {id(line) for figure in missing for part in _find_parts(figure, before.lines) for line in part}
    now.lines += [line | {RUNS_AGO: line.get(RUNS_AGO, 0) + 1} for line in before.lines if id(line) in kept]
    return now


def observe_value(figure: Figure, lines: Iterable[Line]) -> Value | None:
    """Of the newest run that printed all that it needs; None where none did."""
    found, *others = _find_parts(figure, lines) or [[]]
    if not found:
        return None
    medians = iter([_median(figure, other) for other in others])
    more, whole = next(medians) if figure.plus else 0.0, next(medians) if figure.of else 1.0
    values = [(float(line[figure.key]) * figure.scale + more) / whole for line in found]
    return Value(statistics.median(values), min(values), max(values), min(str(line["measured"]) for line in found))


def _find_parts(figure: Figure, lines: Iterable[Line]) -> list[list[Line]]:
    """The lines of one run for its `match`, `plus` and `of`, as far as it has these; empty: no run has all of them."""
    runs: dict[int, list[Line]] = {}
    for line in lines:
        runs.setdefault(line.get(RUNS_AGO, 0), []).append(line)
    matches = [match for match in (figure.match, figure.plus, figure.of) if match]
    for _, run in sorted(runs.items()):
        parts = [[line for line in run if _matches(match, line) and figure.key in line] for match in matches]
        if all(parts) and (not figure.of or _median(figure, parts[-1])):
            return parts
    return []


def _median(figure: Figure, lines: list[Line]) -> float:
    return statistics.median(float(line[figure.key]) for line in lines)


def _matches(match: Match, line: Line) -> bool:
    return all(line.get(key) == value for key, value in match.items())
