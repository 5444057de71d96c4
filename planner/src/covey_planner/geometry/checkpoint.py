"""Geometry of a checkpoint: `config.json`, held against the directories of its safetensors files.

It owns what the keys of `config.json` mean. Two rules to keep. What the tensors say is the truth, and a config that
says otherwise is refused with its field: an engine would fail at the load, or take what nobody reserved. And what this
module doesn't know counts as the larger memory (full attention) or is refused, never as a smaller number.

The index alone was the alternative to the directories: it names files and a total, and no shape to hold a config
against.
"""

import re
from dataclasses import dataclass

from covey_api.model import Geometry

from covey_planner.geometry.checkpoint_layers import LayerKinds, read_layer_kinds
from covey_planner.geometry.json_fields import Fields, parse_object
from covey_planner.geometry.metadata import MAX_LAYERS
from covey_planner.geometry.reader import HeaderInvalid
from covey_planner.geometry.safetensors import Directory, Tensor

# Real ones have some kilobytes; a few list every quantised layer by name.
MAX_CONFIG_BYTES = 4 * 1024 * 1024
_ENCODERS = frozenset({"bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "nomic_bert", "modernbert"})
_WITHOUT_GATE = frozenset({"bert", "roberta", "xlm-roberta", "distilbert", "mpnet"})
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")
# Wholly recurrent families name no longest window.
_WITHOUT_POSITIONS = frozenset({"mamba", "mamba2"})
_ENDLESS_TOKENS = 1 << 20
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks)\.(\d{1,4})\.")
# Towers beside the language model: their weights count, their layers don't.
_TOWER = re.compile(r"(?:^|\.)(?:vision|visual|audio|image|multi_modal|mm_|projector|connector|encoder\.vision)")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|word_embeddings|wte|embeddings|tok_embeddings)\.weight$")
_OUTPUT = re.compile(r"(?:^|\.)(?:lm_head|output|embed_out)\.weight$")


@dataclass(frozen=True, slots=True)
class _Tensors:
    """What the directories say."""

    weights_bytes: int
    elements: int
    layers: int
    embedding: Tensor | None
    has_output: bool
    keys: dict[int, tuple[str, Tensor]]
    """The key projection of each layer that has one by a known name."""


def parse_checkpoint(config: bytes, tensors: Directory) -> Geometry:
    """Raises HeaderInvalid, naming the field, when config and tensors can't be one model."""
    whole = parse_object(config, "`config.json`", MAX_CONFIG_BYTES)
    fields = whole.under("text_config") if "text_config" in whole else whole
    family = (fields.text("model_type", "") or whole.text("model_type", ""))[:64]
    if not family:
        raise HeaderInvalid("`model_type` must be in the config; it is missing")
    found = _survey(tensors)
    has_positions = family not in _WITHOUT_POSITIONS
    layers = fields.first_integer(("num_hidden_layers", "n_layer", "n_layers"), 1, MAX_LAYERS)
    embedding = fields.first_integer(("hidden_size", "n_embd", "d_model"), 1, 1 << 20)
    heads = fields.first_integer(("num_attention_heads", "n_head", "n_heads"), 1, 4096, 1)
    kinds = read_layer_kinds(fields, family, layers, embedding)
    key_length, value_length, is_latent = _head_lengths(fields, embedding, heads)
    kv_heads = (1,) * layers if is_latent else fields.per_layer("num_key_value_heads", layers, 0, 4096, heads)
    vocabulary = fields.integer("vocab_size", 1, 1 << 24)
    _require_layers(fields, found, layers)
    bits = _quantised_bits(whole, fields)
    _require_embedding(fields, found, vocabulary, embedding, bits)
    _require_output(whole, fields, found)
    if not is_latent:
        _require_keys(fields, found, kv_heads, key_length, kinds)
    without = kinds.without_cache | (frozenset(range(layers)) if family in _ENCODERS else frozenset[int]())
    used, feed_forward = _feed_forward(fields)
    return Geometry(
        architecture=family,
        parameter_count=found.elements * 32 // bits if bits else found.elements,
        weights_bytes=found.weights_bytes,
        layer_count=layers,
        context_tokens=fields.first_integer(_CONTEXT_KEYS, 1, 1 << 30, None if has_positions else _ENDLESS_TOKENS),
        embedding_length=embedding,
        feed_forward_length=feed_forward,
        head_count=heads,
        vocabulary_size=vocabulary,
        kv_head_counts=tuple(0 if layer in without else count for layer, count in enumerate(kv_heads)),
        key_length=key_length,
        value_length=value_length,
        sliding_window_tokens=kinds.sliding_window if kinds.sliding else 0,
        sliding_layers=kinds.sliding,
        token_embedding_bytes=found.embedding.size_bytes if found.embedding else 0,
        experts_used=used,
        has_gate=family not in _WITHOUT_GATE,
        latent_attention=is_latent,
        recurrent_bytes=kinds.recurrent.slot_bytes,
        recurrent_layer_bytes=kinds.recurrent.layer_bytes,
        recurrent_row_length=kinds.recurrent.row_length,
    )


