"""Draw how the planner's cost grows: JSON lines of `bench/planner.py` in, one SVG out.

    python bench/planner.py | python bench/plots/draw.py > bench/plots/planner.svg

Both axes are logarithmic; the dashed lines are n log n through the first point of each series.
"""

import json
import math
import sys
from collections.abc import Iterator

WIDTH, HEIGHT, MARGIN = 640, 400, 60
COLORS = ("#1f77b4", "#d62728")
Points = list[tuple[float, float]]


def read_series(lines: Iterator[str]) -> dict[str, Points]:
    """Milliseconds by nodes (at 300 placements) and by placements (at 1000 nodes)."""
    by_nodes: Points = []
    by_placements: Points = []
    for line in lines:
        figure = json.loads(line)
        if figure.get("figure") != "planner.choose":
            continue
        nodes, placements, best = figure["nodes"], figure["placements"], figure["minCpuSeconds"] * 1000
        if placements == 300:
            by_nodes.append((nodes, best))
        if nodes == 1000:
            by_placements.append((placements, best))
    return {"nodes, 300 placements": sorted(by_nodes), "placements, 1000 nodes": sorted(by_placements)}


def draw(series: dict[str, Points]) -> Iterator[str]:
    every = [point for points in series.values() for point in points]
    low_x, high_x = min(x for x, _ in every) / 1.3, max(x for x, _ in every) * 1.3
    low_y, high_y = min(y for _, y in every) / 3, max(y for _, y in every) * 8

    def place(x: float, y: float) -> tuple[float, float]:
        right = MARGIN + (WIDTH - 2 * MARGIN) * math.log(x / low_x) / math.log(high_x / low_x)
        down = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * math.log(y / low_y) / math.log(high_y / low_y)
        return round(right, 1), round(down, 1)

    size = f'width="{WIDTH}" height="{HEIGHT}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    yield f'<rect {size} fill="white"/>'
    yield '<text x="60" y="24" font-size="14">CPU milliseconds to place every Placement, by size of the fleet</text>'
    for ticks, is_x in ((_ticks(low_x, high_x), True), (_ticks(low_y, high_y), False)):
        for value in ticks:
            x, y = place(value, low_y) if is_x else place(low_x, value)
            end = (x, MARGIN) if is_x else (WIDTH - MARGIN, y)
            yield f'<line x1="{x}" y1="{y}" x2="{end[0]}" y2="{end[1]}" stroke="#dddddd"/>'
            text = (x - 10, y + 18) if is_x else (x - 44, y + 4)
            yield f'<text x="{text[0]}" y="{text[1]}">{value:g}</text>'
    for index, (name, points) in enumerate(series.items()):
        color = COLORS[index]
        line = " ".join(",".join(map(str, place(x, y))) for x, y in points)
        yield f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>'
        for x, y in points:
            right, down = place(x, y)
            yield f'<circle cx="{right}" cy="{down}" r="3" fill="{color}"/>'
        first_x, first_y = points[0]
        bound = [(x, first_y * x * math.log(x) / (first_x * math.log(first_x))) for x, _ in points]
        line = " ".join(",".join(map(str, place(x, min(y, high_y)))) for x, y in bound)
        yield f'<polyline points="{line}" fill="none" stroke="{color}" stroke-dasharray="4 4"/>'
        legend = f'x="{MARGIN + 20}" y="{MARGIN + 16 + 18 * index}"'
        yield f'<text {legend} fill="{color}">by {name} (dashed: n log n)</text>'
    yield "</svg>"


def _ticks(low: float, high: float) -> list[float]:
    steps = [base * 10.0**power for power in range(-3, 7) for base in (1, 2, 5)]
    return [step for step in steps if low <= step <= high]


if __name__ == "__main__":
    print("\n".join(draw(read_series(iter(sys.stdin)))))
