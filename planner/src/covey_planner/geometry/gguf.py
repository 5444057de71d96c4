"""Geometry from the header of a GGUF file: everything that memory depends on, and nothing of its data.

It owns what llama.cpp's header keys mean. The rule to keep: where a header says something that this module doesn't
know, the answer is either the larger memory (full attention) or a refusal, never a smaller number.

Our own reader, not PyPI's `gguf`: that one needs numpy, maps a whole file, and trusts every count in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from covey_api.companion import PROJECTOR_ARCHITECTURE
from covey_api.model import Geometry

from covey_planner.geometry.metadata import MAX_LAYERS, Metadata, parse_metadata
from covey_planner.geometry.projector import parse_projector
from covey_planner.geometry.reader import HeaderIncomplete, HeaderInvalid, Reader, at
from covey_planner.geometry.recurrent import read_recurrent
from covey_planner.geometry.tensors import MAX_TENSORS, TensorSums, parse_tensors

__all__ = [
    "GgufHeader",
    "HeaderIncomplete",
    "HeaderInvalid",
    "parse_gguf_geometry",
    "parse_gguf_header",
    "parse_gguf_set",
]

_MAGIC = 0x46554747  # "GGUF", little-endian
_VERSIONS = (2, 3)
_MAX_ALIGNMENT = 1 << 16
# Files of one model; the largest known sets have some hundred and sixty.
MAX_SHARDS = 1024
# Families that read a whole text at once and keep nothing of it.
_ENCODERS = frozenset(
    {
        *("bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert"),
        *("modern-bert", "gemma-embedding"),
    }
)
# Of them, those whose feed-forward has no gate. Measured; others count with one, which is more.
_WITHOUT_GATE = frozenset({"bert"})
# Layers from this one on look at the keys and values of an earlier one, whatever the header says.
_FIRST_SHARING_LAYER = {"gemma3n": 20}
# Of these the header says how many layers do, of the next how many at the end are spare heads for speculation, and in
# the last one latent vector is key and value. Elsewhere llama.cpp reads no such keys: there they must change nothing.
_SHARING = frozenset({"gemma4"})
_WITH_SPARE_HEADS = frozenset({"glm4moe", "glm-dsa", "bailingmoe2", "exaone-moe"})
_LATENT = frozenset({"deepseek2", "glm-dsa", "mistral4"})
# Every n-th layer sees the whole window, the others only the sliding one. Architectures that aren't here count as full.
_SLIDING_PERIODS = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "gpt-oss": 2, "gemma4": 1}


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of one file, which may be one of several that hold a model together."""

    metadata: Metadata
    sums: TensorSums


def parse_gguf_geometry(prefix: bytes | memoryview, file_bytes: int) -> Geometry:
    """Geometry of the file of `file_bytes` that begins with `prefix`.

    Raises HeaderIncomplete when a longer prefix is needed, HeaderInvalid when the file can't be used.
    """
    return parse_gguf_set([parse_gguf_header(prefix, file_bytes)])


def parse_gguf_header(prefix: bytes | memoryview, file_bytes: int) -> GgufHeader:
    """One file of a set. Raises as `parse_gguf_geometry` does."""
    reader = Reader(prefix, file_bytes)
    magic = reader.u32("magic")
    if magic != _MAGIC:
        # Without what was found: any file of the machine may be named, and who reads the message may not read that.
        raise HeaderInvalid(f"the file must begin with 'GGUF'; it begins with something else{at(0)}")
    version = reader.u32("version")
    if version not in _VERSIONS:
        raise HeaderInvalid(f"the GGUF version must be 2 or 3, little-endian; got {version}{at(4)}")
    tensor_count = reader.u64("number of tensors")
    metadata = parse_metadata(reader, reader.u64("number of keys"))
    sums = parse_tensors(reader, tensor_count)
    _require_data(reader, metadata, sums)
    return GgufHeader(metadata, sums)


