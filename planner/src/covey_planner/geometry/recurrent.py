"""Layers that keep a state of fixed size instead of a KV cache: Mamba's, and LFM2's short convolutions.

Measured on the real engine: a slot has one state per such layer, in 32-bit floats, at every window; the graph copies
the states of all slots for one layer at a time. Only families that were measured are read; every other file with such
keys is refused by name, since a number that nobody measured would be believed.
"""

from dataclasses import dataclass

from covey_planner.geometry.metadata import Metadata
from covey_planner.geometry.reader import GeometryUnmeasured

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


@dataclass(frozen=True, slots=True)
class StateSpace:
    """The sizes of one state-space layer. `heads` and `groups` are zero in the first Mamba."""

    embedding: int
    inner: int
    state: int
    kernel: int
    heads: int
    groups: int
    is_whole: bool
    """Every layer of the model is one."""


def read_recurrent(metadata: Metadata, architecture: str, layers: int, embedding: int) -> Recurrent:
    """GeometryUnmeasured for a family whose state was never measured."""
    key = next((key for key in _KEYS if metadata.has_prefix(f"{architecture}.{key}")), None)
    if key is None:
        return Recurrent()
    found = _recurrent_layers(metadata, architecture, layers)
    if architecture in _STATE_SPACE:
        return of_state_space(found, _state_space(metadata, architecture, embedding))
    if architecture in _CONVOLUTION:
        return of_convolution(found, embedding, metadata.integer(f"{architecture}.shortconv.l_cache", 1, 1 << 16))
    raise GeometryUnmeasured(
        f"architecture '{architecture}' keeps recurrent state (`{architecture}.{key}*`), "
        "whose memory was not measured yet; give `spec.geometry` to place it all the same"
    )


def of_state_space(layers: frozenset[int], sizes: StateSpace) -> Recurrent:
    """A rolling convolution and a state; measured: beside attention layers one more row of the stream is alive."""
    rolling = (sizes.kernel - 1) * (sizes.inner + 2 * sizes.groups * sizes.state)
    rows = 1 if sizes.is_whole else 2
    row = rows * sizes.embedding + 6 * sizes.inner + 6 * sizes.groups * sizes.state + sizes.heads
    return _recurrent(layers, rolling, sizes.state * sizes.inner, row)


def of_convolution(layers: frozenset[int], embedding: int, taps: int) -> Recurrent:
    """A short convolution over the last `taps` rows of the stream."""
    return _recurrent(layers, (taps - 1) * embedding, 0, 8 * embedding)


def _recurrent(layers: frozenset[int], rolling: int, state: int, row: int) -> Recurrent:
    return Recurrent(
        layers=layers,
        slot_bytes=_FLOAT_BYTES * (rolling + state) * len(layers),
        layer_bytes=_FLOAT_BYTES * (2 * rolling + state),
        row_length=min(row, 1 << 24),
    )


def _state_space(metadata: Metadata, architecture: str, embedding: int) -> StateSpace:
    prefix = f"{architecture}.ssm"
    return StateSpace(
        embedding=embedding,
        inner=metadata.integer(f"{prefix}.inner_size", 1, _MOST),
        state=metadata.integer(f"{prefix}.state_size", 1, 1 << 16),
        kernel=metadata.integer(f"{prefix}.conv_kernel", 1, 1 << 10),
        # Mamba calls the rank of its time steps so, which is no number of heads but is as small.
        heads=metadata.integer(f"{prefix}.time_step_rank", 0, 1 << 16, default=0),
        groups=metadata.integer(f"{prefix}.group_count", 0, 1 << 10, default=0),
        is_whole=architecture in _WHOLE,
    )


def _recurrent_layers(metadata: Metadata, architecture: str, layers: int) -> frozenset[int]:
    if architecture in _WHOLE:
        return frozenset(range(layers))
    heads = metadata.per_layer(f"{architecture}.attention.head_count_kv", layers, 0, 4096) or ()
    return frozenset(layer for layer, count in enumerate(heads) if count == 0)
