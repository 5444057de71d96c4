"""Heads of a checkpoint's attention layers: how many, how long, and which of them one latent vector stands for.

What a config leaves out is told by the shapes of its projections; where neither tells it, nobody does.
"""

from collections.abc import Collection
from dataclasses import dataclass

from covey_planner.geometry.checkpoint_tensors import CheckpointTensors, require_latents
from covey_planner.geometry.json_fields import Fields
from covey_planner.geometry.reader import unmeasured
from covey_planner.geometry.safetensors import Tensor

HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads")
_MOST_HEADS = 4096
_LONGEST = 1 << 16
# Parts that make up one key, so that their sum is none too long.
_LONGEST_PART = 1 << 14
# Families of which every engine keeps one latent vector for each token. Of others that compress their keys some engine
# keeps each head's own (mlx-lm 0.32 of `deepseek_v2` and `minicpm3`), which is more: theirs are counted so.
_INDEXED = frozenset({"deepseek_v32", "glm_moe_dsa"})
_LATENT = _INDEXED | {"deepseek_v3", "kimi_k2", "joyai_llm_flash", "glm4_moe_lite", "mistral4"}
# Families whose full layers have heads of another length than sliding ones.
TWO_LENGTHS = frozenset({"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"})
# Of full layers, where config and tensors don't say it.
_USUAL_FULL_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Attention:
    """What the layers keep of a token."""

    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    is_latent: bool = False
    sliding_length: int = 0
    """Of heads in sliding layers; 0: as in the others."""

    def lengths(self, sliding: Collection[int]) -> tuple[int, ...]:
        """Of a key in each layer."""
        other = self.sliding_length or self.key_length
        return tuple(other if layer in sliding else self.key_length for layer in range(len(self.kv_heads)))


def read_head_count(fields: Fields, found: CheckpointTensors, *, is_needed: bool) -> int:
    """As the config says; where it leaves them out, as the tensors do."""
    if any(key in fields for key in HEAD_KEYS):
        return fields.first_integer(HEAD_KEYS, 1, _MOST_HEADS)
    if not is_needed:
        return 1
    length = fields.integer("head_dim", 0, _LONGEST, 0)
    rows = max((tensor.shape[0] for _, tensor in found.queries.values() if len(tensor.shape) == 2), default=0)
    if not rows or not length or rows % length:
        raise unmeasured(fields.wrong(HEAD_KEYS[0], f"an integer between 1 and {_MOST_HEADS}", None))
    return min(rows // length, _MOST_HEADS)


def read_attention(
    fields: Fields,
    family: str,
    found: CheckpointTensors,
    embedding: int,
    heads: int,
    layers: int,
    sliding: Collection[int],
) -> Attention:
    """1. No layer compresses its keys: as many heads as the config says, whatever else it says. 2. One latent vector is
    key and value. 3. Every head's own keys and values, made of the latent vector anew."""
    own = fields.integer("head_dim", 1, _LONGEST, max(1, embedding // heads))
    if not found.compressing and family in TWO_LENGTHS:
        return _of_two_lengths(fields, found, layers, heads, own, sliding)
    if not found.compressing:  # 1
        return Attention(_kv_heads(fields, found, layers, heads, own), own, own)
    latent = fields.integer("kv_lora_rank", 1, _LONGEST_PART)
    turned = fields.integer("qk_rope_head_dim", 0, _LONGEST_PART, 0)
    require_latents(fields, found, layers, latent, turned, is_mixed=family not in _LATENT)
    if family in _LATENT:  # 2
        # What finds the tokens that are looked at has keys of its own, which mlx-lm keeps twice.
        index = 2 * fields.integer("index_head_dim", 0, 1 << 12, 128) if family in _INDEXED else 0
        return Attention((1,) * layers, latent + turned + index, latent, is_latent=True)
    key = turned + fields.integer("qk_nope_head_dim", 1, _LONGEST_PART)  # 3
    return Attention((heads,) * layers, key, fields.integer("v_head_dim", 1, _LONGEST))


def _kv_heads(fields: Fields, found: CheckpointTensors, layers: int, heads: int, length: int) -> tuple[int, ...]:
    if "num_key_value_heads" in fields:
        return fields.per_layer("num_key_value_heads", layers, 0, _MOST_HEADS, heads)
    return tuple(_told_heads(found, layer, length) or heads for layer in range(layers))


def _told_heads(found: CheckpointTensors, layer: int, length: int) -> int:
    """Heads of a layer's keys by its tensor; 0: it has none, or it doesn't say."""
    rows = _rows(found.keys.get(layer))
    return 0 if rows % length else min(rows // length, _MOST_HEADS)


def _rows(named: tuple[str, Tensor] | None) -> int:
    return named[1].shape[0] if named and len(named[1].shape) == 2 else 0


def _of_two_lengths(
    fields: Fields, found: CheckpointTensors, layers: int, heads: int, own: int, sliding: Collection[int]
) -> Attention:
    """Full layers have longer heads, and fewer where their values are their keys. Newer files say so for each layer by
    its number (`per_layer_config`), as their tensors do."""
    counts = list(_kv_heads(fields, found, layers, heads, own))
    full = [layer for layer in range(layers) if layer not in sliding]
    told = next((rows // heads for layer in full if (rows := _rows(found.queries.get(layer))) and not rows % heads), 0)
    length = fields.integer("global_head_dim", 1, _LONGEST, min(told, _LONGEST) or _USUAL_FULL_LENGTH)
    fewer = 0
    if fields.flag("attention_k_eq_v", False):
        fewer = fields.integer("num_global_key_value_heads", 1, _MOST_HEADS, 0)
    by_tensor = "per_layer_config" in fields or "num_key_value_heads" not in fields
    for layer in full:
        counts[layer] = fewer or (by_tensor and _told_heads(found, layer, length)) or counts[layer]
    return Attention(tuple(counts), length, length, sliding_length=own if own != length else 0)
