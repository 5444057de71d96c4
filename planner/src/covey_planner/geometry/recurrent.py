"""Layers that keep a state of fixed size instead of a KV cache: Mamba's, and LFM2's short convolutions.

Measured on the real engine: a slot has one state per such layer, in 32-bit floats, at every window; the graph copies
the states of all slots for one layer at a time. Only families that were measured are read; every other file with such
keys is refused by name, since a number that nobody measured would be believed.
"""

from dataclasses import dataclass

from covey_planner.geometry.metadata import Metadata
from covey_planner.geometry.reader import HeaderInvalid

_FLOAT_BYTES = 4
# Families whose every layer is recurrent; the others are where the header says zero KV heads.
_WHOLE = frozenset({"mamba", "mamba2"})
_STATE_SPACE = _WHOLE | {"granitehybrid"}
_CONVOLUTION = frozenset({"lfm2", "lfm2moe"})
# Keys that tell of such layers in any family.
_KEYS = ("ssm.", "wkv.", "shortconv.")
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class Recurrent:
    """What the recurrent layers of one model take. All zero: it has none."""

    layers: frozenset[int] = frozenset()
    slot_bytes: int = 0
    layer_bytes: int = 0
    row_length: int = 0


def read_recurrent(metadata: Metadata, architecture: str, layers: int, embedding: int) -> Recurrent:
    """HeaderInvalid for a family whose state was never measured."""
    key = next((key for key in _KEYS if metadata.has_prefix(f"{architecture}.{key}")), None)
    if key is None:
        return Recurrent()
    if architecture in _STATE_SPACE:
        rolling, state, row = _state_space(metadata, architecture, embedding)
    elif architecture in _CONVOLUTION:
        taps = metadata.integer(f"{architecture}.shortconv.l_cache", 1, 1 << 16)
        rolling, state, row = (taps - 1) * embedding, 0, 8 * embedding
    else:
        raise HeaderInvalid(
            f"architecture '{architecture}' keeps recurrent state (`{architecture}.{key}*`), "
            "whose memory was not measured yet; give `spec.geometry` to place it all the same"
        )
    found = _recurrent_layers(metadata, architecture, layers)
    return Recurrent(
        layers=found,
        slot_bytes=_FLOAT_BYTES * (rolling + state) * len(found),
        layer_bytes=_FLOAT_BYTES * (2 * rolling + state),
        row_length=min(row, 1 << 24),
    )


def _state_space(metadata: Metadata, architecture: str, embedding: int) -> tuple[int, int, int]:
    """Numbers of the rolling convolution, of the state, and of one token's row."""
    inner = metadata.integer(f"{architecture}.ssm.inner_size", 1, _MOST)
    state = metadata.integer(f"{architecture}.ssm.state_size", 1, 1 << 16)
    kernel = metadata.integer(f"{architecture}.ssm.conv_kernel", 1, 1 << 10)
    heads = metadata.integer(f"{architecture}.ssm.time_step_rank", 0, 1 << 16, default=0)
    groups = metadata.integer(f"{architecture}.ssm.group_count", 0, 1 << 10, default=0)
    rolling = (kernel - 1) * (inner + 2 * groups * state)
    # Measured: beside attention layers one more row of the stream is alive.
    rows = 1 if architecture in _WHOLE else 2
    return rolling, state * inner, rows * embedding + 6 * inner + 6 * groups * state + heads


def _recurrent_layers(metadata: Metadata, architecture: str, layers: int) -> frozenset[int]:
    if architecture in _WHOLE:
        return frozenset(range(layers))
    heads = metadata.per_layer(f"{architecture}.attention.head_count_kv", layers, 0, 4096) or ()
    return frozenset(layer for layer, count in enumerate(heads) if count == 0)
