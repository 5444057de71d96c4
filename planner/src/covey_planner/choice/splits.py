"""One model over several devices of one machine: only where it fits on no single one, and over as few as it fits on.

The processor comes after them: with them idle it would compute many times slower.

llama.cpp's server alone does it here, layer by layer (`--split-mode layer`), among devices of one compute and build.
Each device is looked at by itself: what one has too little, another can't make up for.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from covey_api.engines import HOST_POOL, EngineName, Lane

from covey_planner.choice.shares import fixed_bytes, layer_bytes, share_layers
from covey_planner.choice.ways import Question, Way
from covey_planner.fit.estimate import CostFormula
from covey_planner.fit.split import layer_weights, output_bytes, split_formulas
from covey_planner.types import NodeView

# As many as a machine has slots for; each more costs a hop between devices for every token.
MAX_DEVICES = 16


def find_split(
    question: Question, node: NodeView, way: Way, taken: Mapping[str, int]
) -> tuple[Lane, tuple[CostFormula, ...]] | None:
    """The first device's lane and what each pool then holds, at windows from the least on; None: it fits on no few.

    1. Devices of one compute and build that may be used, the one with the most memory first; ties by name.
    2. The fewest of them on which it fits, each a share in proportion to what it has.
    """
    if way.engine is not EngineName.LLAMA_SERVER or way.span.refusal:
        return None
    free = {pool.name: pool.unreserved_bytes - taken.get(pool.name, 0) for pool in node.pools}
    for lanes in _groups(question, node, way):  # 1
        lanes.sort(key=lambda each: (-free.get(each.pool, 0), each.pool))
        for count in range(2, min(len(lanes), MAX_DEVICES) + 1):  # 2
            chosen = sorted(lanes[:count], key=lambda each: each.pool)
            formulas = _share(question, way, chosen, free)
            if formulas is not None:
                return chosen[0], formulas
    return None


def shared_lanes(node: NodeView, way: Way) -> dict[str, Lane]:
    """By pool, where there is anything to look at: quick, as it is asked of every kind of node."""
    if way.engine is not EngineName.LLAMA_SERVER or not way.comes_to(node):
        return {}
    lanes = {lane.pool: lane for lane in node.lanes if lane.pool != HOST_POOL and way.runs_on(lane)}
    return lanes if len(lanes) > 1 else {}


def least_shared_bytes(question: Question, way: Way, lanes: Iterable[Lane]) -> int:
    """What devices must have together, at least: one engine's layers, cache and buffers, if nothing were there twice.

    Nodes without it needn't be asked: on a full fleet nearly all, each with other bytes free.
    """
    return min(_light(question.price(way, lane).formulas[0], way).total_bytes(way.span.least) for lane in lanes)


def _groups(question: Question, node: NodeView, way: Way) -> Iterator[list[Lane]]:
    groups: dict[tuple[str, str], list[Lane]] = {}
    for lane in node.lanes:
        is_usable = way.runs_on(lane) and not question.wish.is_barred(node.name, lane)
        if is_usable and lane.pool != HOST_POOL:
            groups.setdefault((lane.compute, lane.digest), []).append(lane)
    yield from (lanes for lanes in groups.values() if len(lanes) > 1)


def _share(question: Question, way: Way, lanes: list[Lane], free: Mapping[str, int]) -> tuple[CostFormula, ...] | None:
    whole, *_ = formulas = question.price(way, lanes[0]).formulas
    layers, window = way.geometry.layer_count, way.span.least
    light = replace(_light(whole, way), companions=())
    per_layer = layer_bytes(light, window, layers)
    rest = [free.get(lane.pool, 0) - fixed_bytes(light, window) - per_layer for lane in lanes]
    rest[0] -= whole.companion_bytes(window)
    rest[-1] -= output_bytes(way.geometry)
    shares = share_layers(layers, rest, per_layer)
    if shares is None:
        return None
    split = split_formulas(way.geometry, formulas, [lane.pool for lane in lanes], shares)
    fits = all(each.total_bytes(window) <= free.get(each.pool, 0) for each in split)
    return split if fits else None


def _light(whole: CostFormula, way: Way) -> CostFormula:
    """With what its layers weigh alone: nothing is laid out anew, and the output is counted apart."""
    return replace(whole, weights_bytes=layer_weights(way.geometry))
