"""Places over several nodes: a shape that llama.cpp runs, as all that is stamped on an Instance of several members.

One at a time, and only where this decision has placed nothing else: what it takes of each node is then counted before
the next one is looked for.
"""

from collections.abc import Sequence
from dataclasses import replace

from covey_api.engines import HOST_POOL, Compute
from covey_api.instance import Costs, MemberRole
from covey_api.reasons import RefusalReason

from covey_planner.choice.links import Links
from covey_planner.choice.shapes import Shape, ShapeKind, choose_shape, rpc_bytes, rpc_formula
from covey_planner.choice.ways import Question, Way
from covey_planner.fit.estimate import CostFormula
from covey_planner.types import Chosen, Donor, NodeView, Refusal, Spread, Wish


def choose_group(question: Question, spread: Spread, nodes: Sequence[NodeView], links: Links) -> Chosen | None:
    """None where no nodes of one build hold it together."""
    able = [view for each in nodes if (view := _with_roles(each)).lanes]
    wish = replace(question.wish, variants=tuple(each for each in question.wish.variants if not each.companions))
    if not wish.variants:
        return None
    shape = choose_shape(wish, able, links, (ShapeKind.RPC,), range(spread.least, spread.most + 1))
    return _stamp(question, shape, {view.name: view for view in able}) if shape else None


def explain_no_group(wish: Wish, spread: Spread) -> Refusal:
    """For who asked for several nodes and gets none."""
    sizes = str(spread.least) if spread.least == spread.most else f"{spread.least} to {spread.most}"
    message = (
        f"no {sizes} nodes hold model '{wish.model}' together as `Rpc`: each must be free to take it and have the same "
        "build of `LlamaServer` with donors, all together the memory; a variant with companions has no such place"
    )
    return Refusal("", RefusalReason.INSUFFICIENT_MEMORY, message)


def _with_roles(view: NodeView) -> NodeView:
    """With the lanes only whose agent runs drivers and donors.

    An accelerator in the machine's own memory has no pool whose name says which device has the layers: such a node
    takes part with its processor.
    """
    needed = {MemberRole.DRIVER.value, MemberRole.DONOR.value}
    lanes = (lane for lane in view.lanes if lane.pool != HOST_POOL or lane.compute is Compute.CPU)
    return replace(view, lanes=tuple(lane for lane in lanes if needed <= set(lane.roles)))


def _stamp(question: Question, shape: Shape, views: dict[str, NodeView]) -> Chosen:
    way = next(each for each in question.ways if (each.variant, each.engine) == (shape.variant, shape.engine))
    costs = [_costs(question, way, shape, index) for index in range(len(shape.members))]
    driver, *donors = shape.members
    options = question.options(way, cpu_cores=views[driver.node].cpu_cores, window=shape.window)
    return Chosen(
        node=driver.node,
        variant=way.variant,
        lane=driver.lane,
        artifact=way.artifact,
        # Donors' processors don't repack: all layers are computed by the same kernels, whoever has them.
        options=options.model_copy(update={"repack": False}),
        costs=costs[0],
        donors=tuple(Donor(each.node, taken) for each, taken in zip(donors, costs[1:], strict=True)),
    )


def _costs(question: Question, way: Way, shape: Shape, index: int) -> tuple[Costs, ...]:
    member = shape.members[index]
    first, *others = question.price(way, member.lane).formulas
    share = member.last_layer - member.first_layer + 1
    costs = share_costs(rpc_formula(way, first), shape.window, shape.layer_count, share)
    own = costs.weights_bytes + rpc_bytes(way, first, index, len(shape.members))
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
