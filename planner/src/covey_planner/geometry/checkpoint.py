"""Geometry of a checkpoint: `config.json`, held against the directories of its safetensors files.

It owns what the keys of `config.json` mean. Two rules to keep. What the tensors say is the truth, and a config that
says otherwise is refused with its field: an engine would fail at the load, or take what nobody reserved. And what this
module doesn't know counts as the larger memory (full attention) or is refused, never as a smaller number.

The index alone was the alternative to the directories: it names files and a total, and no shape to hold a config
against.
"""

from dataclasses import dataclass

from covey_api.model import Geometry

from covey_planner.geometry.checkpoint_layers import read_layer_kinds
from covey_planner.geometry.checkpoint_tensors import (
    CheckpointTensors,
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
# Wholly recurrent families name no longest window.
_WITHOUT_POSITIONS = frozenset({"mamba", "mamba2"})
_ENDLESS_TOKENS = 1 << 20
# Families of which every engine keeps one latent vector for each token. Of others that compress their keys some engine
# keeps each head's own (mlx-lm 0.32 of `deepseek_v2` and `minicpm3`), which is more: theirs are counted so.
_LATENT = frozenset({"deepseek_v3", "kimi_k2", "glm4_moe_lite", "mistral4"})


@dataclass(frozen=True, slots=True)
class _Attention:
    """What one layer keeps of a token."""

    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    is_latent: bool = False


def parse_checkpoint(config: bytes, tensors: Directory) -> Geometry:
    """Raises HeaderInvalid, naming the field, when config and tensors can't be one model."""
    whole = parse_object(config, "`config.json`", MAX_CONFIG_BYTES)
    fields = whole.under("text_config") if "text_config" in whole else whole
    family = (fields.text("model_type", "") or whole.text("model_type", ""))[:64]
    if not family:
        raise HeaderInvalid("`model_type` must be in the config; it is missing")
    found = survey_tensors(tensors)
    has_positions = family not in _WITHOUT_POSITIONS
    layers = fields.first_integer(("num_hidden_layers", "n_layer", "n_layers"), 1, MAX_LAYERS)
    embedding = fields.first_integer(("hidden_size", "n_embd", "d_model"), 1, 1 << 20)
    heads = fields.first_integer(("num_attention_heads", "n_head", "n_heads"), 1, 4096, 1)
    vocabulary = fields.integer("vocab_size", 1, 1 << 24)
    bits = _quantised_bits(whole, fields)
    # Before what nobody measured is said: a declared geometry is taken for a sound header alone.
    require_layers(fields, found, layers)
    require_embedding(fields, found, vocabulary, embedding, bits)
    kinds = read_layer_kinds(fields, family, layers, embedding)
    require_output(whole, fields, found)
    attention = _attention(fields, family, found, layers, embedding, heads)
    require_recurrent(fields, found, kinds.recurrent.layers)
    if not attention.is_latent:
        require_keys(fields, found, attention.kv_heads, heads, attention.key_length)
    without = kinds.without_cache | (frozenset(range(layers)) if family in _ENCODERS else frozenset[int]())
    used, feed_forward = _feed_forward(fields)
    return Geometry(
        architecture=family,
        model_type=whole.text("model_type", "")[:64],
        parameter_count=found.elements * 32 // bits if bits else found.elements,
        weights_bytes=found.weights_bytes,
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
        token_embedding_bytes=found.embedding.size_bytes if found.embedding else 0,
        experts_used=used,
        has_gate=family not in _WITHOUT_GATE,
        latent_attention=attention.is_latent,
        recurrent_bytes=kinds.recurrent.slot_bytes,
        recurrent_layer_bytes=kinds.recurrent.layer_bytes,
        recurrent_row_length=kinds.recurrent.row_length,
    )


def _attention(
    fields: Fields, family: str, found: CheckpointTensors, layers: int, embedding: int, heads: int
) -> _Attention:
    """1. No layer compresses its keys: as many heads as the config says, whatever else it says. 2. One latent vector is
    key and value. 3. Every head's own keys and values, made of the latent vector anew."""
    own = fields.integer("head_dim", 1, 1 << 16, max(1, embedding // heads))
    if not found.latents:  # 1
        return _Attention(fields.per_layer("num_key_value_heads", layers, 0, 4096, heads), own, own)
    latent = fields.integer("kv_lora_rank", 1, 1 << 16)
    turned = fields.integer("qk_rope_head_dim", 0, 1 << 16, 0)
    require_latents(fields, found, layers, latent, turned, is_mixed=family not in _LATENT)
    if family in _LATENT:  # 2
        return _Attention((1,) * layers, latent + turned, latent, is_latent=True)
    key = turned + fields.integer("qk_nope_head_dim", 1, 1 << 16)  # 3
    return _Attention((heads,) * layers, key, fields.integer("v_head_dim", 1, 1 << 16))


def _feed_forward(fields: Fields) -> tuple[int, int]:
    """Experts that see a token (0: no experts), and the widest feed-forward that one token passes through."""
    dense = fields.first_integer(("intermediate_size", "n_inner", "ffn_dim"), 0, 1 << 24, 0)
    used = fields.first_integer(("num_experts_per_tok", "num_experts_per_token", "moe_topk"), 0, 4096, 0)
    if not used:
        return 0, dense
    expert = fields.integer("moe_intermediate_size", 0, 1 << 24, dense)
    shared = fields.integer("shared_expert_intermediate_size", 0, 1 << 24, 0)
    shared += expert * fields.integer("n_shared_experts", 0, 64, 0)
    return used, min(max(dense, used * expert + shared), 1 << 24)


def _quantised_bits(whole: Fields, fields: Fields) -> int:
    """Bits of one parameter where several are packed into 32; 0: none are."""
    for place in (whole, fields):
        if "quantization" in place:
            return place.under("quantization").integer("bits", 1, 16)
    return 0
