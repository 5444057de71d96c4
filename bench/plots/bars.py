"""Bars as one SVG: figures as parts of their bounds, and relays beside each other."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WIDTH, LABEL, ROW, TOP = 900, 480, 20, 50
HELD, MISSED, PLAIN = "#2ca02c", "#d62728", "#1f77b4"


@dataclass(frozen=True, slots=True)
class Bar:
    """`words` stand at its end."""

    label: str
    value: float
    words: str
    color: str = PLAIN


def draw_bars(title: str, bars: Sequence[Bar], mark: float | None = None) -> str:
    """On a logarithmic axis; `mark`: a vertical line at this value."""
    return "\n".join(_draw(title, bars, mark)) + "\n"


def _draw(title: str, bars: Sequence[Bar], mark: float | None) -> Iterator[str]:
    values = [bar.value for bar in bars if bar.value > 0] + ([mark] if mark else [])
    low, high = min(values) / 2, max(values) * 1.2
    room, height = WIDTH - LABEL - 110, TOP + ROW * len(bars) + 20

    def place(value: float) -> float:
        return round(LABEL + room * math.log(max(value, low) / low) / math.log(high / low), 1)

    size = f'width="{WIDTH}" height="{height}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    yield f'<rect {size} fill="white"/>'
    yield f'<text x="12" y="24" font-size="14">{_escape(title)}</text>'
    for index, bar in enumerate(bars):
        y, end = TOP + ROW * index, place(bar.value)
        yield f'<text x="{LABEL - 8}" y="{y + 12}" text-anchor="end">{_escape(bar.label)}</text>'
        yield f'<rect x="{LABEL}" y="{y + 2}" width="{max(1.0, end - LABEL):.1f}" height="13" fill="{bar.color}"/>'
        yield f'<text x="{end + 5}" y="{y + 12}">{_escape(bar.words)}</text>'
    if mark:
        x = place(mark)
        yield f'<line x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{height - 14}" stroke="black" stroke-dasharray="4 3"/>'
    yield "</svg>"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("`", "")
