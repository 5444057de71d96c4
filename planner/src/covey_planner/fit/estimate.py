"""The one estimator: bytes that an engine process takes, from the model's geometry and the stamped options.

The numbers are llama.cpp's, and hold under the arguments in `fit.options.ASSUMED_ARGUMENTS`. They are upper bounds, at
most 15 % above what the real engine reports (docs/reference/estimator.md; a test holds them against measured loads).
Everything is a function of the window, because the planner searches for the window that fits: `CostFormula` has what
doesn't depend on it, computed once.

Alternatives: asking the engine itself (`--fit`, a dry load) needs the weights on the node before the decision; flat
factors (1.1 for weights, 128 elements a head) are off by half and more on small models and on grouped heads.
"""

from dataclasses import dataclass

from covey_api.engines import KvCacheType, Lane
from covey_api.instance import Costs, EngineOptions
from covey_api.model import Geometry

# Bytes of one block of 32 elements in the KV cache.
_KV_BLOCK_BYTES = {KvCacheType.F16: 64, KvCacheType.Q8_0: 34, KvCacheType.Q4_0: 18}
_KV_BLOCK_ELEMENTS = 32
# The engine rounds the cells of each slot up to this.
CELL_STEP = 256
# The engine's process without a model: code, threads, scratch (measured 27 to 36 MiB).
_PROCESS_BYTES = 40 * 2**20
# A request in each slot: texts, buffers, the sampler's row of candidates (measured: 28 MiB for 12 long requests).
_REQUEST_BYTES = 2 * 2**20
_CANDIDATE_BYTES = 16
# Its vocabulary in memory, per token: text, score and the two indexes over it (measured 160 to 200 bytes).
_VOCABULARY_BYTES_PER_TOKEN = 224
_FLOAT_BYTES = 4
_MASK_BYTES = 2
# Positions, token ids and cache indexes of one token in the graph's inputs, in floats' worth.
_INPUT_FLOATS = 8


@dataclass(frozen=True, slots=True)
class CostFormula:
    """Costs of one engine process as a function of the window of one slot. All `_bytes` are of the whole process."""

    weights_bytes: int
    floor_bytes: int
    host_cache_bytes: int
    workspace_bytes: int
    graph_bytes: int
    """Compute and output buffers without the attention masks."""
    slots: int
    full_bytes_per_cell: int
    """KV of all layers that see the whole window, for one token of one slot."""
    sliding_bytes_per_cell: int
    sliding_cells: int
    """Most cells that a sliding layer keeps for one slot."""
    mask_bytes_per_cell: int
    checkpoints: int

    def kv_cache_bytes(self, window: int) -> int:
        cells = _round_up(window)
        sliding = self.sliding_bytes_per_cell * min(cells, self.sliding_cells)
        return self.slots * (self.full_bytes_per_cell * cells + sliding)

    def compute_bytes(self, window: int) -> int:
        cells = _round_up(window)
        masked = cells + min(cells, self.sliding_cells)
        return self.graph_bytes + self.mask_bytes_per_cell * masked

    def checkpoint_bytes(self, window: int) -> int:
        cells = min(_round_up(window), self.sliding_cells)
        return self.slots * self.checkpoints * self.sliding_bytes_per_cell * cells

    def total_bytes(self, window: int) -> int:
        """The sum of `costs(window)`, without making one: the planner's inner loop."""
        fixed = self.weights_bytes + self.floor_bytes + self.host_cache_bytes + self.workspace_bytes
        return fixed + self.kv_cache_bytes(window) + self.compute_bytes(window) + self.checkpoint_bytes(window)

    def costs(self, window: int, pool: str) -> Costs:
        return Costs(
            pool=pool,
            weights_bytes=self.weights_bytes,
            kv_cache_bytes=self.kv_cache_bytes(window),
            compute_bytes=self.compute_bytes(window),
            host_cache_bytes=self.host_cache_bytes,
            checkpoint_bytes=self.checkpoint_bytes(window),
            workspace_bytes=self.workspace_bytes,
            floor_bytes=self.floor_bytes,
        )


