"""What a device without memory of its own can fill of the host's, where its driver allows it a part alone (ADR 50).

Such a limit is a pool in the planner's eyes, beside the host's: what an engine puts on the device counts in both, all
engines on it count together, and nothing of it is stamped, since the bytes are the host's. The name isn't one that a
node reports.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from covey_api.engines import Lane
from covey_api.instance import Costs

from covey_planner.fit.estimate import CostFormula
from covey_planner.types import Pool


def limit_name(lane: Lane) -> str:
    return f"{lane.pool}/{lane.compute}"


def limit_pools(lanes: Iterable[Lane]) -> Iterator[Pool]:
    """Of lanes that have one; of one device several engines have lanes."""
    limits: dict[str, int] = {}
    for lane in lanes:
        if lane.limit_bytes:
            name = limit_name(lane)
            limits[name] = min(limits.get(name, lane.limit_bytes), lane.limit_bytes)
    yield from (Pool(name, limit, 0, 0) for name, limit in limits.items())


def limit_formula(lane: Lane, formula: CostFormula, embedding_bytes: int) -> CostFormula:
    """What of an engine's memory is the device's: neither the process, nor caches and tables that stay the host's."""
    return replace(
        formula,
        pool=limit_name(lane),
        weights_bytes=max(0, formula.weights_bytes - embedding_bytes),
        floor_bytes=0,
        host_cache_bytes=0,
        checkpoint_bytes_per_cell=0,
        is_limit=True,
    )


def on_device_bytes(costs: Costs) -> int:
    """The same of what is stamped, in which the table of embeddings can't be told from other weights."""
    return costs.total_bytes - costs.floor_bytes - costs.host_cache_bytes - costs.checkpoint_bytes
