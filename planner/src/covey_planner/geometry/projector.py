"""Geometry from the header of a projector's file (`mmproj`, architecture `clip`): towers that make tokens of images.

`Geometry` is a model's; of a projector it holds its largest tower, with what one pass reads (patches of an image,
frames of sound) as `contextTokens`. The rule to keep: a kind of projector that isn't known reads images of any size,
which is the larger number.
"""

from covey_api.companion import PROJECTOR_ARCHITECTURE
from covey_api.model import Geometry

from covey_planner.geometry.metadata import MAX_LAYERS, Metadata
from covey_planner.geometry.reader import HeaderInvalid
from covey_planner.geometry.tensors import TensorSums

# Tokens that an image of any size becomes at most (`--image-max-tokens`). The engine warms up with 46 x 46 anyway
# (seen in 10434), so that fewer would save nothing.
IMAGE_TOKENS = 2048
_WARM_UP_TOKENS = 46 * 46
# Half a minute of sound, in frames.
_AUDIO_FRAMES = 3000
# These cut or squeeze every image to the size in the header, and have no gate in their feed-forward layers.
_FIXED = frozenset(
    {"mlp", "mlp_norm", "ldp", "ldpv2", "resampler", "adapter", "gemma3", "gemma3nv", "idefics3", "internvl"}
)
_TOWERS = ("vision", "audio")
_MAX_SIDE = 1 << 16


def parse_projector(metadata: Metadata, sums: TensorSums) -> Geometry:
    """The largest tower's. HeaderInvalid when there is none."""
    towers = [tower for tower in _TOWERS if metadata.has_prefix(f"clip.{tower}.")]
    if not towers:
        raise HeaderInvalid("a projector must have `clip.vision` or `clip.audio` keys in its header; it has neither")
    kind = metadata.text_or("clip.projector_type", "")
    found = [_tower(metadata, sums, tower, kind) for tower in towers]
    return max(found, key=lambda each: each.context_tokens * (each.feed_forward_length + 3 * each.embedding_length))


def _tower(metadata: Metadata, sums: TensorSums, tower: str, kind: str) -> Geometry:
    prefix = f"clip.{tower}"
    heads = metadata.integer(f"{prefix}.attention.head_count", 1, 4096)
    embedding = metadata.integer(f"{prefix}.embedding_length", 1, 1 << 20)
    return Geometry(
        architecture=PROJECTOR_ARCHITECTURE,
        parameter_count=sums.parameter_count,
        weights_bytes=sums.weights_bytes,
        layer_count=metadata.integer(f"{prefix}.block_count", 1, MAX_LAYERS),
        context_tokens=_patches(metadata, kind) if tower == "vision" else _AUDIO_FRAMES,
        embedding_length=embedding,
        feed_forward_length=metadata.integer(f"{prefix}.feed_forward_length", 1, 1 << 24),
        head_count=heads,
        vocabulary_size=1,
        kv_head_counts=(),
        key_length=max(1, embedding // heads),
        value_length=max(1, embedding // heads),
        has_gate=kind not in _FIXED,
    )


def _patches(metadata: Metadata, kind: str) -> int:
    """What one pass reads of an image."""
    side = metadata.integer("clip.vision.image_size", 1, _MAX_SIDE)
    patch = metadata.integer("clip.vision.patch_size", 1, side)
    # With one more for the class, which some have.
    grid = (side // patch) ** 2 + 1
    if kind in _FIXED:
        return grid
    merged = max(
        2,
        metadata.integer("clip.vision.spatial_merge_size", 0, 16, default=0),
        metadata.integer("clip.vision.projector.scale_factor", 0, 16, default=0),
    )
    return max(grid, max(IMAGE_TOKENS, _WARM_UP_TOKENS) * merged**2)
