"""Geometry from the header of a GGUF file: everything that memory depends on, and nothing of its data.

It owns what llama.cpp's header keys mean. The rule to keep: where a header says something that this module doesn't
know, the answer is either the larger memory (full attention) or a refusal, never a smaller number.

Our own reader, not PyPI's `gguf`: that one needs numpy, maps a whole file, and trusts every count in it.
"""

from covey_api.model import Geometry

from covey_planner.geometry.metadata import MAX_LAYERS, Metadata, parse_metadata
from covey_planner.geometry.reader import HeaderIncomplete, HeaderInvalid, Reader, at
from covey_planner.geometry.recurrent import read_recurrent
from covey_planner.geometry.tensors import TensorSums, parse_tensors

__all__ = ["HeaderIncomplete", "HeaderInvalid", "parse_gguf_geometry"]

_MAGIC = 0x46554747  # "GGUF", little-endian
_VERSIONS = (2, 3)
_MAX_ALIGNMENT = 1 << 16
# Every n-th layer sees the whole window, the others only the sliding one. Architectures that aren't here count as full.
_SLIDING_PERIODS = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "gpt-oss": 2}


def parse_gguf_geometry(prefix: bytes | memoryview, file_bytes: int) -> Geometry:
    """Geometry of the file of `file_bytes` that begins with `prefix`.

    Raises HeaderIncomplete when a longer prefix is needed, HeaderInvalid when the file can't be used.
    """
    reader = Reader(prefix, file_bytes)
    magic = reader.u32("magic")
    if magic != _MAGIC:
        raise HeaderInvalid(f"the file must begin with 'GGUF'; got {magic.to_bytes(4, 'little')!r}{at(0)}")
    version = reader.u32("version")
    if version not in _VERSIONS:
        raise HeaderInvalid(f"the GGUF version must be 2 or 3, little-endian; got {version}{at(4)}")
    tensor_count = reader.u64("number of tensors")
    metadata = parse_metadata(reader, reader.u64("number of keys"))
    _refuse_split(metadata)
    sums = parse_tensors(reader, tensor_count)
    _require_data(reader, metadata, sums)
    return _geometry(metadata, sums)


def _refuse_split(metadata: Metadata) -> None:
    count = metadata.integer("split.count", 0, 1 << 16, default=0)
    if count > 1:
        raise HeaderInvalid(f"`split.count` must be at most 1 (several files are not supported yet); got {count}")


