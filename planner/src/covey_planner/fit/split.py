"""What one engine process takes of each of several devices of its machine, when the layers are shared among them.

Each device holds a run of layers with what these keep for every slot, and buffers and a driver of its own, as if it had
the whole graph; the last one also has the output. A device is counted one average layer of weights more than its run
has: layers differ (the first of a mixture of experts are dense). An output matrix of unknown type counts as Q8_0, or
as the embedding where that is larger: files of few bits keep it finer than the rest. Nothing is laid out anew there.
Companions are whole on the first device.
Measured with the real engine on two devices of its RPC backend (tests/integration/test_shared_devices.py).
"""

from collections.abc import Sequence
from dataclasses import replace

from covey_api.model import Geometry

from covey_planner.fit.estimate import CostFormula


def split_formulas(
    geometry: Geometry, formulas: Sequence[CostFormula], pools: Sequence[str], shares: Sequence[int]
) -> tuple[CostFormula, ...]:
    """`formulas`: of one device that has everything, then the host's. `shares`: layers of each of `pools`, in order."""
    whole, *host = formulas
    first = 0
    parts: list[CostFormula] = []
    for pool, share in zip(pools, shares, strict=True):
        run = range(first, first + share)
        first += share
        full, sliding = _kept_share(geometry, whole, run)
        parts.append(
            replace(
                whole,
                pool=pool,
                layers=share,
                weights_bytes=_share(layer_weights(geometry), share, geometry)
                + (output_bytes(geometry) if pool == pools[-1] else 0),
                workspace_bytes=whole.workspace_bytes if pool == pools[0] else 0,
                companions=whole.companions if pool == pools[0] else (),
                full_bytes_per_cell=full,
                sliding_bytes_per_cell=sliding,
                sliding_cells=whole.sliding_cells if sliding else 0,
                recurrent_bytes=_share(whole.recurrent_bytes, share, geometry),
            )
        )
    return (*parts, *host)


def run_formula(geometry: Geometry, whole: CostFormula, run: range) -> CostFormula:
    """Of one of several members: its run of layers, of which `whole` has the weights alone, and all the rest."""
    full, sliding = _kept_share(geometry, whole, run)
    all_sliding = whole.sliding_bytes_per_cell
    checkpoints = -(-whole.checkpoint_bytes_per_cell * sliding // all_sliding) if all_sliding else 0
    return replace(
        whole,
        layers=len(run),
        weights_bytes=_share(whole.weights_bytes, len(run), geometry),
        full_bytes_per_cell=full,
        sliding_bytes_per_cell=sliding,
        sliding_cells=whole.sliding_cells if sliding else 0,
        checkpoint_bytes_per_cell=checkpoints,
        recurrent_bytes=_share(whole.recurrent_bytes, len(run), geometry),
    )


def layer_weights(geometry: Geometry) -> int:
    """All layers' weights, or more: the output's are among them where the file has them."""
    return geometry.weights_bytes - geometry.token_embedding_bytes


def output_bytes(geometry: Geometry) -> int:
    """The output matrix, or more."""
    return max(geometry.token_embedding_bytes, geometry.vocabulary_size * geometry.embedding_length * 34 // 32)


def _share(count: int, share: int, geometry: Geometry) -> int:
    return min(count, -(-count * (share + 1) // geometry.layer_count))


def _kept_share(geometry: Geometry, whole: CostFormula, run: range) -> tuple[int, int]:
    """Bytes of a cell that the layers of a run keep: by their heads, where each layer has its own entry."""
    heads = geometry.kv_head_counts
    if len(heads) != geometry.layer_count:
        return (
            _share(whole.full_bytes_per_cell, len(run), geometry),
            _share(whole.sliding_bytes_per_cell, len(run), geometry),
        )
    # Of an engine that counts all layers as full, none slides.
    is_sliding = geometry.sliding_window_tokens and whole.sliding_bytes_per_cell
    sliding = frozenset(geometry.sliding_layers) if is_sliding else frozenset[int]()
    full_all = sum(count for layer, count in enumerate(heads) if layer not in sliding)
    sliding_all = sum(heads) - full_all
    full = sum(heads[layer] for layer in run if layer not in sliding)
    slides = sum(heads[layer] for layer in run if layer in sliding)
    return (
        -(-whole.full_bytes_per_cell * full // full_all) if full_all else 0,
        -(-whole.sliding_bytes_per_cell * slides // sliding_all) if sliding_all else 0,
    )
