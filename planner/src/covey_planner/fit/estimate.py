"""The one estimator: bytes that an engine process takes, from the model's geometry and the stamped options.

The numbers here are llama.cpp's, and hold under the arguments in `fit.options.ASSUMED_ARGUMENTS`. They are upper
bounds, at most 15 % above what the real engine reports (docs/reference/estimator.md; a test holds them against measured
loads). Everything is a function of the window, because the planner searches for the window that fits: `CostFormula` has
what doesn't depend on it, computed once.

Alternatives: asking the engine itself (`--fit`, a dry load) needs the weights on the node before the decision; flat
factors (1.1 for weights, 128 elements a head) are off by half and more on small models and on grouped heads.
"""

from dataclasses import dataclass, replace

from covey_api.engines import HOST_POOL, Compute, EngineName, KvCacheType, Lane
from covey_api.instance import Costs, EngineOptions
from covey_api.model import Geometry

from covey_planner.fit import mlx, vllm

# The engine rounds the cells of each slot up to this.
CELL_STEP = 256
# Bytes of one block of 32 elements in the KV cache.
_KV_BLOCK_BYTES = {KvCacheType.F16: 64, KvCacheType.Q8_0: 34, KvCacheType.Q4_0: 18}
_KV_BLOCK_ELEMENTS = 32
# The engine's process without a model: code, threads, scratch (measured 27 to 36 MiB), and its keeper's (measured 7).
PROCESS_BYTES = 48 * 2**20
# An interpreter with numpy and llama-cpp-python around it: set aside, not measured by itself. In all, a load that took
# 194 MiB at its peak had 457 reserved.
_PYTHON_BYTES = 56 * 2**20
# A request in each slot: texts, buffers, the sampler's row of candidates (measured: 28 MiB for 12 long requests).
_REQUEST_BYTES = 2 * 2**20
_CANDIDATE_BYTES = 16
# Its vocabulary in memory, per token: text, score and the two indexes over it (measured 160 to 200 bytes).
_VOCABULARY_BYTES_PER_TOKEN = 224
# What an accelerator's driver takes in the process and on the device. Not measured: reserved, so that it isn't nothing.
DRIVER_BYTES = 256 * 2**20
_FLOAT_BYTES = 4
_MASK_BYTES = 2
# Positions, token ids and cache indexes of one token in the graph's inputs, in floats' worth.
_INPUT_FLOATS = 8


