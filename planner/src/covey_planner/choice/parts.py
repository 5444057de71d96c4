"""What one member of several holds of a model: its layers, and what is its own beside them."""

from collections.abc import Sequence
from dataclasses import replace

from covey_api.engines import HOST_POOL, EngineName

from covey_planner.choice.ways import Way
from covey_planner.fit.estimate import CostFormula
from covey_planner.fit.ranks import rank_bytes, rank_formula
from covey_planner.fit.split import layer_weights, output_bytes
from covey_planner.types import ShapeKind


def member_formula(way: Way, kind: ShapeKind, formula: CostFormula) -> CostFormula:
    """Of one member, with what the layers weigh alone and everything that it has whole."""
    if kind is ShapeKind.RPC:
        return rpc_formula(way, formula)
    return rank_formula(way.geometry, formula) if way.engine is EngineName.MLX else formula


def own_bytes(way: Way, kind: ShapeKind, formula: CostFormula, index: int, count: int) -> int:
    """What one member's weights are beside its layers. `formula`: of one that has the whole model."""
    if kind is ShapeKind.RPC:
        return rpc_bytes(way, formula, index, count)
    return rank_bytes(way.geometry, formula) if way.engine is EngineName.MLX else 0


def run_of(way: Way, kind: ShapeKind, shares: Sequence[int], index: int) -> range:
    """The layers of one member. The last ones are rank 0's of MLX, which chooses tokens by them."""
    is_reversed = kind is ShapeKind.PIPELINE and way.engine is EngineName.MLX
    first = sum(shares[index + 1 :] if is_reversed else shares[:index])
    return range(first, first + shares[index])


def rpc_formula(way: Way, formula: CostFormula) -> CostFormula:
    """With what layers weigh alone; `rpc_bytes` has what one member holds beside its layers."""
    weights = -(-layer_weights(way.geometry) * formula.calibration_percent // 100)
    return replace(formula, weights_bytes=weights)


def rpc_bytes(way: Way, formula: CostFormula, index: int, count: int) -> int:
    """The table of embeddings stays in the driver's process (in a pool of its own it is counted with the host's); the
    output is with the last donor."""
    table = way.geometry.token_embedding_bytes if index == 0 and formula.pool == HOST_POOL else 0
    output = output_bytes(way.geometry) if index == count - 1 else 0
    return -(-(table + output) * formula.calibration_percent // 100)