def parse_gguf_set(headers: Sequence[GgufHeader]) -> Geometry:
    """Geometry of all files of one model, in their order; the first one holds what the others lack."""
    if not headers:
        raise HeaderInvalid("a model must have at least one file; got none")
    metadata = headers[0].metadata
    count = metadata.integer("split.count", 0, MAX_SHARDS, default=0) or 1
    if count != len(headers):
        raise HeaderInvalid(f"`split.count` says that the model has {count} files; got {len(headers)} of them")
    sums = headers[0].sums
    for index, header in enumerate(headers):
        number = header.metadata.integer("split.no", 0, MAX_SHARDS, default=0)
        own_count = header.metadata.integer("split.count", 0, MAX_SHARDS, default=0) or 1
        if (number, own_count) != (index, count):
            found = f"`split.no` {number} and `split.count` {own_count}"
            raise HeaderInvalid(f"file {index + 1} must say `split.no` {index} and `split.count` {count}; got {found}")
        sums = sums + header.sums if index else sums
    told = metadata.integer("split.tensors.count", 0, MAX_SHARDS * MAX_TENSORS, default=sums.count)
    if told != sums.count:
        raise HeaderInvalid(f"`split.tensors.count` must be the number of all tensors, {sums.count}; got {told}")
    return _geometry(metadata, sums)


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
    if architecture == PROJECTOR_ARCHITECTURE:
        return parse_projector(metadata, sums)
    layers = metadata.integer(f"{architecture}.block_count", 1, MAX_LAYERS)
    embedding = metadata.integer(f"{architecture}.embedding_length", 1, 1 << 20)
    recurrent = read_recurrent(metadata, architecture, layers, embedding)
    has_attention = len(recurrent.layers) < layers
    heads = _heads(metadata, architecture, layers) if has_attention else (1,) * layers
    kv_heads = metadata.per_layer(f"{architecture}.attention.head_count_kv", layers, 0, 4096) or heads
    without = recurrent.layers | _layers_without_cache(metadata, architecture, layers)
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
        kv_head_counts=tuple(0 if layer in without else count for layer, count in enumerate(kv_heads)),
        key_length=_head_length(metadata, architecture, "key", embedding, heads),
        value_length=_head_length(metadata, architecture, "value", embedding, heads),
        sliding_window_tokens=window,
        sliding_layers=sliding,
        sliding_key_length=_sliding_head_length(metadata, architecture, "key", bool(sliding)),
        sliding_value_length=_sliding_head_length(metadata, architecture, "value", bool(sliding)),
        token_embedding_bytes=sums.embedding_bytes,
        # an encoder has no output for which the embedding would be kept twice
        repack_bytes=sums.matrix_repack_bytes if architecture in _ENCODERS else sums.repack_bytes,
        experts_used=used,
        has_gate=architecture not in _WITHOUT_GATE,
        latent_attention=architecture in _LATENT
        and metadata.integer(f"{architecture}.attention.key_length_mla", 0, 1 << 16, default=0) > 0,
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


def _layers_without_cache(metadata: Metadata, architecture: str, layers: int) -> frozenset[int]:
    """Layers that keep no keys and values: of encoders, those that share another's, and spare heads at the end.

    The spare heads (MTP) predict further tokens; without speculation the engine runs none of them. Their weights count.
    """
    if architecture in _ENCODERS:
        return frozenset(range(layers))
    first = _FIRST_SHARING_LAYER.get(architecture, layers)
    if architecture in _SHARING:
        first = layers - metadata.integer(f"{architecture}.attention.shared_kv_layers", 0, layers - 1, default=0)
    running = layers
    if architecture in _WITH_SPARE_HEADS:
        running -= metadata.integer(f"{architecture}.nextn_predict_layers", 0, layers - 1, default=0)
    return frozenset(range(min(first, running), layers))


def _head_length(metadata: Metadata, architecture: str, part: str, embedding: int, heads: tuple[int, ...]) -> int:
    """Elements of one head; where sliding layers have a longer one and don't count as sliding, that one for all."""
    first = next(count for count in heads if count)
    key = f"{architecture}.attention.{part}_length"
    own = metadata.integer(key, 1, 1 << 16, default=max(1, embedding // first))
    if architecture in _SLIDING_PERIODS:
        return own
    return max(own, metadata.integer(f"{key}_swa", 0, 1 << 16, default=0))


def _sliding_head_length(metadata: Metadata, architecture: str, part: str, slides: bool) -> int:
    key = f"{architecture}.attention.{part}_length_swa"
    return metadata.integer(key, 0, 1 << 16, default=0) if slides else 0


def _sliding(metadata: Metadata, architecture: str, layers: int) -> tuple[int, tuple[int, ...]]:
    """Window and layers of sliding attention; none where it isn't certain that the engine slides there."""
    window = metadata.integer(f"{architecture}.attention.sliding_window", 0, 1 << 30, default=0)
    period = _SLIDING_PERIODS.get(architecture)
    if not window or period is None:
        return 0, ()
    # Some families have their period from the engine and not from the header: a layer slides where both say so.
    usual = frozenset(range(layers)) if period == 1 else _sliding_by(period, layers)
    key = f"{architecture}.attention.sliding_window_pattern"
    if metadata.is_array(key):
        pattern = metadata.per_layer(key, layers, 0, 1) or ()
        return window, tuple(layer for layer, slides in enumerate(pattern) if slides and layer in usual)
    own = _sliding_by(metadata.integer(key, 1, MAX_LAYERS, default=period), layers)
    return window, tuple(sorted(own & usual))


def _sliding_by(period: int, layers: int) -> frozenset[int]:
    """All layers but every n-th."""
    return frozenset(layer for layer in range(layers) if layer % period < period - 1)


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
