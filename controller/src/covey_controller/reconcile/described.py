"""A plan on machines that are only described: the forecast of a fleet that reports what its Node documents say. Pure.

It must not decide anything, as the forecast doesn't. The described fleet has just been seen whole, runs nothing, has
nothing cached, and no gateway; so what comes out is where each replica would go, and what would not fit.
"""

from collections.abc import Sequence
from typing import Any

from covey_api.kinds import Kind
from covey_api.messages import Report
from covey_api.node import Node

from covey_controller.reconcile.forecast import forecast
from covey_controller.reconcile.forecast_text import render_forecast
from covey_controller.reconcile.sights import AgentView
from covey_controller.reconcile.world import Memory, Published, World

# Any moment will do; the same one each time, so that the same files give the same plan.
_NOW = 1000.0
_TIMESTAMP = "1970-01-01T00:00:00Z"


def plan_described(nodes: Sequence[Node], documents: Sequence[Kind]) -> tuple[str, dict[str, Any]]:
    """Text for people and the same as data. Each of `nodes` has its facts and lanes in its status."""
    world = _world(nodes)
    made = forecast(world, _NOW, documents)
    return render_forecast(made, world.objects, documents, is_every_node=True)


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
