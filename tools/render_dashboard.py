"""Renders `manifests/observability/dashboard.json`: what Grafana imports, made from the table of panels below.

Grafana's own file is six hundred lines in which each query stands amid its looks; here a panel is a line, and a figure
that is renamed is changed in one place. A real Prometheus runs its queries in `tests/integration/test_prometheus.py`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).resolve().parent.parent / "manifests" / "observability" / "dashboard.json"
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# The `model` is empty in requests that found none; "All" is every value, the empty one too.
_MODEL = 'model=~"$model"'


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    """Grafana's name of it."""
    queries: tuple[tuple[str, str], ...]
    """Expression and legend."""


def _quantiles(figure: str) -> tuple[tuple[str, str], ...]:
    rate = f"sum by (le, model) (rate({figure}_bucket{{{_MODEL}}}[$__rate_interval]))"
    return tuple((f"histogram_quantile({part}, {rate})", f"{{{{model}}}} p{part:.0%}"[:-1]) for part in (0.5, 0.95))


def _rate(by: str, figure: str, legend: str = "", selector: str = _MODEL) -> tuple[str, str]:
    return f"sum by ({by}) (rate({figure}{{{selector}}}[$__rate_interval]))", legend or f"{{{{{by}}}}}"


_REQUESTS = "covey_gateway_requests_total"
ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Clients",
        (
            Panel("Requests by model", "reqps", (_rate("model", _REQUESTS),)),
            Panel("Requests by status", "reqps", (_rate("code", _REQUESTS),)),
            Panel(
                "Share of requests that failed",
                "percentunit",
                (
                    (
                        f'sum by (model) (rate({_REQUESTS}{{{_MODEL},code=~"5.."}}[$__rate_interval])) / '
                        f"sum by (model) (rate({_REQUESTS}{{{_MODEL}}}[$__rate_interval]))",
                        "{{model}}",
                    ),
                ),
            ),
            Panel("Until the first token", "s", _quantiles("covey_gateway_first_token_seconds")),
            Panel("Between tokens", "s", _quantiles("covey_gateway_token_interval_seconds")),
            Panel("Until sent to an engine", "s", _quantiles("covey_gateway_held_seconds")),
            Panel("Whole request", "s", _quantiles("covey_gateway_request_seconds")),
            Panel(
                "Tokens per second",
                "short",
                tuple(
                    _rate("model", f"covey_gateway_{kind}_tokens_total", f"{{{{model}}}} {kind}")
                    for kind in ("prompt", "cached", "completion")
                ),
            ),
            Panel(
                "At engines now, and waiting for a model",
                "short",
                (
                    (f"sum by (model) (covey_gateway_in_flight_requests{{{_MODEL}}})", "{{model}}"),
                    ("sum(covey_gateway_held_requests)", "waiting"),
                    ("sum(covey_gateway_queued_requests)", "in line"),
                ),
            ),
            Panel(
                "Endpoints set aside",
                "short",
                (
                    (
                        f"sum by (model) (increase(covey_gateway_ejections_total{{{_MODEL}}}[$__rate_interval]))",
                        "{{model}}",
                    ),
                ),
            ),
            Panel(
                "Refused by a key's limit",
                "reqps",
                (_rate("limit", "covey_gateway_limited_requests_total", selector=""),),
            ),
            Panel(
                "Gateways",
                "short",
                (
                    ("sum(covey_gateway_ready)", "ready"),
                    ("sum(covey_gateway_connections)", "clients connected"),
                    (
                        "sum(rate(covey_gateway_log_lines_dropped_total[$__rate_interval]))",
                        "log lines dropped per second",
                    ),
                ),
            ),
        ),
    ),
    (
        "Fleet",
        (
            Panel("Instances by phase", "short", (("sum by (phase) (covey_controller_instances)", "{{phase}}"),)),
            Panel("Placements by Ready", "short", (("sum by (ready) (covey_controller_placements)", "{{ready}}"),)),
            Panel("Nodes by Ready", "short", (("sum by (ready) (covey_controller_nodes)", "{{ready}}"),)),
            Panel(
                "Reconciler's turns",
                "ops",
                (_rate("outcome", "covey_controller_reconcile_turns_total", selector=""),),
            ),
            Panel(
                "A turn's duration",
                "s",
                (
                    (
                        "histogram_quantile(0.95, sum by (le) "
                        "(rate(covey_controller_reconcile_turn_duration_seconds_bucket[$__rate_interval])))",
                        "p95",
                    ),
                ),
            ),
            Panel(
                "Writes by kind",
                "ops",
                (_rate("kind", "covey_controller_writes_total", selector=""),),
            ),
            Panel(
                "Leading controllers",
                "short",
                (("sum(covey_controller_leader)", "leaders"), ("max(covey_controller_term)", "term")),
            ),
            Panel(
                "Connected to controllers",
                "short",
                (("sum by (role) (covey_controller_connected_streams)", "{{role}}"),),
            ),
        ),
    ),
)


def render_dashboard() -> str:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(_render_row(title, top, len(panels) + 1))
        top += 1
        for number, panel in enumerate(row):
            at = {"x": number * _WIDTH % _COLUMNS, "y": top + number * _WIDTH // _COLUMNS * _HEIGHT}
            panels.append(_render_panel(panel, at, len(panels) + 1))
        top += -(-len(row) * _WIDTH // _COLUMNS) * _HEIGHT
    document = {
        "title": "Covey",
        "uid": "covey",
        "tags": ["covey"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _render_variables()},
        "panels": panels,
    }
    return json.dumps(document, indent=2) + "\n"


def _render_row(title: str, top: int, number: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _render_panel(panel: Panel, at: dict[str, int], number: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {**at, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": _render_targets(panel.queries),
    }


def _render_targets(queries: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
        for number, (expression, legend) in enumerate(queries)
    ]


def _render_variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "model",
            "label": "Model",
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": f"label_values({_REQUESTS}, model)", "refId": "models"},
            "refresh": 2,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]
