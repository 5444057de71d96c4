"""What vLLM takes on a processor, as a function of the window: an interpreter with torch, and its own paged cache.

One load was measured (the reference's: 0.32 on a processor, a model of 270 MB, 1 GiB for keys and values): three to
four GB in all. What isn't weights or cache is counted as the process, at the upper end. The cache is taken whole at the
start, in whole GiB, since vLLM takes no finer figure there. One step reads a whole prompt: the adapter lets it.
"""

from covey_api.engines import Compute, KvCacheType, Lane
from covey_api.instance import EngineOptions
from covey_api.model import Geometry

# Of the 4 GB that one load took at most, without 1 GiB of cache and 270 MB of weights; rounded up.
PROCESS_BYTES = 2560 * 2**20
# `VLLM_CPU_KVCACHE_SPACE` counts in these, and 0 means its own default of 4.
KV_STEP_BYTES = 2**30
# A tokenizer's vocabulary in Python, per token, as of MLX.
_VOCABULARY_BYTES_PER_TOKEN = 1024
_FLOAT_BYTES = 4
_ELEMENT_BYTES = {KvCacheType.F16: 2, KvCacheType.Q8_0: 1}
_ACTIVATION_BYTES = 2


def kv_bytes_per_cell(geometry: Geometry, options: EngineOptions) -> int:
    """All layers, for one token of one slot. A type that vLLM lacks counts as F16; such a lane is never chosen."""
    elements = sum(geometry.kv_head_counts) * (geometry.key_length + geometry.value_length)
    return elements * _ELEMENT_BYTES.get(options.kv_cache_type, _ACTIVATION_BYTES)


def kv_step_bytes(lane: Lane) -> int:
    return KV_STEP_BYTES if lane.compute is Compute.CPU else 0


def process_bytes(geometry: Geometry) -> int:
    return PROCESS_BYTES + _VOCABULARY_BYTES_PER_TOKEN * geometry.vocabulary_size


def row_bytes(geometry: Geometry) -> int:
    """One token in a step: the widest stage and its inputs."""
    attention = 2 * geometry.head_count * geometry.key_length + 4 * geometry.embedding_length
    feed_forward = 3 * geometry.feed_forward_length + 4 * geometry.embedding_length
    return 2 * max(attention, feed_forward) * _ACTIVATION_BYTES


def logits_bytes(geometry: Geometry, options: EngineOptions) -> int:
    """A row for each sequence, and a copy while one is sampled."""
    return 2 * (options.slots + 1) * geometry.vocabulary_size * _FLOAT_BYTES
