"""Which layers of a checkpoint slide, keep a recurrent state, or share another's keys, from its `config.json`."""

from dataclasses import dataclass

from covey_planner.geometry.json_fields import Fields
from covey_planner.geometry.reader import HeaderInvalid, unmeasured
from covey_planner.geometry.recurrent import Recurrent, StateSpace, of_convolution, of_state_space

_SLIDING = "sliding_attention"
# One that sees its own piece of the window counts as full.
_ATTENTION = frozenset({"full_attention", "attention", "chunked_attention", "global_attention", _SLIDING})
# Every n-th layer sees the whole window, where the config doesn't list its layers. Families that aren't here count as
# full: some engines ignore a window that a config names.
_SLIDING_PERIODS = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "gemma4": 6,
    "gemma4_text": 6,
    "gemma4_unified_text": 6,
    "cohere2": 4,
    "gpt_oss": 2,
}
# Families whose last layers look at the keys of earlier ones. In any other the key says nothing that an engine reads.
_SHARING = frozenset({"gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "gemma4_unified_text"})
# Keys that tell of recurrent layers in any family.
_RECURRENT_KEYS = (
    "state_size",
    "ssm_state_size",
    "mamba_num_heads",
    "hybrid_override_pattern",
    "lru_width",
    "layer_group_size",
    "mamba_d_state",
    "conv_L_cache",
    "linear_num_value_heads",
    "ssm_cfg",
    "rwkv",
    "time_mix",
)
# Other names for a list of what the layers are, with its words for those of attention.
_LISTS = ("layers_block_type", "block_types")
_PLAIN = frozenset({*_ATTENTION, "moe", "mlp"})
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """What isn't an ordinary attention layer."""

    sliding_window: int
    sliding: tuple[int, ...]
    recurrent: Recurrent
    without_cache: frozenset[int]


def read_layer_kinds(fields: Fields, family: str, layers: int, embedding: int) -> LayerKinds:
    """GeometryUnmeasured for a family whose state was never measured."""
    types = fields.texts("layer_types", layers)
    if types and len(types) != layers:
        raise HeaderInvalid(f"`{fields.path}layer_types` must have one entry per layer ({layers}); got {len(types)}")
    recurrent = _recurrent(fields, family, types, layers, embedding)
    window = fields.integer("sliding_window", 0, 1 << 30, 0) if fields.flag("use_sliding_window", True) else 0
    sliding = _sliding_layers(fields, family, types, layers) if window else ()
    shared = fields.integer("num_kv_shared_layers", 0, layers - 1, 0) if family in _SHARING else 0
    return LayerKinds(window, sliding, recurrent, recurrent.layers | frozenset(range(layers - shared, layers)))


def _sliding_layers(fields: Fields, family: str, types: tuple[str, ...], layers: int) -> tuple[int, ...]:
    period = _SLIDING_PERIODS.get(family)
    if period is None:
        return ()
    if types:
        return tuple(layer for layer, kind in enumerate(types) if kind == _SLIDING)
    period = fields.integer("sliding_window_pattern", 1, 4096, period)
    return tuple(layer for layer in range(layers) if layer % period < period - 1)


def _recurrent(fields: Fields, family: str, types: tuple[str, ...], layers: int, embedding: int) -> Recurrent:
    strange = frozenset(layer for layer, kind in enumerate(types) if kind not in _ATTENTION)
    match family:
        case "mamba" | "mamba2":
            return of_state_space(frozenset(range(layers)), _whole_state_space(fields, family, embedding))
        case "granitemoehybrid":
            return of_state_space(strange, _hybrid_state_space(fields, embedding))
        case "lfm2" | "lfm2_moe":
            if not types and "full_attn_idxs" in fields:
                strange = frozenset(range(layers)) - set(fields.integers("full_attn_idxs", layers, layers - 1))
            return of_convolution(strange, embedding, fields.integer("conv_L_cache", 1, 1 << 16))
        case _:
            key = next((key for key in _RECURRENT_KEYS if key in fields), None) or _strange_list(fields)
            if strange or key:
                field = f"`{fields.path}{key or 'layer_types'}`"
                raise unmeasured(
                    f"family '{family}' keeps recurrent state ({field}), whose memory was not measured yet"
                )
            return Recurrent()


def _strange_list(fields: Fields) -> str | None:
    """The key of a list that has layers of another kind than attention; None: there is none."""
    for key in _LISTS:
        if any(kind not in _PLAIN for kind in fields.texts(key, 4096)):
            return key
    if "attn_type_list" in fields and 0 in fields.integers("attn_type_list", 4096, 255):
        return "attn_type_list"
    return None


def _whole_state_space(fields: Fields, family: str, embedding: int) -> StateSpace:
    is_second = family == "mamba2"
    inner = fields.integer("expand", 1, 64, 2) * embedding
    rank = fields.integer("time_step_rank", 0, 1 << 16, -(-embedding // 16)) if not is_second else 0
    return StateSpace(
        embedding=embedding,
        inner=fields.integer("intermediate_size", 1, _MOST, inner),
        state=fields.integer("state_size", 1, 1 << 16),
        kernel=fields.integer("conv_kernel", 1, 1 << 10),
        heads=fields.integer("num_heads", 1, 1 << 16) if is_second else rank,
        groups=fields.integer("n_groups", 1, 1 << 10, 1) if is_second else 0,
        is_whole=True,
    )


def _hybrid_state_space(fields: Fields, embedding: int) -> StateSpace:
    heads = fields.integer("mamba_n_heads", 1, 1 << 16)
    return StateSpace(
        embedding=embedding,
        inner=min(heads * fields.integer("mamba_d_head", 1, 1 << 16), _MOST),
        state=fields.integer("mamba_d_state", 1, 1 << 16),
        kernel=fields.integer("mamba_d_conv", 1, 1 << 10),
        heads=heads,
        groups=fields.integer("mamba_n_groups", 1, 1 << 10, 1),
        is_whole=False,
    )
