"""Width of a checkpoint's feed-forward layers, and how many experts see a token, from its `config.json`.

A width that isn't said is a refusal, except for families whose own code makes it of the model's width. Where it isn't
said how many of the experts see a token, all do.
"""

from covey_planner.geometry.checkpoint_heads import TWO_LENGTHS
from covey_planner.geometry.json_fields import Fields
from covey_planner.geometry.reader import unmeasured

_MOST = 1 << 24
_WIDTH_KEYS = (
    *("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "block_ff_dim", "hidden_dim", "mlp_hidden_size"),
)
# Wholly recurrent families have none.
_WITHOUT = frozenset({"mamba", "mamba2"})
# Those that are four times as wide as the model where nothing is said.
_FOUR_TIMES = frozenset({"gpt2", "gpt_bigcode", "gptj", "codegen", "falcon", "bloom", "phi-msft"})
_USED_KEYS = (
    *("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k", "moe_k"),
    *("top_k_experts", "num_selected_experts"),
)
_EXPERTS_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
_SHARED_WIDTH_KEYS = (
    *("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size"),
)
_SHARED_KEYS = ("n_shared_experts", "moe_num_shared_experts", "num_shared_experts", "num_shared_expert")
# Beside the experts that are chosen, one of the same width sees every token.
_ONE_SHARED = frozenset({"llama4", "llama4_text"})


def read_feed_forward(fields: Fields, family: str, embedding: int, *, has_sharing: bool) -> tuple[int, int]:
    """Experts that see a token (0: no experts), and the widest feed-forward that one token passes through."""
    width = _width(fields, family, embedding)
    dense = max(width, fields.integer("intermediate_size_mlp", 0, _MOST, 0))
    dense = max(dense, fields.largest(_SHARED_WIDTH_KEYS, 0, _MOST, 0))
    if has_sharing and fields.flag("use_double_wide_mlp", False):
        dense = min(2 * dense, _MOST)
    used = fields.largest(_USED_KEYS, 0, 4096, 0) or fields.largest(_EXPERTS_KEYS, 0, 4096, 0)
    if not used:
        return 0, dense
    expert = fields.largest(("moe_intermediate_size",), 0, _MOST, width)
    beside = fields.largest(_SHARED_WIDTH_KEYS, 0, _MOST, 0)
    beside += expert * fields.largest(_SHARED_KEYS, 0, 64, 1 if family in _ONE_SHARED else 0)
    if family in TWO_LENGTHS:  # a dense layer beside the experts
        beside += dense
    return used, min(max(dense, used * expert + beside), _MOST)


def _width(fields: Fields, family: str, embedding: int) -> int:
    if any(key in fields for key in _WIDTH_KEYS):
        return fields.largest(_WIDTH_KEYS, 0, _MOST, 0)
    if family in _WITHOUT or "moe_intermediate_size" in fields:
        return 0
    if family not in _FOUR_TIMES:
        raise unmeasured(fields.wrong(_WIDTH_KEYS[0], f"an integer between 0 and {_MOST}", None))
    return 4 * embedding
