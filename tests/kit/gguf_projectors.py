"""Made-up projectors (`mmproj`): the header and tensors of llama.cpp's kinds, weights of zeros."""

import struct
from collections.abc import Mapping

from kit.gguf import GgufFile, TensorSpec, Typed, array, build, f32, text, u32


def _boolean(value: bool) -> Typed:
    return Typed(7, struct.pack("<?", value))


def build_projector(
    kind: str = "gemma3",
    *,
    layers: int = 2,
    embedding: int = 64,
    feed_forward: int = 128,
    heads: int = 2,
    side: int = 224,
    patch: int = 14,
    output: int = 576,
    more: Mapping[str, Typed] | None = None,
) -> GgufFile:
    """A file that llama.cpp loads, for models of width `output`; `more` adds or replaces keys below `clip.`."""
    three = array(6, [struct.pack("<f", 0.5)] * 3)
    keys: dict[str, Typed] = {
        "has_vision_encoder": _boolean(True),
        "projector_type": text(kind),
        "use_gelu": _boolean(True),
        "vision.image_size": u32(side),
        "vision.patch_size": u32(patch),
        "vision.embedding_length": u32(embedding),
        "vision.feed_forward_length": u32(feed_forward),
        "vision.block_count": u32(layers),
        "vision.attention.head_count": u32(heads),
        "vision.attention.layer_norm_epsilon": f32(1e-6),
        "vision.projection_dim": u32(output),
        "vision.image_mean": three,
        "vision.image_std": three,
    }
    keys |= more or {}
    metadata = {"general.architecture": text("clip")} | {f"clip.{key}": each for key, each in keys.items()}
    tensors = [
        TensorSpec("v.patch_embd.weight", (patch, patch, 3, embedding), "F16"),
        TensorSpec("v.patch_embd.bias", (embedding,), "F32"),
        TensorSpec("v.position_embd.weight", (embedding, (side // patch) ** 2), "F32"),
        TensorSpec("v.post_ln.weight", (embedding,), "F32"),
        TensorSpec("v.post_ln.bias", (embedding,), "F32"),
        TensorSpec("mm.input_projection.weight", (output, embedding), "F16"),
        TensorSpec("mm.soft_emb_norm.weight", (embedding,), "F32"),
    ]
    for layer in range(layers):
        tensors += _layer(f"v.blk.{layer}", embedding, feed_forward)
    return build(metadata, tensors)


def _layer(prefix: str, embedding: int, feed_forward: int) -> list[TensorSpec]:
    matrices = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (embedding, embedding))
    matrices |= {"ffn_up": (embedding, feed_forward), "ffn_down": (feed_forward, embedding)}
    found: list[TensorSpec] = []
    for name, (width, height) in matrices.items():
        found.append(TensorSpec(f"{prefix}.{name}.weight", (width, height), "F16"))
        found.append(TensorSpec(f"{prefix}.{name}.bias", (height,), "F32"))
    norms = [f"{prefix}.{norm}.{part}" for norm in ("ln1", "ln2") for part in ("weight", "bias")]
    return [*found, *(TensorSpec(name, (embedding,), "F32") for name in norms)]
