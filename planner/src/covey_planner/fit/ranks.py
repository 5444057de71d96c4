"""What one rank of a ring of mlx-lm takes, and of which models there are rings.

A rank of a pipeline has a run of layers, one of a model that is cut across its layers an equal part of each; both have
the table of embeddings and the output whole, since every rank makes tokens of what comes out of the last layer.
"""

from collections.abc import Mapping
from dataclasses import replace

from covey_api.model import Geometry

from covey_planner.fit.estimate import CostFormula
from covey_planner.fit.split import layer_weights, output_bytes
from covey_planner.types import ShapeKind

# As mlx-lm 0.32.2 has them, by `model_type`: whose layers it can give to several ranks in runs, and whose matrices it
# can cut. Others are refused before anything is fetched.
_BOTH = frozenset(
    {
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "joyai_llm_flash", "kimi_k2"),
        *("ministral3", "mistral4", "qwen2", "qwen3_moe"),
    }
)
RING_FAMILIES: Mapping[ShapeKind, frozenset[str]] = {
    ShapeKind.PIPELINE: _BOTH | {"bailing_hybrid", "qwen3_next"},
    ShapeKind.TENSOR: _BOTH | {"gpt_oss", "llama", "minimax", "minimax_m2", "mistral", "qwen3", "step3p5"},
}


def rank_formula(geometry: Geometry, whole: CostFormula) -> CostFormula:
    """Of one rank, with what all layers weigh and keep; nothing is kept of earlier prompts.

    The copy of all caches, which is there while one more joins those that run, is of a rank's own layers too: it is
    counted with them, and not with what each rank has whole.
    """
    return replace(
        whole,
        weights_bytes=_scaled(geometry, whole, layer_weights(geometry)),
        host_cache_bytes=0,
        full_bytes_per_cell=2 * whole.full_bytes_per_cell,
        mask_bytes_per_cell=max(0, whole.mask_bytes_per_cell - whole.slots * whole.full_bytes_per_cell),
    )


def rank_bytes(geometry: Geometry, whole: CostFormula) -> int:
    """What every rank has whole: the table of embeddings and the output, which may be the same."""
    return _scaled(geometry, whole, geometry.token_embedding_bytes + output_bytes(geometry))


def _scaled(geometry: Geometry, whole: CostFormula, count: int) -> int:
    """As the allocator takes it, and as earlier loads taught."""
    return -(-count * whole.weights_bytes // max(1, geometry.weights_bytes))
