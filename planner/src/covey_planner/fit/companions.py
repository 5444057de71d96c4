"""What a projector and a draft model take beside the model, in the same process and the same pools.

They are part of the model's own formulas (`CostFormula.companions`), so that every window that is looked at counts
them. Measured with llama.cpp's server and mlx-lm's: docs/reference/estimator.md.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from covey_api.companion import CompanionRole
from covey_api.engines import HOST_POOL, Compute, EngineName, KvCacheType, Lane
from covey_api.instance import EngineOptions
from covey_api.model import Geometry

from covey_planner.fit import mlx
from covey_planner.fit.estimate import DRIVER_BYTES, PROCESS_BYTES, CostFormula, cost_formulas

_FLOAT_BYTES, _HALF_BYTES = 4, 2
# Pixels of one patch: 16 x 16 in three colours, the largest among them.
_PATCH_NUMBERS = 768
# A picture of 12 megapixels while it is decoded and made smaller, in each slot (measured: 89 MiB).
_PICTURE_BYTES = 96 * 2**20

Companions = Sequence[tuple[CompanionRole, Geometry]]


def with_companions(
    formulas: Sequence[CostFormula], companions: Companions, lane: Lane, options: EngineOptions, percent: int = 100
) -> tuple[CostFormula, ...]:
    """The model's formulas with what its companions take of each pool; `percent`: as the model's host pool is."""
    beside = [each for role, geometry in companions for each in _formulas(role, geometry, lane, options)]
    return tuple(
        replace(
            formula,
            companions=tuple(
                each.calibrated(percent if each.pool == HOST_POOL else 100)
                for each in beside
                if each.pool == formula.pool
            ),
        )
        for formula in formulas
    )


def _formulas(role: CompanionRole, geometry: Geometry, lane: Lane, options: EngineOptions) -> tuple[CostFormula, ...]:
    match role:
        case CompanionRole.DRAFT:
            return draft_formulas(geometry, lane, options)
        case CompanionRole.PROJECTOR:
            return projector_formulas(geometry, lane, options)
    assert_never(role)


def draft_formulas(geometry: Geometry, lane: Lane, options: EngineOptions) -> tuple[CostFormula, ...]:
    """What a draft model (`-md`) takes beside the model that it drafts for: its own weights, cache and vocabulary.

    It has the model's window and slots, and its cache is F16 whatever the model's is. Process and driver are there.
    (mlx-lm keeps a draft's cache as it keeps the model's, which is less.)
    """
    own = options.model_copy(
        update={"kv_cache_type": KvCacheType.F16, "host_cache_mib": 0, "context_checkpoints": 0, "repack": True}
    )
    if lane.engine is EngineName.MLX:
        (formula,) = cost_formulas(geometry, lane, own, 0)
        return (replace(formula, floor_bytes=formula.floor_bytes - mlx.PROCESS_BYTES),)
    driver = 0 if lane.compute is Compute.CPU else DRIVER_BYTES
    return tuple(
        replace(formula, floor_bytes=formula.floor_bytes - driver - PROCESS_BYTES * (formula.pool == HOST_POOL))
        for formula in cost_formulas(geometry, lane, own, 0)
    )


def projector_formulas(geometry: Geometry, lane: Lane, options: EngineOptions) -> tuple[CostFormula, ...]:
    """What a projector (`--mmproj`) takes: its weights and one pass of its largest tower where the model's layers are,
    and the pictures themselves in host memory.

    Each row of a pass holds the feed-forward layer, three rows of the stream and the patch's pixels; on a processor the
    feed-forward's input once more, in halves, which isn't in the buffer that the engine prints. Scores are never kept
    (`--flash-attn on`).
    """
    rows, width = geometry.context_tokens, geometry.feed_forward_length
    row = (1 + geometry.has_gate) * width + 3 * geometry.embedding_length + _PATCH_NUMBERS
    scratch = _HALF_BYTES * rows * width if lane.compute is Compute.CPU else 0
    pictures = options.slots * _PICTURE_BYTES
    own = CostFormula(
        pool=lane.pool,
        slots=options.slots,
        weights_bytes=geometry.weights_bytes,
        floor_bytes=pictures + scratch if lane.pool == HOST_POOL else 0,
        graph_bytes=_FLOAT_BYTES * rows * row,
        mask_bytes_per_cell=0,
    )
    if lane.pool == HOST_POOL:
        return (own,)
    host = replace(own, pool=HOST_POOL, weights_bytes=0, floor_bytes=pictures, graph_bytes=0)
    return own, host
