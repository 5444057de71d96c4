"""The measured part of `docs/reference/benchmarks.md`, rendered from the records alone."""

from collections.abc import Iterator, Mapping

from whole.catalogue import BENCHES, UNMEASURED, Bench, Figure
from whole.records import Record, Value, observe_value

BEGIN = "<!-- measured: begin. Written by `make bench` from benchmarks.json; do not edit. -->"
END = "<!-- measured: end -->"


def replace_measured(page: str, records: Mapping[str, Record]) -> str:
    """The page with its measured part anew; the rest is people's. ValueError where the page has no such part."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page must have the lines '{BEGIN}' and '{END}'")
    return before + "\n".join([BEGIN, "", *render_measured(records), END]) + after


def render_measured(records: Mapping[str, Record]) -> Iterator[str]:
    """Only what was measured has a number; what wasn't is named."""
    held, missed, unknown = 0, 0, 0
    for figure, value in _bounded(records):
        is_held = value is not None and value.is_held(figure)
        held, missed, unknown = held + is_held, missed + (value is not None and not is_held), unknown + (value is None)
    yield f"Of {held + missed + unknown} bounds {held} are held, {missed} are not, {unknown} were not measured yet."
    yield "*Measured* is the median of what a run printed, with least and most; *load* the one-minute average before"
    yield "and after it: above the number of cores others had the machine too.\n"
    usual = max(records.values(), key=lambda record: record.day).machine if records else ""
    if usual:
        yield f"Machine, where no other is named: {usual}.\n"
    if any(value is not None for _, value in _bounded(records)):
        yield "![Each bounded figure as a part of its bound](../../bench/plots/bounds.svg)\n"
    for bench in BENCHES:
        yield from _render_bench(bench, records.get(bench.name), usual)
    yield "### Asked, and measured by no benchmark\n"
    for words in UNMEASURED:
        yield f"- {words}"
    yield ""


def _bounded(records: Mapping[str, Record]) -> Iterator[tuple[Figure, Value | None]]:
    for bench in BENCHES:
        record = records.get(bench.name)
        for figure in bench.figures:
            if figure.bound is not None:
                yield figure, observe_value(figure, record.lines) if record else None


def _render_bench(bench: Bench, record: Record | None, usual: str) -> Iterator[str]:
    yield f"### {bench.title}\n"
    if record is None:
        bounds = "; ".join(f"{figure.title} {_bound(figure)}" for figure in bench.figures if figure.bound is not None)
        asked = f" Bounds: {bounds}." if bounds else ""
        yield f"`{bench.command}`: not run yet by `make bench`.{asked}\n"
        return
    load = f"load {record.load_before:.1f} → {record.load_after:.1f}"
    other = "" if record.machine == usual else f"; on another machine: {record.machine}"
    yield f"`{bench.command}`, {record.day}, {record.seconds:.0f} s, {load}{other}.\n"
    if record.outcome:
        yield f"**This run failed**: {record.outcome}\n"
    yield "| figure | bound | measured | | day |\n|---|---|---|---|---|"
    for figure in bench.figures:
        yield _render_row(figure, observe_value(figure, record.lines), record)
    yield ""
    yield from _render_plot(bench)


def _render_plot(bench: Bench) -> Iterator[str]:
    plots = {"planner": "How choosing grows with the fleet", "peers": "CPU beside other relays"}
    if bench.name in plots:
        yield f"![{plots[bench.name]}](../../bench/plots/{bench.name}.svg)\n"


def _render_row(figure: Figure, value: Value | None, record: Record) -> str:
    bound = _bound(figure)
    if value is None:
        return f"| {figure.title} | {bound} | not measured | | |"
    measured = f"{render_number(value.median)} {figure.unit}".strip()
    if value.least != value.most:
        measured += f" ({render_number(value.least)} to {render_number(value.most)})"
    verdict = "" if figure.bound is None else "held" if value.is_held(figure) else "**not held**"
    return f"| {figure.title} | {bound} | {measured} | {verdict} | {value.day if value.day != record.day else ''} |"


def _bound(figure: Figure) -> str:
    if figure.bound is None:
        return ""
    return f"{'≥' if figure.is_least else '≤'} {figure.bound:g} {figure.unit}".strip()


def render_number(value: float) -> str:
    """Three digits that count."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
