"""What an Instance holds of a node's memory, by the pools that the node has now.

A stamp says how many bytes, of the pools that its node had then. Where the same device is a lane of the host's pool
by now (ADR 37), what was stamped in a pool of the device's name is in the host's memory all the same: matched by name
it would count nowhere, and be promised again. A pool that is gone with its lane, such as a card's that was taken out,
holds nothing.
"""

from covey_api.engines import HOST_POOL
from covey_api.instance import InstanceSpec
from covey_planner.fit.limits import limit_name, on_device_bytes
from covey_planner.types import NodeView


def held_bytes(view: NodeView, spec: InstanceSpec) -> dict[str, int]:
    """Stamped bytes by pool, of its members on this node."""
    known = {pool.name for pool in view.pools}
    limits = {lane.pool: limit_name(lane) for lane in view.lanes if lane.limit_bytes and lane.compute is spec.compute}
    held: dict[str, int] = {}
    for member in spec.members:
        if member.node != view.name:
            continue
        for costs in member.costs:
            pool = HOST_POOL if costs.pool not in known and _fills_host(view, spec) else costs.pool
            held[pool] = held.get(pool, 0) + costs.total_bytes
            if (name := limits.get(pool)) is not None:
                held[name] = held.get(name, 0) + on_device_bytes(costs)
    return held


def _fills_host(view: NodeView, spec: InstanceSpec) -> bool:
    return any(
        lane.engine is spec.engine and lane.compute is spec.compute and lane.pool == HOST_POOL for lane in view.lanes
    )
