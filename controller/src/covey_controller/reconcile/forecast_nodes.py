"""What a forecast means for each node: bytes reserved before and after, and what it would have to fetch. Pure."""

from collections.abc import Iterator
from typing import Any

from covey_api.engines import LaneState
from covey_api.instance import Instance
from covey_api.units import format_bytes
from covey_planner.types import NodeView
from covey_planner.words import render_exactly

from covey_controller.reconcile.begin import begin_draft
from covey_controller.reconcile.forecast import Forecast
from covey_controller.reconcile.index import index_objects
from covey_controller.reconcile.world import World

Entry = dict[str, Any]


def list_nodes(made: Forecast) -> list[Entry]:
    """Every node's pools, by name of the node."""
    before = {view.name: view for view in _views(made.begin, made.begin.memory.planned_at or made.now)}
    return [
        {"name": view.name, "pools": [_pool(view, before.get(view.name), index) for index in range(len(view.pools))]}
        for view in _views(made.end, made.now)
    ]


def list_downloads(made: Forecast, comes: list[Instance]) -> list[Entry]:
    """What the coming Instances need that their nodes don't have, once per node. A local file is fetched by nobody."""
    views = {view.name: view for view in _views(made.end, made.now)}
    found: dict[tuple[str, str], Entry] = {}
    for instance in comes:
        spec = instance.spec
        for view in (views[member.node] for member in spec.members if member.node in views):
            lane = next((e for e in view.lanes if (e.engine, e.compute) == (spec.engine, spec.compute)), None)
            if lane is not None and lane.state is LaneState.INSTALLABLE:
                what = f"engine {lane.engine}/{lane.compute}"
                found.setdefault((view.name, what), {"node": view.name, "what": what, "bytes": None})
            for artifact in (spec.artifact, *(each.artifact for each in spec.companions)):
                if artifact.digest in view.cached or not (size := artifact.fetched_bytes):
                    continue
                what = f"'{artifact.name}' of model '{spec.model}'"
                found.setdefault((view.name, artifact.digest), {"node": view.name, "what": what, "bytes": size})
    return [found[key] for key in sorted(found)]


def render_nodes(nodes: list[Entry], *, is_every: bool) -> Iterator[str]:
    """Bytes before and after; of every node, or of those whose reservations change."""
    for node in nodes:
        for pool in node["pools"]:
            before, after = pool["reservedBeforeBytes"], pool["reservedBytes"]
            if before == after and not is_every:
                continue
            was = "" if before == after else f"{format_bytes(before)} taken, then "
            yield (
                f"node/{node['name']} pool '{pool['name']}': {format_bytes(pool['totalBytes'])} in total, "
                f"{format_bytes(pool['reserveBytes'])} kept back, {was}{render_exactly(after)} taken, "
                f"{render_exactly(pool['leftBytes'])} left"
            )


def render_downloads(downloads: list[Entry]) -> Iterator[str]:
    for each in downloads:
        size = "size not known" if each["bytes"] is None else render_exactly(each["bytes"])
        yield f"fetches: node '{each['node']}': {each['what']}, {size}"


def _views(world: World, now: float) -> tuple[NodeView, ...]:
    return tuple(begin_draft(world, index_objects(world.objects), now).roster())


def _pool(after: NodeView, before: NodeView | None, index: int) -> Entry:
    pool = after.pools[index]
    earlier = next((each for each in before.pools if each.name == pool.name), None) if before else None
    return {
        "name": pool.name,
        "totalBytes": pool.total_bytes,
        "reserveBytes": pool.reserve_bytes,
        "reservedBeforeBytes": earlier.reserved_bytes if earlier else 0,
        "reservedBytes": pool.reserved_bytes,
        "leftBytes": pool.unreserved_bytes,
    }
