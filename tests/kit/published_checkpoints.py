"""Checkpoints with the sizes of published ones: names, shapes and types of their tensors, without data.

It shares no code with the readers in `covey_planner.geometry`. Of towers for images and sounds one tensor stands for
all.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kit.checkpoints import Shapes, directory

Named = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Published:
    """`shapes`: of each type, the tensors that have it."""

    config: Mapping[str, object]
    shapes: dict[str, Named]

    def files(self) -> dict[str, tuple[bytes, int]]:
        """By its name, the start of each file and its size: one for each type."""
        found: dict[str, tuple[bytes, int]] = {}
        listed: dict[str, str] = {}
        for dtype, shapes in self.shapes.items():
            name = f"model-{dtype}.safetensors"
            found[name] = directory(shapes, dtype)
            listed |= dict.fromkeys(shapes, name)
        for name, content in (("config.json", self.config), ("model.safetensors.index.json", {"weight_map": listed})):
            text = json.dumps(content).encode()
            found[name] = text, len(text)
        return found


@dataclass(frozen=True, slots=True)
class Decoder:
    """One layer after the other, by Llama's names."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    width: int
    prefix: str = "model."
    tied: bool = True
    without_keys: frozenset[int] = frozenset()
    """Layers whose attention is of another kind."""
    full: frozenset[int] = frozenset()
    full_kv_heads: int = 0
    full_head: int = 0
    """Of the layers in `full`, where those differ."""
    latent: int = 0
    """Rows of the latent vector's projection, in the place of keys and values."""
    experts: int = 0
    expert_width: int = 0
    dense_layers: int = 0
    """With experts: the first layers, which have none."""
    spare_layers: int = 0
    extra: Named = field(default_factory=dict[str, tuple[int, ...]])

    def tensors(self) -> Named:
        found = dict(self._all())
        return {f"{name}.weight": shape for name, shape in found.items()} | self.extra

    def _all(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{self.prefix}embed_tokens", (self.vocabulary, self.hidden)
        yield f"{self.prefix}norm", (self.hidden,)
        if not self.tied:
            head = self.prefix.removesuffix("model.") if self.prefix.endswith("model.") else ""
            yield f"{head}lm_head", (self.vocabulary, self.hidden)
        for layer in range(self.layers + self.spare_layers):
            place = f"{self.prefix}layers.{layer}"
            yield f"{place}.input_layernorm", (self.hidden,)
            if layer not in self.without_keys:
                yield from self._attention(layer, f"{place}.self_attn")
            yield from self._feed_forward(layer, f"{place}.mlp")

    def _attention(self, layer: int, place: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        is_full = layer in self.full
        head = self.full_head if is_full else self.head
        kv_heads = self.full_kv_heads if is_full else self.kv_heads
        yield f"{place}.q_proj", (self.heads * head, self.hidden)
        yield f"{place}.o_proj", (self.hidden, self.heads * head)
        if self.latent:
            yield f"{place}.kv_a_proj_with_mqa", (self.latent, self.hidden)
            return
        yield f"{place}.k_proj", (kv_heads * head, self.hidden)
        yield f"{place}.v_proj", (kv_heads * head, self.hidden)

    def _feed_forward(self, layer: int, place: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        is_sparse = self.experts and layer >= self.dense_layers
        places = [f"{place}.experts.{number}" for number in range(self.experts)] if is_sparse else [place]
        width = self.expert_width if is_sparse else self.width
        for each in places:
            yield f"{each}.gate_proj", (width, self.hidden)
            yield f"{each}.up_proj", (width, self.hidden)
            yield f"{each}.down_proj", (self.hidden, width)


def packed(shapes: Shapes, bits: int, group: int, *, only: str = "") -> tuple[Named, Named]:
    """As mlx-lm packs matrices whose name has `only`: numbers of 32 bits, and scales and offsets of 16."""
    numbers: Named = {}
    beside: Named = {}
    for name, shape in shapes.items():
        if len(shape) != 2 or only not in name:
            continue
        rows, width = shape
        place = name.removesuffix("weight")
        numbers[name] = (rows, width * bits // 32)
        beside |= {f"{place}scales": (rows, width // group), f"{place}biases": (rows, width // group)}
    return numbers, beside


def in_eight_bits(shapes: Shapes, block: int = 128) -> dict[str, Named]:
    """Matrices of the layers as floats of eight bits with a scale for each block; the rest in BF16."""
    eight = {name: shape for name, shape in shapes.items() if len(shape) == 2 and "layers." in name}
    scales = {f"{name}_scale_inv": tuple(-(-length // block) for length in shape) for name, shape in eight.items()}
    rest = {name: shape for name, shape in shapes.items() if name not in eight}
    return {"F8_E4M3": eight, "F32": scales, "BF16": rest}
