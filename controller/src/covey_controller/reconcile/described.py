"""A plan on machines that are only described: the forecast of a fleet that reports what its Node documents say. Pure.

It must not decide anything, as the forecast doesn't. The described fleet has just been seen whole, runs nothing, has
nothing cached, and no gateway; so what comes out is where each replica would go, and what would not fit.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from covey_api.kinds import Kind
from covey_api.messages import Report
from covey_api.node import Node
from covey_api.units import format_bytes

from covey_controller.reconcile.begin import begin_draft
from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.forecast import Forecast, forecast
from covey_controller.reconcile.forecast_text import render_forecast
from covey_controller.reconcile.world import AgentView, Memory, Published, World

# Any moment will do; the same one each time, so that the same files give the same plan.
_NOW = 1000.0
_TIMESTAMP = "1970-01-01T00:00:00Z"


def plan_described(nodes: Sequence[Node], documents: Sequence[Kind]) -> tuple[str, dict[str, Any]]:
    """Text for people and the same as data. Each of `nodes` has its facts and lanes in its status."""
    world = _world(nodes)
    made = forecast(world, _NOW, documents)
    text, found = render_forecast(made, world.objects, documents)
    found["nodes"] = _node_entries(made)
    return text + "".join(f"{line}\n" for line in _node_lines(found["nodes"])), found


def _world(nodes: Sequence[Node]) -> World:
    return World(
        term=1,
        led_since=0.0,
        objects=tuple(nodes),
        agents=tuple(AgentView(node.metadata.name, _NOW, _report(node)) for node in nodes),
        gateways=(),
        answers={},
        published=Published(),
        memory=Memory(complete=True, expected=frozenset(), planned_at=_NOW, watching_since=0.0),
        fresh_ids=(),
        timestamp=_TIMESTAMP,
        engine_key=lambda _: "",  # nothing is started
        seal_of=lambda _: "",
    )


def _report(node: Node) -> Report:
    status = node.status
    return Report(
        boot_id="described",
        sequence=1,
        version=status.version,
        full=True,
        facts=status.facts,
        lanes=status.lanes,
        blobs=(),
        members=(),
    )


def _node_entries(made: Forecast) -> list[dict[str, Any]]:
    return [
        {
            "name": view.name,
            "pools": [
                {
                    "name": pool.name,
                    "totalBytes": pool.total_bytes,
                    "reserveBytes": pool.reserve_bytes,
                    "reservedBytes": pool.reserved_bytes,
                    "leftBytes": pool.unreserved_bytes,
                }
                for pool in view.pools
            ],
        }
        for view in _end(made).roster()
    ]


def _end(made: Forecast) -> Draft:
    stored = {item.key: item for item in sorted(made.end.objects, key=lambda item: item.key)}
    return begin_draft(made.end, stored, made.now)


def _node_lines(entries: list[dict[str, Any]]) -> Iterator[str]:
    for node in entries:
        for pool in node["pools"]:
            yield (
                f"node/{node['name']} pool '{pool['name']}': {format_bytes(pool['totalBytes'])} in total, "
                f"{format_bytes(pool['reserveBytes'])} kept back, {format_bytes(pool['reservedBytes'])} taken, "
                f"{format_bytes(pool['leftBytes'])} ({pool['leftBytes']} bytes) left"
            )
