"""The pictures of the page, from the records: what holds, the relays, how the planner grows."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from plots.bars import HELD, MISSED, PLAIN, Bar, draw_bars
from plots.draw import draw, read_series

from whole.catalogue import BENCHES, PEERS, Bench
from whole.page import render_number
from whole.records import Record, observe_value


def write_plots(folder: Path, records: Mapping[str, Record]) -> None:
    """Those for which there are figures; of others none is left."""
    drawn = {"bounds": list(_bounds(records)), "peers": list(_peers(records.get("peers")))}
    titles = {"bounds": "Measured, as a part of the bound (left of the line: held)", "peers": "CPU, µs"}
    for name, bars in drawn.items():
        path = folder / f"{name}.svg"
        if bars:
            path.write_text(draw_bars(titles[name], bars, mark=1.0 if name == "bounds" else None), encoding="utf-8")
        else:
            path.unlink(missing_ok=True)
    if (planner := records.get("planner")) and len(planner.lines) > 1:
        series = read_series(iter([json.dumps(line) for line in planner.lines]))
        if all(len(points) > 1 for points in series.values()):
            (folder / "planner.svg").write_text("\n".join(draw(series)) + "\n", encoding="utf-8")


def _bounds(records: Mapping[str, Record]) -> Iterator[Bar]:
    for bench in BENCHES:
        record = records.get(bench.name)
        for figure in bench.figures:
            value = observe_value(figure, record.lines) if record and figure.bound is not None else None
            if value is None or not figure.bound:  # of nothing there is no part
                continue
            part = figure.bound / value.median if figure.is_least and value.median else value.median / figure.bound
            words = f"{render_number(value.median)} of {figure.bound:g} {figure.unit}"
            yield Bar(f"{bench.name}: {figure.title}", part, words, HELD if value.is_held(figure) else MISSED)


def _peers(record: Record | None) -> Iterator[Bar]:
    bench: Bench = next(bench for bench in BENCHES if bench.name == "peers")
    for figure in bench.figures:
        peer = figure.match.get("peer")
        value = observe_value(figure, record.lines) if record else None
        if value is not None and figure.unit == "µs" and peer in PEERS:
            yield Bar(figure.title, value.median, render_number(value.median), HELD if peer == "covey" else PLAIN)