def estimate_costs(geometry: Geometry, lane: Lane, options: EngineOptions, workspace_bytes: int) -> tuple[Costs, ...]:
    """Bytes per pool of one engine process with these options. Every engine of today fills its lane's pool alone."""
    return (cost_formula(geometry, lane, options, workspace_bytes).costs(options.context_tokens, lane.pool),)


def cost_formula(geometry: Geometry, lane: Lane, options: EngineOptions, workspace_bytes: int) -> CostFormula:
    """The costs for every window; `options.context_tokens` is not read."""
    sliding = frozenset(geometry.sliding_layers) if geometry.sliding_window_tokens else frozenset[int]()
    full_heads = sum(heads for layer, heads in enumerate(geometry.kv_head_counts) if layer not in sliding)
    sliding_heads = sum(heads for layer, heads in enumerate(geometry.kv_head_counts) if layer in sliding)
    head_bytes = _row_bytes(geometry.key_length, options) + _row_bytes(geometry.value_length, options)
    window_cells = _round_up(geometry.sliding_window_tokens + options.micro_batch_tokens) if sliding else 0
    return CostFormula(
        weights_bytes=geometry.weights_bytes + geometry.repack_bytes,
        floor_bytes=_floor_bytes(geometry, options),
        host_cache_bytes=options.host_cache_mib * 2**20,
        workspace_bytes=workspace_bytes,
        graph_bytes=_graph_bytes(geometry, lane, options),
        slots=options.slots,
        full_bytes_per_cell=full_heads * head_bytes,
        sliding_bytes_per_cell=sliding_heads * head_bytes,
        sliding_cells=window_cells,
        mask_bytes_per_cell=_MASK_BYTES * options.micro_batch_tokens,
        checkpoints=options.context_checkpoints,
    )


def _floor_bytes(geometry: Geometry, options: EngineOptions) -> int:
    requests = options.slots * (_REQUEST_BYTES + _CANDIDATE_BYTES * geometry.vocabulary_size)
    return _PROCESS_BYTES + _VOCABULARY_BYTES_PER_TOKEN * geometry.vocabulary_size + requests


def _graph_bytes(geometry: Geometry, lane: Lane, options: EngineOptions) -> int:
    """Compute buffer of one micro batch without masks, and the output buffer of all slots.

    Per token the buffer holds the larger of two stages: feed-forward (gate, up and their product, beside four rows of
    the stream; with experts also one row per expert), and attention (queries, keys and values twice, four rows). The
    output has one row of logits per slot. Builds that the operator brought (a lane without a digest) may be older ones,
    which keep logits for every token of a micro batch.
    """
    embedding = geometry.embedding_length
    feed_forward = 3 * geometry.feed_forward_length + 4 * embedding
    if geometry.experts_used:
        feed_forward += (geometry.experts_used + 1) * embedding
    kv_heads = max(geometry.kv_head_counts, default=0)
    queries = geometry.head_count * geometry.key_length
    attention = 2 * queries + kv_heads * (geometry.key_length + geometry.value_length) + 4 * embedding
    logits = geometry.vocabulary_size * (options.slots if lane.digest else options.micro_batch_tokens)
    per_token = max(feed_forward, attention) + _INPUT_FLOATS
    buffer = max(options.micro_batch_tokens * per_token, geometry.vocabulary_size * options.slots)
    return _FLOAT_BYTES * (buffer + logits)


def _row_bytes(elements: int, options: EngineOptions) -> int:
    return -(-elements // _KV_BLOCK_ELEMENTS) * _KV_BLOCK_BYTES[options.kv_cache_type]


def _round_up(tokens: int) -> int:
    return -(-tokens // CELL_STEP) * CELL_STEP
