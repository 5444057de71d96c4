"""Geometry of a checkpoint: `config.json`, held against the directories of its safetensors files.

It owns what the keys of `config.json` mean. Two rules to keep. What the tensors say is the truth, and a config that
says otherwise is refused with its field: an engine would fail at the load, or take what nobody reserved. And what this
module doesn't know counts as the larger memory (full attention) or is refused, never as a smaller number.

The index alone was the alternative to the directories: it names files and a total, and no shape to hold a config
against.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from covey_api.model import Geometry

from covey_planner.geometry.checkpoint_layers import read_layer_kinds
from covey_planner.geometry.checkpoint_tensors import (
    CheckpointTensors,
    require_all_layers,
    require_embedding,
    require_keys,
    require_latents,
    require_layers,
    require_output,
    require_recurrent,
    survey_tensors,
)
from covey_planner.geometry.json_fields import Fields, parse_object
from covey_planner.geometry.metadata import MAX_LAYERS
from covey_planner.geometry.reader import HeaderInvalid
from covey_planner.geometry.safetensors import Directory

# Real ones have some kilobytes; a few list every quantised layer by name.
MAX_CONFIG_BYTES = 4 * 1024 * 1024
_ENCODERS = frozenset({"bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "nomic_bert", "modernbert"})
_WITHOUT_GATE = frozenset({"bert", "roberta", "xlm-roberta", "distilbert", "mpnet"})
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")
# Wholly recurrent families name no longest window, and have neither heads nor a feed-forward beside.
_WITHOUT_POSITIONS = frozenset({"mamba", "mamba2"})
_ENDLESS_TOKENS = 1 << 20
# Families of which every engine keeps one latent vector for each token. Of others that compress their keys some engine
# keeps each head's own (mlx-lm 0.32 of `deepseek_v2` and `minicpm3`), which is more: theirs are counted so.
_LATENT = frozenset({"deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "mistral4"})
# What files of a family leave out, as its own code fills it in. Heads and vocabulary are told by the tensors.
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "gemma3": {"head_dim": 256, "max_position_embeddings": 131_072},
    "gemma3_text": {"head_dim": 256, "max_position_embeddings": 131_072},
    "gemma4": {"head_dim": 256, "max_position_embeddings": 131_072},
    "gemma4_text": {"head_dim": 256, "max_position_embeddings": 131_072},
    "mistral": {"max_position_embeddings": 131_072},
}
# Families whose full layers have heads of another length than sliding ones.
_TWO_LENGTHS = frozenset({"gemma4", "gemma4_text"})
_USED_KEYS = (
    *("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k"),
    *("top_k_experts", "num_selected_experts"),
)
_EXPERTS_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_FEED_FORWARD_KEYS = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "block_ff_dim", "hidden_dim")


@dataclass(frozen=True, slots=True)
class _Attention:
    """What one layer keeps of a token."""

    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    is_latent: bool = False
    sliding_length: int = 0
    """Of heads in sliding layers; 0: as in the others."""


def parse_checkpoint(config: bytes, tensors: Directory) -> Geometry:
    """Raises HeaderInvalid, naming the field, when config and tensors can't be one model."""
    whole = parse_object(config, "`config.json`", MAX_CONFIG_BYTES)
    fields = whole.under("text_config") if "text_config" in whole else whole
    family = (fields.text("model_type", "") or whole.text("model_type", ""))[:64]
    if not family:
        raise HeaderInvalid("`model_type` must be in the config; it is missing")
    fields = fields.with_defaults(_DEFAULTS.get(family, {}))
    refuse_unread(whole)
    bits = _quantised_bits(whole, fields)
    found = survey_tensors(tensors, bits or _other_bits(whole))
    has_positions = family not in _WITHOUT_POSITIONS
    layers = fields.first_integer(("num_hidden_layers", "n_layer", "n_layers"), 1, MAX_LAYERS)
    embedding = fields.first_integer(("hidden_size", "n_embd", "d_model", "dim"), 1, 1 << 20)
    rows = found.embedding.shape[0] if found.embedding and len(found.embedding.shape) == 2 else None
    vocabulary = fields.integer("vocab_size", 1, 1 << 24, min(rows, 1 << 24) if rows else None)
    # Before what nobody measured is said: a declared geometry is taken for a sound header alone.
    require_layers(fields, found, layers)
    require_embedding(fields, found, vocabulary, embedding, _bits_of(whole, fields, found.embedding_name) or bits)
    heads = _heads(fields, found, is_needed=has_positions)
    kinds = read_layer_kinds(fields, family, layers, embedding)
    require_output(whole, fields, found)
    attention = _attention(fields, family, found, layers, embedding, heads, kinds.sliding)
    require_recurrent(fields, found, kinds.recurrent.layers)
    lengths = [attention.key_length] * layers
    for layer in kinds.sliding if attention.sliding_length else ():
        lengths[layer] = attention.sliding_length
    if not attention.is_latent:
        require_keys(fields, found, attention.kv_heads, heads, tuple(lengths))
    without = kinds.without_cache | (frozenset(range(layers)) if family in _ENCODERS else frozenset[int]())
    require_all_layers(fields, found, layers, without)
    used, feed_forward = _feed_forward(
        fields, 4 * embedding if has_positions else 0, has_shared=bool(kinds.without_cache)
    )
    return Geometry(
        architecture=family,
        model_type=whole.text("model_type", "")[:64],
        parameter_count=found.parameters,
        weights_bytes=found.weights_bytes,
        unpacked_bytes=found.floats_of_eight_bits,
        layer_count=layers,
        context_tokens=fields.first_integer(_CONTEXT_KEYS, 1, 1 << 30, None if has_positions else _ENDLESS_TOKENS),
        embedding_length=embedding,
        feed_forward_length=feed_forward,
        head_count=heads,
        vocabulary_size=vocabulary,
        kv_head_counts=tuple(0 if layer in without else count for layer, count in enumerate(attention.kv_heads)),
        key_length=attention.key_length,
        value_length=attention.value_length,
        sliding_window_tokens=kinds.sliding_window if kinds.sliding else 0,
        sliding_layers=kinds.sliding,
        sliding_key_length=attention.sliding_length if kinds.sliding else 0,
        sliding_value_length=attention.sliding_length if kinds.sliding else 0,
        token_embedding_bytes=found.embedding.size_bytes if found.embedding else 0,
        experts_used=used,
        has_gate=family not in _WITHOUT_GATE,
        latent_attention=attention.is_latent,
        recurrent_bytes=kinds.recurrent.slot_bytes,
        recurrent_layer_bytes=kinds.recurrent.layer_bytes,
        recurrent_row_length=kinds.recurrent.row_length,
    )


