"""What mlx-lm's server takes, as a function of the window: the whole is in one pool, since MLX has one kind of memory.

Numbers of `servers.mlx_server` with its stamped options: a cache for each slot in the checkpoint's own type, a copy of
all of them while one more joins those that run, one prefill step in the graph. On a processor attention is not fused:
its scores are there for a step by the window, in 32 bits.
"""

from covey_api.engines import Compute, KvCacheType, Lane
from covey_api.instance import EngineOptions
from covey_api.model import Geometry

# An interpreter with mlx-lm, transformers and a tokenizer, beside its vocabulary: of a process's memory, 150 to 190 MiB
# were neither weights nor KV cache.
PROCESS_BYTES = 176 * 2**20
# The tokenizer's vocabulary, per token: texts, merges and their indexes.
VOCABULARY_BYTES_PER_TOKEN = 1024
# Weights with what the allocator keeps around them.
_METAL_WEIGHTS_PERCENT = 130
_FLOAT_BYTES = 4
_HALF_BYTES = 2
# Blocks of 64 elements with a scale and a bias in 16 bits.
_BLOCK_BITS = {KvCacheType.Q8_0: 8 * 64 + 32, KvCacheType.Q4_0: 4 * 64 + 32}
_BLOCK_ELEMENTS = 64


def element_bytes(geometry: Geometry) -> int:
    """Of activations and caches: what the checkpoint's tensors are, four where each parameter takes that much."""
    is_wide = geometry.weights_bytes >= 3 * geometry.parameter_count > 0
    return _FLOAT_BYTES if is_wide else _HALF_BYTES


def kv_bytes_per_cell(geometry: Geometry, options: EngineOptions) -> int:
    """All layers, for one token of one slot: sliding layers keep what they see, which is counted as the window."""
    counts, sliding = geometry.kv_head_counts, frozenset(geometry.sliding_layers)
    elements = sum(counts) * _head_elements(geometry, is_sliding=False)
    if geometry.sliding_key_length:
        heads = sum(count for layer, count in enumerate(counts) if layer in sliding)
        elements = (sum(counts) - heads) * _head_elements(geometry, is_sliding=False)
        elements += heads * _head_elements(geometry, is_sliding=True)
    if options.kv_cache_type is KvCacheType.F16:
        return elements * element_bytes(geometry)
    return -(-elements // _BLOCK_ELEMENTS) * _BLOCK_BITS[options.kv_cache_type] // 8


def _head_elements(geometry: Geometry, *, is_sliding: bool) -> int:
    """A latent vector is kept once, with what is turned beside it: that is a key's whole length."""
    keys, values = geometry.key_length, geometry.value_length
    if is_sliding:
        keys, values = geometry.sliding_key_length or keys, geometry.sliding_value_length or values
    return keys if geometry.latent_attention else keys + values


def weights_bytes(geometry: Geometry, lane: Lane) -> int:
    """On a processor they are what they are (measured); on Metal 1.23 times as much was measured elsewhere, and none
    here: the system tells no process's use of Metal's memory, so no observation would mend a number that is short.

    Of floats of eight bits mlx-lm makes such of 16 as it loads, but for one layout of them: all are counted so.
    """
    held = geometry.weights_bytes + geometry.unpacked_bytes
    return held if lane.compute is not Compute.METAL else -(-held * _METAL_WEIGHTS_PERCENT // 100)


def process_bytes(geometry: Geometry) -> int:
    return PROCESS_BYTES + VOCABULARY_BYTES_PER_TOKEN * geometry.vocabulary_size


def graph_bytes(geometry: Geometry, options: EngineOptions) -> int:
    """One prefill step: the stream, queries, keys and values, and three rows of the feed-forward; and rows of logits.

    Graphs are lazy: beside what is being computed its inputs live, so the widest stage counts twice.
    """
    attention = 2 * geometry.head_count * geometry.key_length + 4 * geometry.embedding_length
    feed_forward = 3 * geometry.feed_forward_length + 4 * geometry.embedding_length
    row = 2 * max(attention, feed_forward) * element_bytes(geometry)
    logits = 4 * (options.slots + 1) * geometry.vocabulary_size * _FLOAT_BYTES
    return options.micro_batch_tokens * row + logits


def score_bytes_per_cell(geometry: Geometry, lane: Lane, options: EngineOptions) -> int:
    """Scores of attention and their softmax for one cell of the window."""
    if lane.compute is not Compute.CPU:
        return 0
    return 2 * geometry.head_count * options.micro_batch_tokens * _FLOAT_BYTES