def _survey(tensors: Directory) -> _Tensors:
    if not tensors:
        raise HeaderInvalid("the files must have tensors; got none")
    numbers: set[int] = set()
    keys: dict[int, tuple[str, Tensor]] = {}
    embedding: Tensor | None = None
    has_output = False
    for name, tensor in tensors.items():
        if _TOWER.search(name):
            continue
        if match := _LAYER.search(name):
            numbers.add(int(match[1]))
            if name.endswith((".k_proj.weight", ".attention.self.key.weight")):
                keys[int(match[1])] = name, tensor
        elif _EMBEDDING.search(name):
            embedding = tensor
        elif _OUTPUT.search(name):
            has_output = True
    return _Tensors(
        weights_bytes=sum(tensor.size_bytes for tensor in tensors.values()),
        elements=sum(tensor.elements for tensor in tensors.values()),
        layers=max(numbers, default=-1) + 1,
        embedding=embedding,
        has_output=has_output,
        keys=keys,
    )


def _require_layers(fields: Fields, found: _Tensors, layers: int) -> None:
    spare = fields.integer("num_nextn_predict_layers", 0, 64, 0)
    if found.layers not in (layers, layers + spare):
        key = "num_hidden_layers" if "num_hidden_layers" in fields else "n_layer"
        raise fields.wrong(key, f"{found.layers}, as many as the tensors have", layers)


def _require_embedding(fields: Fields, found: _Tensors, vocabulary: int, embedding: int, bits: int) -> None:
    if found.embedding is None or len(found.embedding.shape) != 2:
        return
    rows, width = found.embedding.shape
    if found.embedding.dtype == "U32" and bits:
        width = width * 32 // bits
    if rows != vocabulary:
        raise fields.wrong("vocab_size", f"{rows}, as the embedding has rows", vocabulary)
    if width != embedding:
        raise fields.wrong("hidden_size", f"{width}, as the embedding is wide", embedding)


def _require_output(whole: Fields, fields: Fields, found: _Tensors) -> None:
    """A language model without an output matrix answers with its embedding, and must say so."""
    is_decoder = any(name.endswith("ForCausalLM") for name in whole.texts("architectures", 16))
    is_tied = fields.flag("tie_word_embeddings", whole.flag("tie_word_embeddings", True))
    if is_decoder and not is_tied and not found.has_output:
        raise fields.wrong("tie_word_embeddings", "true, as the tensors have no output matrix", False)


def _require_keys(
    fields: Fields, found: _Tensors, kv_heads: tuple[int, ...], key_length: int, kinds: LayerKinds
) -> None:
    for layer, (name, tensor) in sorted(found.keys.items()):
        if layer >= len(kv_heads) or len(tensor.shape) != 2 or layer in kinds.without_cache:
            continue
        rows, wanted = tensor.shape[0], kv_heads[layer] * key_length
        if rows != wanted:
            text = f"{rows} rows by heads of {key_length}, as tensor '{name[:80]}' has"
            raise fields.wrong("num_key_value_heads", text, kv_heads[layer])


def _head_lengths(fields: Fields, embedding: int, heads: int) -> tuple[int, int, bool]:
    """Elements of one key and one value head, and whether one latent vector is both."""
    latent = fields.integer("kv_lora_rank", 0, 1 << 16, 0)
    if latent:
        return latent + fields.integer("qk_rope_head_dim", 0, 1 << 16, 0), latent, True
    own = fields.integer("head_dim", 1, 1 << 16, max(1, embedding // heads))
    return own, own, False


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
