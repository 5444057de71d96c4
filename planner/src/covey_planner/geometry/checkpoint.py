"""Geometry of a checkpoint: `config.json`, held against the directories of its safetensors files.

It owns what the keys of `config.json` mean. Two rules to keep. What the tensors say is the truth, and a config that
says otherwise is refused with its field: an engine would fail at the load, or take what nobody reserved. And what this
module doesn't know counts as the larger memory (full attention) or is refused, never as a smaller number.

The index alone was the alternative to the directories: it names files and a total, and no shape to hold a config
against.
"""

from collections.abc import Mapping

from covey_api.model import Geometry

from covey_planner.geometry.checkpoint_feed_forward import read_feed_forward
from covey_planner.geometry.checkpoint_heads import read_attention, read_head_count
from covey_planner.geometry.checkpoint_layers import read_layer_kinds
from covey_planner.geometry.checkpoint_packed import read_packing
from covey_planner.geometry.checkpoint_tensors import (
    require_all_layers,
    require_embedding,
    require_keys,
    require_layers,
    require_output,
    require_recurrent,
    survey_tensors,
)
from covey_planner.geometry.json_fields import Fields, parse_object
from covey_planner.geometry.metadata import MAX_LAYERS
from covey_planner.geometry.reader import HeaderInvalid, unmeasured
from covey_planner.geometry.safetensors import Directory

# Real ones have some kilobytes; a few list every quantised layer by name.
MAX_CONFIG_BYTES = 4 * 1024 * 1024
_ENCODERS = frozenset({"bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "nomic_bert", "modernbert"})
_WITHOUT_GATE = frozenset({"bert", "roberta", "xlm-roberta", "distilbert", "mpnet"})
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers")
_WIDTH_KEYS = ("hidden_size", "n_embd", "d_model", "dim")
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
# Wholly recurrent families name no longest window, and have neither heads nor a feed-forward beside.
_WITHOUT_POSITIONS = frozenset({"mamba", "mamba2"})
_ENDLESS_TOKENS = 1 << 20
# What files of a family leave out, as its own code fills it in. Heads and vocabulary are told by the tensors.
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "gemma3": {"head_dim": 256, "max_position_embeddings": 131_072},
    "gemma3_text": {"head_dim": 256, "max_position_embeddings": 131_072},
    "gemma3n_text": {"head_dim": 256, "max_position_embeddings": 32_768, "sliding_window": 512},
    "gemma4": {"head_dim": 256, "max_position_embeddings": 131_072, "sliding_window": 512},
    "gemma4_text": {"head_dim": 256, "max_position_embeddings": 131_072, "sliding_window": 512},
    "gemma4_unified_text": {"head_dim": 256, "max_position_embeddings": 262_144, "sliding_window": 1024},
    "llama4_text": {"max_position_embeddings": 131_072},
    "ministral3": {"head_dim": 128, "max_position_embeddings": 262_144},
    "mistral": {"max_position_embeddings": 131_072},
    "mllama_text_model": {"max_position_embeddings": 131_072},
    "qwen3_vl_text": {"max_position_embeddings": 128_000},
}
# Rows that an embedding has beside those of its vocabulary.
_SPARE_ROWS = {"mllama_text_model": 8}
# Of a text model beside others.
_PLACES = ("text_config", "llm_config", "language_config")


def parse_checkpoint(config: bytes, tensors: Directory) -> Geometry:
    """Raises HeaderInvalid, naming the field, when config and tensors can't be one model."""
    whole = parse_object(config, "`config.json`", MAX_CONFIG_BYTES)
    place = next((key for key in _PLACES if key in whole), None)
    fields = whole.under(place) if place else whole
    family = (fields.text("model_type", "") or whole.text("model_type", ""))[:64]
    if not family:
        raise HeaderInvalid("`model_type` must be in the config; it is missing")
    fields = fields.with_defaults(_DEFAULTS.get(family, {}))
    packing = read_packing(whole, fields)
    found = survey_tensors(tensors, packing.bits)
    has_positions = family not in _WITHOUT_POSITIONS
    layers = _told(fields, _LAYER_KEYS, 1, MAX_LAYERS)
    embedding = _told(fields, _WIDTH_KEYS, 1, 1 << 20)
    rows = found.embedding.shape[0] if found.embedding and len(found.embedding.shape) == 2 else None
    vocabulary = _told(fields, ("vocab_size",), 1, 1 << 24, min(rows, 1 << 24) if rows else None)
    vocabulary += _SPARE_ROWS.get(family, 0)
    # Before what nobody measured is said: a declared geometry is taken for a sound header alone.
    require_layers(fields, found, layers)
    require_embedding(fields, found, vocabulary, embedding, packing.of(found.embedding_name))
    kinds = read_layer_kinds(fields, family, layers, embedding)
    require_output(whole, fields, found)
    heads = read_head_count(fields, found, is_needed=has_positions)
    attention = read_attention(fields, family, found, embedding, heads, layers, kinds.sliding)
    require_recurrent(fields, found, kinds.recurrent.layers)
    if not attention.is_latent:
        require_keys(fields, found, attention.kv_heads, heads, attention.lengths(kinds.sliding))
    without = kinds.without_cache | (frozenset(range(layers)) if family in _ENCODERS else frozenset[int]())
    require_all_layers(fields, found, layers, without)
    used, feed_forward = read_feed_forward(fields, family, embedding, has_sharing=bool(kinds.without_cache))
    return Geometry(
        architecture=family,
        model_type=whole.text("model_type", "")[:64],
        parameter_count=found.parameters,
        weights_bytes=found.weights_bytes,
        unpacked_bytes=found.floats_of_eight_bits,
        layer_count=layers,
        context_tokens=_told(fields, _CONTEXT_KEYS, 1, 1 << 30, None if has_positions else _ENDLESS_TOKENS),
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


def _told(fields: Fields, keys: tuple[str, ...], low: int, high: int, default: int | None = None) -> int:
    """What a family calls otherwise is no lie: a person may say it."""
    if default is None and not any(key in fields for key in keys):
        raise unmeasured(fields.wrong(keys[0], f"an integer between {low} and {high}", None))
    return fields.first_integer(keys, low, high, default)