def _require_data(reader: Reader, metadata: Metadata, sums: TensorSums) -> None:
    """A file that is shorter than its tensors say was cut off."""
    alignment = metadata.integer("general.alignment", 1, _MAX_ALIGNMENT, default=32)
    data_start = -(-reader.position // alignment) * alignment
    end = data_start + max(sums.end_offset, sums.weights_bytes)
    if end > reader.file_bytes:
        raise HeaderInvalid(f"the file must have {end} bytes for all its tensors; got {reader.file_bytes}: cut off?")


def _geometry(metadata: Metadata, sums: TensorSums) -> Geometry:
    architecture = metadata.text("general.architecture")
    if not 0 < len(architecture) <= 64:
        raise HeaderInvalid(f"`general.architecture` must have 1 to 64 characters; got {len(architecture)}")
    if not sums.weights_bytes:
        raise HeaderInvalid("the file must have tensors; got none")
    layers = metadata.integer(f"{architecture}.block_count", 1, MAX_LAYERS)
    embedding = metadata.integer(f"{architecture}.embedding_length", 1, 1 << 20)
    recurrent = read_recurrent(metadata, architecture, layers, embedding)
    has_attention = len(recurrent.layers) < layers
    heads = _heads(metadata, architecture, layers) if has_attention else (1,) * layers
    kv_heads = metadata.per_layer(f"{architecture}.attention.head_count_kv", layers, 0, 4096) or heads
    window, sliding = _sliding(metadata, architecture, layers)
    used, feed_forward = _feed_forward(metadata, architecture, layers)
    return Geometry(
        architecture=architecture,
        parameter_count=sums.parameter_count,
        weights_bytes=sums.weights_bytes,
        layer_count=layers,
        context_tokens=metadata.integer(f"{architecture}.context_length", 1, 1 << 30),
        embedding_length=embedding,
        feed_forward_length=feed_forward,
        head_count=max(heads),
        vocabulary_size=_vocabulary(metadata, architecture, sums),
        kv_head_counts=tuple(0 if layer in recurrent.layers else count for layer, count in enumerate(kv_heads)),
        key_length=_head_length(metadata, architecture, "key", embedding, heads),
        value_length=_head_length(metadata, architecture, "value", embedding, heads),
        sliding_window_tokens=window,
        sliding_layers=sliding,
        token_embedding_bytes=sums.embedding_bytes,
        repack_bytes=sums.repack_bytes,
        experts_used=used,
        latent_attention=metadata.integer(f"{architecture}.attention.key_length_mla", 0, 1 << 16, default=0) > 0,
        recurrent_bytes=recurrent.slot_bytes,
        recurrent_layer_bytes=recurrent.layer_bytes,
        recurrent_row_length=recurrent.row_length,
    )


def _heads(metadata: Metadata, architecture: str, layers: int) -> tuple[int, ...]:
    key = f"{architecture}.attention.head_count"
    heads = metadata.per_layer(key, layers, 0, 4096)
    if heads is None or not any(heads):
        raise HeaderInvalid(f"`{key}` must be in the header and at least 1; it is missing or zero")
    return heads


def _head_length(metadata: Metadata, architecture: str, part: str, embedding: int, heads: tuple[int, ...]) -> int:
    """Elements of one head; where sliding layers have their own length, the longer one counts for all."""
    first = next(count for count in heads if count)
    key = f"{architecture}.attention.{part}_length"
    own = metadata.integer(key, 1, 1 << 16, default=max(1, embedding // first))
    return max(own, metadata.integer(f"{key}_swa", 0, 1 << 16, default=0))


def _sliding(metadata: Metadata, architecture: str, layers: int) -> tuple[int, tuple[int, ...]]:
    """Window and layers of sliding attention; none where it isn't certain that the engine slides there."""
    window = metadata.integer(f"{architecture}.attention.sliding_window", 0, 1 << 30, default=0)
    period = _SLIDING_PERIODS.get(architecture)
    if not window or period is None:
        return 0, ()
    key = f"{architecture}.attention.sliding_window_pattern"
    if metadata.is_array(key):
        pattern = metadata.per_layer(key, layers, 0, 1) or ()
        return window, tuple(layer for layer, slides in enumerate(pattern) if slides)
    period = metadata.integer(key, 1, MAX_LAYERS, default=period)
    return window, tuple(layer for layer in range(layers) if layer % period < period - 1)


def _feed_forward(metadata: Metadata, architecture: str, layers: int) -> tuple[int, int]:
    """Experts that see a token (0: no experts), and the widest feed-forward that one token passes through."""
    dense = max(metadata.per_layer(f"{architecture}.feed_forward_length", layers, 0, 1 << 24) or (0,))
    used = metadata.integer(f"{architecture}.expert_used_count", 0, 4096, default=0)
    if not used:
        return 0, dense
    expert = metadata.integer(f"{architecture}.expert_feed_forward_length", 0, 1 << 24, default=dense)
    shared = metadata.integer(f"{architecture}.expert_shared_feed_forward_length", 0, 1 << 24, default=0)
    return used, min(max(dense, used * expert + shared), 1 << 24)


def _vocabulary(metadata: Metadata, architecture: str, sums: TensorSums) -> int:
    size = metadata.count_of("tokenizer.ggml.tokens") or sums.embedding_rows
    size = size or metadata.integer(f"{architecture}.vocab_size", 0, 1 << 24, default=0)
    if not 0 < size <= 1 << 24:
        raise HeaderInvalid(f"the vocabulary must have 1 to {1 << 24} tokens; got {size}")
    return max(size, min(sums.embedding_rows, 1 << 24))