def _heads(fields: Fields, found: CheckpointTensors, *, is_needed: bool) -> int:
    """As the config says; where it leaves them out, as the tensors do."""
    keys = ("num_attention_heads", "n_head", "n_heads")
    if any(key in fields for key in keys):
        return fields.first_integer(keys, 1, 4096)
    rows = max((tensor.shape[0] for _, tensor in found.queries.values() if len(tensor.shape) == 2), default=0)
    length = fields.integer("head_dim", 0, 1 << 16, 0)
    if rows and length and not rows % length:
        return min(rows // length, 4096)
    return fields.integer(keys[0], 1, 4096, None if is_needed else 1)


def _attention(
    fields: Fields,
    family: str,
    found: CheckpointTensors,
    layers: int,
    embedding: int,
    heads: int,
    sliding: Collection[int],
) -> _Attention:
    """1. No layer compresses its keys: as many heads as the config says, whatever else it says. 2. One latent vector is
    key and value. 3. Every head's own keys and values, made of the latent vector anew."""
    own = fields.integer("head_dim", 1, 1 << 16, max(1, embedding // heads))
    if not found.latents and family in _TWO_LENGTHS:
        return _attention_of_two_lengths(fields, found, layers, heads, own, sliding)
    if not found.latents:  # 1
        return _Attention(_kv_heads(fields, found, layers, heads, own), own, own)
    latent = fields.integer("kv_lora_rank", 1, 1 << 16)
    turned = fields.integer("qk_rope_head_dim", 0, 1 << 16, 0)
    require_latents(fields, found, layers, latent, turned, is_mixed=family not in _LATENT)
    if family in _LATENT:  # 2
        # What finds the tokens that are looked at has keys of its own, which mlx-lm keeps twice.
        index = 2 * fields.integer("index_head_dim", 0, 1 << 12, 128) if family == "deepseek_v32" else 0
        return _Attention((1,) * layers, latent + turned + index, latent, is_latent=True)
    key = turned + fields.integer("qk_nope_head_dim", 1, 1 << 16)  # 3
    return _Attention((heads,) * layers, key, fields.integer("v_head_dim", 1, 1 << 16))


def _kv_heads(fields: Fields, found: CheckpointTensors, layers: int, heads: int, length: int) -> tuple[int, ...]:
    """As the config says; where it leaves them out, as the tensors do."""
    if "num_key_value_heads" in fields:
        return fields.per_layer("num_key_value_heads", layers, 0, 4096, heads)
    counts = [heads] * layers
    for layer, (_, tensor) in found.keys.items():
        if layer < layers and len(tensor.shape) == 2 and not tensor.shape[0] % length:
            counts[layer] = min(tensor.shape[0] // length, 4096)
    return tuple(counts)


def _attention_of_two_lengths(
    fields: Fields, found: CheckpointTensors, layers: int, heads: int, own: int, sliding: Collection[int]
) -> _Attention:
    """Full layers have longer heads, and fewer where their values are their keys."""
    counts = list(_kv_heads(fields, found, layers, heads, own))
    full = [layer for layer in range(layers) if layer not in sliding]
    if fields.flag("attention_k_eq_v", False) and "num_global_key_value_heads" in fields:
        fewer = fields.integer("num_global_key_value_heads", 1, 4096)
        for layer in full:
            counts[layer] = fewer
    told = next((found.keys[layer][1].shape[0] // max(1, counts[layer]) for layer in full if layer in found.keys), own)
    length = fields.integer("global_head_dim", 1, 1 << 16, min(max(1, told), 1 << 16))
    return _Attention(tuple(counts), length, length, sliding_length=own if own != length else 0)


def _feed_forward(fields: Fields, usual: int, *, has_shared: bool) -> tuple[int, int]:
    """Experts that see a token (0: no experts), and the widest feed-forward that one token passes through. `usual`:
    where nothing is said. Where it isn't said how many experts see a token, all do."""
    dense = fields.largest(_FEED_FORWARD_KEYS, 0, 1 << 24, usual)
    dense = max(dense, fields.integer("shared_intermediate_size", 0, 1 << 24, 0))
    if has_shared and fields.flag("use_double_wide_mlp", False):
        dense = min(2 * dense, 1 << 24)
    used = fields.largest(_USED_KEYS, 0, 4096, 0) or fields.largest(_EXPERTS_KEYS, 0, 4096, 0)
    if not used:
        return 0, dense
    expert = fields.largest(("moe_intermediate_size",), 0, 1 << 24, dense)
    shared = fields.largest(("shared_expert_intermediate_size", "shared_intermediate_size"), 0, 1 << 24, 0)
    shared += expert * fields.largest(("n_shared_experts", "moe_num_shared_experts"), 0, 64, 0)
    return used, min(max(dense, used * expert + shared), 1 << 24)


def refuse_unread(whole: Fields) -> None:
    """Packed in a way that no engine here reads."""
    method = whole.under("quantization_config").text("quant_method", "")
    if method == "bitsandbytes":
        raise whole.under("quantization_config").wrong("quant_method", "one that an engine here reads", method)


def _quantised_bits(whole: Fields, fields: Fields) -> int:
    """Bits of one parameter where several are packed into 32, as mlx-lm does; 0: none are."""
    for place in (whole, fields):
        if "quantization" in place:
            return place.under("quantization").integer("bits", 1, 16)
    return 0


def _bits_of(whole: Fields, fields: Fields, name: str) -> int:
    """Of one tensor that is packed otherwise than the rest; 0: it isn't."""
    for place in (whole, fields):
        said = place.under("quantization")
        own = said.child(name.removesuffix(".weight"))
        if own is not None:
            return own.integer("bits", 1, 16)
    return 0


def _other_bits(whole: Fields) -> int:
    """Of what others than mlx-lm packed (AWQ, GPTQ), for people."""
    said = whole.under("quantization_config")
    return said.largest(("bits", "w_bit"), 0, 64, 0) if said.text("quant_method", "") in ("awq", "gptq") else 0
