"""Places over several nodes: a shape that agents run, as all that is stamped on an Instance of several members.

One at a time, and only where this decision has placed nothing else: what it takes of each node is then counted before
the next one is looked for.
"""

from collections.abc import Sequence
from dataclasses import replace

from covey_api.instance import Costs
from covey_api.reasons import RefusalReason

from covey_planner.choice.links import Links
from covey_planner.choice.nodes import Miss, filter_node
from covey_planner.choice.refusals import explain_miss
from covey_planner.choice.shapes import Shape, can_join, can_rank, choose_shape, member_formula, own_bytes
from covey_planner.choice.ways import Question, Way
from covey_planner.fit.estimate import CostFormula
from covey_planner.types import Chosen, NodeView, Other, Refusal, ShapeKind, Spread, Wish


def choose_group(question: Question, spread: Spread, nodes: Sequence[NodeView], links: Links) -> Chosen | None:
    """None where no nodes of one build hold it together."""
    able = [view for each in nodes if (view := _with_roles(each, spread.kind)).lanes]
    wish = replace(question.wish, variants=tuple(each for each in question.wish.variants if not each.companions))
    if not wish.variants:
        return None
    shape = choose_shape(wish, able, links, (spread.kind,), range(spread.least, spread.most + 1), spread.lock)
    return _stamp(question, shape, {view.name: view for view in able}) if shape else None


def find_runnable(wish: Wish, nodes: Sequence[NodeView], links: Links) -> Shape | None:
    """The shape that agents would run if the Placement asked for it, of the preferred variant and engine."""
    whole = replace(wish, variants=tuple(each for each in wish.variants if not each.companions))
    if not whole.variants:
        return None
    ranks = {(way.variant, way.engine): way.rank for way in Question(whole).ways}
    found: list[Shape] = []
    for kind in (ShapeKind.RPC, ShapeKind.PIPELINE, ShapeKind.TENSOR):
        able = [view for each in nodes if (view := _with_roles(each, kind)).lanes]
        shape = choose_shape(whole, able, links, (kind,)) if len(able) > 1 else None
        found += [shape] if shape else []
    return min(found, key=lambda each: ranks[each.variant, each.engine], default=None)


def explain_no_group(question: Question, spread: Spread, nodes: Sequence[NodeView]) -> Refusal:
    """For who asked for several nodes and gets none."""
    wish = question.wish
    if spread.lock:
        return Refusal("", RefusalReason.INSUFFICIENT_MEMORY, _explain_lock(question, spread, nodes))
    sizes = str(spread.least) if spread.least == spread.most else f"{spread.least} to {spread.most}"
    message = f"no {sizes} nodes hold model '{wish.model}' together as `{spread.kind}`: {_NEEDS[spread.kind]}"
    return Refusal("", RefusalReason.INSUFFICIENT_MEMORY, message)


def _explain_lock(question: Question, spread: Spread, nodes: Sequence[NodeView]) -> str:
    """Whom a locked Placement waits for, and why."""
    views = {view.name: view for view in nodes}
    waits = [f"'{name}' ({why})" for name in spread.lock if (why := _explain_unfit(question, spread, views.get(name)))]
    named = ", ".join(f"'{name}'" for name in spread.lock)
    start = f"`spec.shape.topologyLock` names nodes {named}, and no others are taken"
    if waits:
        return f"{start}: it waits for {', '.join(waits)}"
    return f"{start}: together they don't hold model '{question.wish.model}' as `{spread.kind}`: {_NEEDS[spread.kind]}"


def _explain_unfit(question: Question, spread: Spread, view: NodeView | None) -> str:
    """Why this node can't take part whatever the others are; empty: it can."""
    if view is None:
        return "it has not joined"
    if reason := filter_node(question, view, view.name):
        return reason.value
    lanes = [lane for lane in _with_roles(view, spread.kind).lanes if lane.engine in question.engines]
    if not lanes:
        return f"it offers no engine of the model that takes part as `{spread.kind}`"
    if not any(way.runs_on(lane) for way in question.ways for lane in lanes):
        return explain_miss(question, Miss(RefusalReason.NO_USABLE_ENGINE, view)).message
    if all(question.wish.is_barred(view.name, lane) for lane in lanes):
        return "the last attempt failed there"
    return ""


_RANKS_NEED = (
    "each must be free to take it and offer the same build of `Mlx` on the same compute, all together the memory; "
    "the cache must be F16, the model of a kind that mlx-lm has"
)
_NEEDS = {
    ShapeKind.RPC: "each must be free to take it and have the same build of `LlamaServer` with donors, all together "
    "the memory; a variant with companions has no such place",
    ShapeKind.PIPELINE: f"{_RANKS_NEED} as a pipeline",
    ShapeKind.TENSOR: f"{_RANKS_NEED} cut across its layers, and its width, heads and feed-forward must divide by the "
    "number of nodes",
}


def _with_roles(view: NodeView, kind: ShapeKind) -> NodeView:
    is_able = can_join if kind is ShapeKind.RPC else can_rank
    return replace(view, lanes=tuple(lane for lane in view.lanes if is_able(lane)))


def _stamp(question: Question, shape: Shape, views: dict[str, NodeView]) -> Chosen:
    way = next(each for each in question.ways if (each.variant, each.engine) == (shape.variant, shape.engine))
    costs = [_costs(question, way, shape, index) for index in range(len(shape.members))]
    first, *others = shape.members
    options = question.options(way, cpu_cores=views[first.node].cpu_cores, window=shape.window)
    if shape.kind is ShapeKind.RPC:
        # Donors' processors don't repack: all layers are computed by the same kernels, whoever has them.
        options = options.model_copy(update={"repack": False})
    else:
        options = options.model_copy(update={"host_cache_mib": 0})
    return Chosen(
        node=first.node,
        variant=way.variant,
        lane=first.lane,
        artifact=way.artifact,
        options=options,
        costs=costs[0],
        others=tuple(Other(each.node, taken) for each, taken in zip(others, costs[1:], strict=True)),
        kind=shape.kind,
    )


def _costs(question: Question, way: Way, shape: Shape, index: int) -> tuple[Costs, ...]:
    member = shape.members[index]
    first, *others = question.price(way, member.lane).formulas
    formula, count = member_formula(way, shape.kind, first), len(shape.members)
    if shape.kind is ShapeKind.TENSOR:  # all layers, in part
        costs = share_costs(formula, shape.window, count, 1).model_copy(update={"layers": 0})
    else:
        share = member.last_layer - member.first_layer + 1
        costs = share_costs(formula, shape.window, shape.layer_count, share)
    own = costs.weights_bytes + own_bytes(way, shape.kind, first, index, count)
    return (
        costs.model_copy(update={"weights_bytes": own}),
        *(each.costs(shape.window) for each in others if not each.is_limit),
    )


def share_costs(formula: CostFormula, window: int, layers: int, share: int) -> Costs:
    """Its part of what is per layer, rounded up, and all of the rest: as `choice.shares` counts."""
    whole = formula.costs(window)

    def part(count: int) -> int:
        return -(-count * share // layers)

    return whole.model_copy(
        update={
            "weights_bytes": part(whole.weights_bytes),
            "kv_cache_bytes": part(whole.kv_cache_bytes),
            "checkpoint_bytes": part(whole.checkpoint_bytes),
            "layers": share,
        }
    )
