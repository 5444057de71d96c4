"""Renders `docs/reference/metrics.md` from the registry itself: every figure with its type, labels and their values.

A registry is filled with one of each thing that it counts, so that labels and their values are those that a scrape has.
"""

from pathlib import Path

from covey_api.registry import KINDS
from covey_controller.metrics.figures import ControllerMetrics, ControllerView, Verb, WatchView
from covey_controller.ports import Conflict, Refused
from prometheus_client.core import Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "metrics.md"
_ENDINGS = {"counter": "_total", "histogram": "_bucket`, `…_sum`, `…_count"}
_HEAD = """# Metrics

<!-- Generated from controller/src/covey_controller/metrics by tools/generate.py; do not edit. -->

The controller answers `GET /metrics` where `--metrics-listen HOST:PORT` says, and nowhere without it: OpenMetrics to
who asks for it (Prometheus does), Prometheus' own text to others. It is plain HTTP without a login: the answer holds
counts and no name of anything. Keep it to loopback, or to a network that only your Prometheus reaches; on Kubernetes
`metrics.enabled` opens port 52411 to the peers of `metrics.from` alone, where the network plugin heeds policies
([ADR 19](../adr/0019-metrics.md)).

Labels have values of closed lists, so the number of series doesn't grow with the fleet. Every replica answers for
itself. What there is of objects is told by the one that leads: a sum over replicas is the fleet, and
`sum(covey_controller_leader)` is 1.

| metric | type | labels | what |
|---|---|---|---|"""


def render_metrics() -> str:
    """The whole page."""
    metrics = ControllerMetrics(lambda: ControllerView(watch=WatchView(0.0, 0)))
    for error in (None, Conflict(), Refused(), OSError()):
        metrics.record_turn(0.0, error)
        for kind in KINDS:
            for verb in Verb:
                metrics.record_write(kind, verb, error)
    rows = [_render_row(family) for family in metrics.registry.collect()]
    return "\n".join((_HEAD, *sorted(rows), ""))


def _render_row(family: Metric) -> str:
    values: dict[str, dict[str, None]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            values.setdefault(label, {})[value] = None
    values.pop("le", None)
    labels = "; ".join(f"`{label}`: {', '.join(f'`{each}`' for each in found)}" for label, found in values.items())
    name = f"`{family.name}{_ENDINGS.get(family.type, '')}`"
    return f"| {name} | {family.type} | {labels} | {family.documentation} |"
