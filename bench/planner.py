"""How long the planner takes to place every Placement of a fleet, one after the other. One JSON line a figure.

Sizes double, so that the growth can be seen: `bench/plots/draw.py` draws it. A growth that is worse than n log n ends
the run with code 1.

Each decision's reservation is in the node's view before the next one, as the reconciler does it.
"""

import gc
import json
import math
import statistics
import sys
import time
from dataclasses import replace

from covey_api.engines import HOST_POOL, ArtifactFormat, Compute, EngineName, KvCacheType, Lane, LaneState
from covey_api.model import Geometry, ResolvedArtifact
from covey_planner.choice import Roster, choose
from covey_planner.types import Chosen, NodeState, NodeView, Pool, VariantView, Wish

GIB = 2**30
REPEATS = 5
KINDS = 20
# Best of some: what else the machine does still shows by this much.
NOISE = 1.3
# At 2,000 Placements the cards of a thousand nodes are full, each machine's with other bytes left.
SIZES = (
    *((250, 300), (500, 300), (1000, 300), (2000, 300), (4000, 300)),
    *((1000, 150), (1000, 600), (1000, 2000), (5000, 1000)),
)


def make_lane(compute: Compute, state: LaneState, device: int = 0) -> Lane:
    pool = f"CUDA{device}" if compute is Compute.CUDA else HOST_POOL
    return Lane(engine=EngineName.LLAMA_SERVER, compute=compute, state=state, digest="0" * 64, pool=pool)


_PROCESSOR = make_lane(Compute.CPU, LaneState.INSTALLED)
LANES = (
    (_PROCESSOR,),
    (make_lane(Compute.CPU, LaneState.INSTALLABLE),),
    (make_lane(Compute.CUDA, LaneState.INSTALLED), _PROCESSOR),
    (make_lane(Compute.CUDA, LaneState.INSTALLABLE), _PROCESSOR),
)
# Every so many kinds has as many cards, together smaller than most models.
CARDS_EVERY = 5
CARDS = 4
_SHARED = (*(make_lane(Compute.CUDA, LaneState.INSTALLED, device) for device in range(CARDS)), _PROCESSOR)


def make_hardware(kind: int) -> tuple[tuple[Lane, ...], tuple[Pool, ...]]:
    host = Pool("Host", (16 + kind * 8) * GIB, GIB, 0)
    if kind % CARDS_EVERY == CARDS_EVERY - 1:
        return _SHARED, (host, *(Pool(f"CUDA{device}", (2 + kind) * GIB, 0, 0) for device in range(CARDS)))
    lanes = LANES[kind % 4]
    cards = (Pool("CUDA0", (8 + kind * 4) * GIB, 0, 0),) if len(lanes) > 1 else ()
    return lanes, (host, *cards)


def make_nodes(count: int) -> list[NodeView]:
    """Twenty kinds of machine in three zones, some cordoned or silent, each with a label of its own."""
    kinds = [make_hardware(kind) for kind in range(KINDS)]
    return [
        NodeView(
            name=f"node-{index:04}",
            state=NodeState.UNKNOWN if index % 29 == 7 else NodeState.READY,
            schedulable=index % 23 != 5,
            labels={"zone": f"z{index % 3}", "host": f"node-{index:04}"},
            lanes=kinds[index % KINDS][0],
            pools=kinds[index % KINDS][1],
            cpu_cores=16,
            cached=frozenset({f"{index % 7:064x}"}),
        )
        for index in range(count)
    ]


def make_wish(index: int) -> Wish:
    """Models of 1 to 28 GiB, every third bound to a zone."""
    layers = 16 + index % 4 * 16
    geometry = Geometry(
        architecture="llama",
        weights_bytes=(1 + index % 7 * 4) * GIB,
        layer_count=layers,
        context_tokens=131_072,
        embedding_length=4096,
        feed_forward_length=14_336,
        head_count=32,
        vocabulary_size=128_256,
        kv_head_counts=(8,) * layers,
        key_length=128,
        value_length=128,
    )
    digest = f"{index % 7:064x}"
    artifact = ResolvedArtifact(source=f"file:///{index}", name="m.gguf", size_bytes=GIB, sha256=digest)
    return Wish(
        placement=f"placement-{index:04}",
        model=f"model-{index:04}",
        variants=(VariantView("gguf", ArtifactFormat.GGUF, (EngineName.LLAMA_SERVER,), geometry, artifact),),
        engines=(),
        selector={"zone": f"z{index % 3}"} if index % 3 == 0 else {},
        include=frozenset(),
        exclude=frozenset(),
        failed=frozenset(),
        context_tokens=8192 if index % 2 else None,
        min_context_tokens=None,
        model_context_tokens=32_768,
        slots=4,
        kv_cache_type=KvCacheType.F16,
        workspace_bytes=0,
    )


def reserve(node: NodeView, chosen: Chosen) -> NodeView:
    """The node's view with a new replica on it."""
    taken = {costs.pool: costs.total_bytes for costs in chosen.costs}
    pools = tuple(replace(pool, reserved_bytes=pool.reserved_bytes + taken.get(pool.name, 0)) for pool in node.pools)
    return replace(node, pools=pools)


def place_all(nodes: list[NodeView], wishes: list[Wish]) -> int:
    """Decide every wish in sequence; the number of replicas that found a place."""
    roster = Roster(nodes, ("zone",))
    placed = 0
    for wish in wishes:
        for chosen in choose(wish, roster, 1).chosen:
            view = roster.view(chosen.node)
            assert view is not None
            roster.put(reserve(view, chosen))
            placed += 1
    return placed


def growth(series: list[tuple[int, float]]) -> float:
    """How much worse than n log n the last point is, as seen from the first: at most 1 where it isn't."""
    (few, least), (many, most) = series[0], series[-1]
    return most / least / (many * math.log(many) / (few * math.log(few)))


def main() -> int:
    best: dict[tuple[int, int], float] = {}
    for node_count, placement_count in SIZES:
        nodes, wishes = make_nodes(node_count), [make_wish(index) for index in range(placement_count)]
        seconds: list[float] = []
        placed = 0
        for _ in range(REPEATS):
            gc.collect()
            start = time.process_time()
            placed = place_all(nodes, wishes)
            seconds.append(time.process_time() - start)
        figure = {
            "figure": "planner.choose",
            "nodes": node_count,
            "placements": placement_count,
            "placed": placed,
            "minCpuSeconds": round(min(seconds), 4),
            "medianCpuSeconds": round(statistics.median(seconds), 4),
        }
        print(json.dumps(figure), flush=True)
        best[node_count, placement_count] = min(seconds)
    is_worse = False
    for name, series in (
        ("nodes", sorted((nodes, best[nodes, placements]) for nodes, placements in best if placements == 300)),
        ("placements", sorted((placements, best[nodes, placements]) for nodes, placements in best if nodes == 1000)),
    ):
        found = growth(series)
        is_worse |= found > NOISE
        print(json.dumps({"figure": "planner.growth", "by": name, "timesNLogN": round(found, 2), "bound": NOISE}))
    return int(is_worse)


if __name__ == "__main__":
    sys.exit(main())
