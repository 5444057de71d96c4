"""Renders `docs/reference/metrics.md` from the registries themselves: every figure with its type, labels and their
values, and the buckets of each histogram.

A registry is filled with one of each thing that it counts, so that labels and their values are those that a scrape has.
"""

from collections.abc import Iterable
from pathlib import Path

from covey_api.registry import KINDS
from covey_controller.metrics.figures import ControllerMetrics, ControllerView, Verb, WatchView
from covey_controller.ports import Conflict, Refused
from covey_gateway.exposition import GatewayCollector
from covey_gateway.figures import Figures, Present
from covey_gateway.records import Record
from covey_gateway.wire.formats import HOT_PATHS
from prometheus_client.core import CollectorRegistry, Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "metrics.md"
_ENDINGS = {"counter": "_total", "histogram": "_bucket`, `…_sum`, `…_count"}
_TABLE = """| metric | type | labels | what |
|---|---|---|---|"""
_BUCKETS = """| histogram | upper bounds, seconds |
|---|---|"""
_HEAD = f"""# Metrics

<!-- Generated from the parts' registries by tools/generate.py; do not edit. -->

Controllers and gateways answer `GET /metrics` where `--metrics-listen HOST:PORT` says: OpenMetrics to who asks for it
(Prometheus does), Prometheus' own text to others. It is plain HTTP without a login. Keep it to loopback, or to a
network that only your Prometheus reaches; on Kubernetes `metrics.enabled` opens port 52411 of both to the peers of
`metrics.from` alone, where the network plugin heeds policies ([ADR 19](../adr/0019-metrics.md)).
Agents have no figures of their own: what they know of nodes and instances they report to the controller.

## Dashboard and alerts

`manifests/observability/dashboard.json` is a Grafana dashboard (*Dashboards*, *Import*; it asks for the Prometheus to
use), `manifests/observability/rules.yaml` alert rules for it:

```yaml
rule_files: [/etc/prometheus/covey-rules.yaml]
scrape_configs:
- job_name: covey
  static_configs:
  - targets: ['127.0.0.1:9411', '127.0.0.1:9412']   # what --metrics-listen said, of each controller and gateway
```

With the Prometheus operator the `groups` of that file are the `spec` of a PrometheusRule. Where gateways run by a
table, leave out the group `covey-controller`: there is nothing to answer it.
Each rule's annotations say what to look at.

## The controller's

Labels have values of closed lists, so the number of series doesn't grow with the fleet; the answer holds counts and no
name of anything. Every replica answers for itself. What there is of objects is told by the one that leads: a sum over
replicas is the fleet, and `sum(covey_controller_leader)` is 1.

{_TABLE}"""
_GATEWAY = f"""
## A gateway's

`model` is a declared Model's name, with its namespace where that isn't `default`: the first 256 that the process met,
all others are `other`. What clients write makes no series. Because of the names they are told on the gateway's own port
on loopback alone, and to nobody who sends a key.

{_TABLE}"""
# What isn't of a closed list.
_OPEN = {"model": "a Model's name", "code": "the status"}


def render_metrics() -> str:
    """The whole page."""
    controller, gateway = list(_fill_controller().collect()), list(_fill_gateway().collect())
    parts = (_HEAD, *_rows(controller), _GATEWAY, *_rows(gateway), "\n## Buckets\n", _BUCKETS)
    return "\n".join((*parts, *_bucket_rows((*controller, *gateway)), ""))


def _fill_controller() -> CollectorRegistry:
    metrics = ControllerMetrics(lambda: ControllerView(watch=WatchView(0.0, 0)))
    for error in (None, Conflict(), Refused(), OSError()):
        metrics.record_turn(0.0, error)
        for kind in KINDS:
            for verb in Verb:
                metrics.record_write(kind, verb, error)
    return metrics.registry


def _fill_gateway() -> CollectorRegistry:
    figures = Figures()
    figures.observe = lambda: Present(in_flight={("default", "m"): 0})
    for name in dict.fromkeys(form.name for form, _ in HOT_PATHS.values()):
        figures.add(Record("POST", "/", "id", 0.0, format=name, model="m", status=200))
    registry = CollectorRegistry()
    registry.register(GatewayCollector(figures))
    return registry


def _rows(families: Iterable[Metric]) -> list[str]:
    return sorted(_render_row(family) for family in families)


def _render_row(family: Metric) -> str:
    values: dict[str, dict[str, None]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            values.setdefault(label, {})[value] = None
    values.pop("le", None)
    labels = "; ".join(
        f"`{label}`: {_OPEN.get(label) or ', '.join(f'`{each}`' for each in found)}" for label, found in values.items()
    )
    name = f"`{family.name}{_ENDINGS.get(family.type, '')}`"
    return f"| {name} | {family.type} | {labels} | {family.documentation} |"


def _bucket_rows(families: Iterable[Metric]) -> list[str]:
    bounds: dict[str, dict[str, None]] = {}
    for family in families:
        for sample in family.samples:
            if "le" in sample.labels and sample.labels["le"] != "+Inf":
                bounds.setdefault(family.name, {})[f"{float(sample.labels['le']):g}"] = None
    return [f"| `{name}` | {', '.join(found)} |" for name, found in sorted(bounds.items())]