@dataclass(frozen=True, slots=True)
class CostFormula:
    """What one engine process takes of one pool, as a function of the window of one slot."""

    pool: str
    slots: int
    weights_bytes: int
    floor_bytes: int
    graph_bytes: int
    """Compute and output buffers without the attention masks."""
    mask_bytes_per_cell: int
    host_cache_bytes: int = 0
    workspace_bytes: int = 0
    full_bytes_per_cell: int = 0
    """KV of all layers that see the whole window, for one token of one slot."""
    sliding_bytes_per_cell: int = 0
    checkpoint_bytes_per_cell: int = 0
    """All checkpoints of one slot, for one cell of its sliding layers."""
    sliding_cells: int = 0
    """Most cells that a sliding layer keeps for one slot."""
    checkpoint_cells: int = 0
    """Most cells of a sliding layer in one checkpoint: those that the window still sees."""
    recurrent_bytes: int = 0
    """State of one slot in all recurrent layers; the same at every window."""
    kv_step_bytes: int = 0
    """What the engine rounds its whole cache up to, at least one; 0: to nothing."""
    calibration_percent: int = 100
    """What the computed bytes were scaled to already."""
    layers: int = 0
    """Layers that are in this pool, of a model that several devices share; 0: all that are on a device."""
    is_limit: bool = False
    """Whether these bytes are of another pool, and held against a device's limit within it here (`fit.limits`)."""
    companions: tuple["CostFormula", ...] = ()
    """Of what the engine loads beside the model into this pool (`fit.companions`)."""

    def kv_cache_bytes(self, window: int) -> int:
        cells = _round_up(window)
        sliding = self.sliding_bytes_per_cell * min(cells, self.sliding_cells)
        kept = self.slots * (self.full_bytes_per_cell * cells + sliding + self.recurrent_bytes)
        step = self.kv_step_bytes
        return max(step, -(-kept // step) * step) if step else kept

    def compute_bytes(self, window: int) -> int:
        cells = _round_up(window)
        return self.graph_bytes + self.mask_bytes_per_cell * (cells + min(cells, self.sliding_cells))

    def checkpoint_bytes(self, window: int) -> int:
        return self.slots * self.checkpoint_bytes_per_cell * min(_round_up(window), self.checkpoint_cells)

    def companion_bytes(self, window: int) -> int:
        return sum(each.total_bytes(window) for each in self.companions)

    def total_bytes(self, window: int) -> int:
        """The sum of `costs(window)`, without making one: the planner's inner loop."""
        fixed = self.weights_bytes + self.floor_bytes + self.host_cache_bytes + self.workspace_bytes
        own = fixed + self.kv_cache_bytes(window) + self.compute_bytes(window) + self.checkpoint_bytes(window)
        return own + self.companion_bytes(window) if self.companions else own

    def costs(self, window: int) -> Costs:
        return Costs(
            pool=self.pool,
            weights_bytes=self.weights_bytes,
            kv_cache_bytes=self.kv_cache_bytes(window),
            compute_bytes=self.compute_bytes(window),
            host_cache_bytes=self.host_cache_bytes,
            checkpoint_bytes=self.checkpoint_bytes(window),
            workspace_bytes=self.workspace_bytes,
            floor_bytes=self.floor_bytes,
            companion_bytes=self.companion_bytes(window),
            calibration_percent=self.calibration_percent,
            layers=self.layers,
        )

    def calibrated(self, percent: int) -> "CostFormula":
        """What is computed, scaled; limits and wishes stay themselves, as a cache does that is as large as it is asked
        for."""
        if percent == 100:
            return self
        is_asked_for = bool(self.kv_step_bytes)
        return replace(
            self,
            weights_bytes=_scale(self.weights_bytes, percent),
            floor_bytes=_scale(self.floor_bytes, percent),
            graph_bytes=_scale(self.graph_bytes, percent),
            mask_bytes_per_cell=_scale(self.mask_bytes_per_cell, percent),
            full_bytes_per_cell=_scale(self.full_bytes_per_cell, 100 if is_asked_for else percent),
            sliding_bytes_per_cell=_scale(self.sliding_bytes_per_cell, percent),
            recurrent_bytes=_scale(self.recurrent_bytes, 100 if is_asked_for else percent),
            calibration_percent=percent,
        )


def estimate_costs(geometry: Geometry, lane: Lane, options: EngineOptions, workspace_bytes: int) -> tuple[Costs, ...]:
    """Bytes of one engine process with these options, per pool: the lane's own first, then the host's."""
    formulas = cost_formulas(geometry, lane, options, workspace_bytes)
    return tuple(formula.costs(options.context_tokens) for formula in formulas)


def cost_formulas(
    geometry: Geometry, lane: Lane, options: EngineOptions, workspace_bytes: int, calibration_percent: int = 100
) -> tuple[CostFormula, ...]:
    """The costs for every window, per pool; `options.context_tokens` is not read.

    `calibration_percent`: what earlier loads took of the host's pool, of each hundred that are computed.

    In a pool of its own an accelerator holds layers, output, KV cache and buffers; the host keeps the embedding table,
    its inputs, the process and every cache that `options` puts there. MLX and vLLM have one pool and their own numbers.
    """
    if lane.engine is EngineName.VLLM:
        percent = calibration_percent if lane.pool == HOST_POOL else 100
        return (_vllm_formula(geometry, lane, options, workspace_bytes).calibrated(percent),)
    if lane.engine is EngineName.MLX:
        percent = calibration_percent if lane.pool == HOST_POOL else 100
        return (_mlx_formula(geometry, lane, options, workspace_bytes).calibrated(percent),)
    own = lane.pool != HOST_POOL
    embedding = geometry.token_embedding_bytes if own else 0
    driver = 0 if lane.compute is Compute.CPU else DRIVER_BYTES
    full, sliding = _kv_bytes_per_cell(geometry, lane, options)
    window = geometry.sliding_window_tokens
    sliding_cells, checkpoint_cells = _round_up(window + options.micro_batch_tokens), _round_up(window + 1)
    mask = _MASK_BYTES * options.micro_batch_tokens if any(geometry.kv_head_counts) else 0
    checkpoints = options.context_checkpoints * sliding
    host_cache = options.host_cache_mib * 2**20
    lane_pool = CostFormula(
        pool=lane.pool,
        slots=options.slots,
        weights_bytes=geometry.weights_bytes + options.repack * geometry.repack_bytes - embedding,
        floor_bytes=driver if own else _process_bytes(geometry, lane, options) + driver,
        graph_bytes=_graph_bytes(geometry, lane, options),
        mask_bytes_per_cell=mask,
        host_cache_bytes=0 if own else host_cache,
        workspace_bytes=workspace_bytes,
        full_bytes_per_cell=full,
        sliding_bytes_per_cell=sliding,
        checkpoint_bytes_per_cell=0 if own else checkpoints,
        sliding_cells=sliding_cells if sliding else 0,
        checkpoint_cells=checkpoint_cells,
        recurrent_bytes=geometry.recurrent_bytes,
    )
    if not own:
        return (lane_pool.calibrated(calibration_percent),)
    inputs = options.micro_batch_tokens * (2 * geometry.embedding_length + _INPUT_FLOATS)
    host_pool = CostFormula(
        pool=HOST_POOL,
        slots=options.slots,
        weights_bytes=embedding,
        floor_bytes=_process_bytes(geometry, lane, options) + driver,
        graph_bytes=_FLOAT_BYTES * (inputs + _output_rows(lane, options) * geometry.vocabulary_size),
        mask_bytes_per_cell=mask,
        host_cache_bytes=host_cache,
        checkpoint_bytes_per_cell=checkpoints,
        sliding_cells=sliding_cells if sliding else 0,
        checkpoint_cells=checkpoint_cells,
    )
    return lane_pool, host_pool.calibrated(calibration_percent)


def _mlx_formula(geometry: Geometry, lane: Lane, options: EngineOptions, workspace_bytes: int) -> CostFormula:
    per_cell = mlx.kv_bytes_per_cell(geometry, options)
    return CostFormula(
        pool=lane.pool,
        slots=options.slots,
        weights_bytes=mlx.weights_bytes(geometry, lane),
        floor_bytes=mlx.process_bytes(geometry),
        graph_bytes=mlx.graph_bytes(geometry, options),
        # When one more joins, the caches of all that run are copied into one of the new size: both are there.
        mask_bytes_per_cell=mlx.score_bytes_per_cell(geometry, lane, options) + options.slots * per_cell,
        host_cache_bytes=options.host_cache_mib * 2**20,
        workspace_bytes=workspace_bytes,
        full_bytes_per_cell=per_cell,
        recurrent_bytes=geometry.recurrent_bytes,
    )


def _vllm_formula(geometry: Geometry, lane: Lane, options: EngineOptions, workspace_bytes: int) -> CostFormula:
    """A step has as many rows as a batch or the window, whichever is more: both are counted."""
    row = vllm.row_bytes(geometry)
    return CostFormula(
        pool=lane.pool,
        slots=options.slots,
        weights_bytes=geometry.weights_bytes,
        floor_bytes=vllm.process_bytes(geometry),
        graph_bytes=options.batch_tokens * row + vllm.logits_bytes(geometry, options),
        mask_bytes_per_cell=row,
        workspace_bytes=workspace_bytes,
        full_bytes_per_cell=vllm.kv_bytes_per_cell(geometry, options),
        recurrent_bytes=geometry.recurrent_bytes,
        kv_step_bytes=vllm.kv_step_bytes(lane),
    )


def _kv_bytes_per_cell(geometry: Geometry, lane: Lane, options: EngineOptions) -> tuple[int, int]:
    """Bytes of one cell in full and in sliding layers. A latent vector is its own value, where the build knows that."""
    sliding = frozenset(geometry.sliding_layers) if geometry.sliding_window_tokens else frozenset[int]()
    heads = geometry.kv_head_counts
    sliding_heads = sum(heads[layer] for layer in sliding if layer < len(heads)) if sliding else 0
    full_heads = sum(heads) - sliding_heads
    has_values = not (geometry.latent_attention and lane.digest)
    keys, values = geometry.key_length, geometry.value_length
    sliding_keys, sliding_values = geometry.sliding_key_length or keys, geometry.sliding_value_length or values
    full_head = _row_bytes(keys, options) + has_values * _row_bytes(values, options)
    sliding_head = _row_bytes(sliding_keys, options) + has_values * _row_bytes(sliding_values, options)
    return full_heads * full_head, sliding_heads * sliding_head


def _process_bytes(geometry: Geometry, lane: Lane, options: EngineOptions) -> int:
    requests = options.slots * (_REQUEST_BYTES + _CANDIDATE_BYTES * geometry.vocabulary_size)
    if is_encoder(geometry):  # measured: at its first long text the output buffer grows to a row for every token of it
        requests += _FLOAT_BYTES * options.micro_batch_tokens * (geometry.vocabulary_size + geometry.embedding_length)
    interpreter = _PYTHON_BYTES if lane.engine is EngineName.LLAMA_CPP else 0
    return interpreter + PROCESS_BYTES + _VOCABULARY_BYTES_PER_TOKEN * geometry.vocabulary_size + requests


def is_encoder(geometry: Geometry) -> bool:
    """Whether it reads a whole text at once and keeps nothing of it."""
    return not any(geometry.kv_head_counts) and not geometry.recurrent_bytes


def _graph_bytes(geometry: Geometry, lane: Lane, options: EngineOptions) -> int:
    """Compute buffer of one micro batch without masks of the cache, and the output buffer of all slots.

    Per token the buffer holds the largest of its stages: feed-forward, attention (queries, keys and values twice, four
    rows), and a recurrent layer, for which it also copies each slot's state. An encoder masks its own micro batch.
    """
    embedding = geometry.embedding_length
    kv_heads = max(geometry.kv_head_counts, default=0)
    keys_and_values = kv_heads * (geometry.key_length + geometry.value_length)
    attention = 2 * geometry.head_count * geometry.key_length + keys_and_values + 4 * embedding
    if geometry.latent_attention:  # every head's query and answer are as wide as the one latent vector
        heads_length = 2 * geometry.key_length + geometry.value_length
        attention = geometry.head_count * heads_length + 2 * embedding
    if is_encoder(geometry):
        attention = 6 * embedding
    per_token = max(_feed_forward_row(geometry), attention, geometry.recurrent_row_length) + _INPUT_FLOATS
    logits = _output_rows(lane, options) * geometry.vocabulary_size
    stages = max(options.micro_batch_tokens * per_token, logits)
    mask = _MASK_BYTES * options.micro_batch_tokens**2 if is_encoder(geometry) else 0
    return _FLOAT_BYTES * (stages + logits) + options.slots * geometry.recurrent_layer_bytes + mask


def _feed_forward_row(geometry: Geometry) -> int:
    """Numbers of one token: gate, up and their product beside four rows of the stream; with experts also one row each.

    Without a gate: up alone, beside three rows.
    """
    embedding = geometry.embedding_length
    if not geometry.has_gate:
        return geometry.feed_forward_length + 3 * embedding
    experts = (geometry.experts_used + 1) * embedding if geometry.experts_used else 0
    return 3 * geometry.feed_forward_length + 4 * embedding + experts


def _output_rows(lane: Lane, options: EngineOptions) -> int:
    """Rows of logits. A build that the operator brought (no digest) may be an older one: one per token of a batch."""
    return options.slots if lane.digest else max(options.micro_batch_tokens, options.slots)


def _scale(count: int, percent: int) -> int:
    return -(-count * percent // 100)


def _row_bytes(elements: int, options: EngineOptions) -> int:
    return -(-elements // _KV_BLOCK_ELEMENTS) * _KV_BLOCK_BYTES[options.kv_cache_type]


def _round_up(tokens: int) -> int:
    return -(-tokens // CELL_STEP) * CELL_STEP
