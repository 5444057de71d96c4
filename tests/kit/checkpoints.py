"""Made-up checkpoints: `config.json` and safetensors directories of the shapes that `kit.gguf` makes files of.

It shares no code with the readers in `covey_planner.geometry`, so that a wrong idea of the format can't hide in both.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.gguf import Shape

_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "U32": 4, "F8_E4M3": 1, "U8": 1, "I32": 4}
_FAMILIES = {"gemma3": "gemma3_text", "qwen3moe": "qwen3_moe"}
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A config and the directories of its files, whose data would be zeros."""

    config: dict[str, object]
    files: tuple[tuple[bytes, int], ...]
    """(directory with its length, bytes of the whole file)"""

    @property
    def config_text(self) -> bytes:
        return json.dumps(self.config).encode()

    def write(self, folder: Path) -> Path:
        """A folder as the hub has it; data are zeros in sparse files, which take no disk."""
        (folder / "config.json").write_bytes(self.config_text)
        count = len(self.files)
        names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
        for name, (header, file_bytes) in zip(names if count > 1 else ["model.safetensors"], self.files, strict=True):
            with (folder / name).open("wb") as file:
                file.write(header)
                file.truncate(file_bytes)
        if count > 1:
            index = {"weight_map": {f"tensor {number}": name for number, name in enumerate(names)}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder


def directory(shapes: Shapes, dtype: str = "BF16") -> tuple[bytes, int]:
    """The head of a file with these tensors, and the bytes of the whole."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = _BYTES[dtype]
        for length in shape:
            size *= length
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text, 8 + len(text) + offset


def build_checkpoint(shape: Shape, *, files: int = 1, **config: object) -> Checkpoint:
    """The same model as `kit.gguf.build_model(shape)` in BF16; `config` adds and replaces keys."""
    names = list(tensor_shapes(shape).items())
    size = -(-len(names) // files)
    parts = [dict(names[start : start + size]) for start in range(0, len(names), size)]
    return Checkpoint(_config(shape) | config, tuple(directory(part) for part in parts))


def _config(shape: Shape) -> dict[str, object]:
    found: dict[str, object] = {
        "architectures": ["MadeUpForCausalLM"],
        "model_type": _FAMILIES.get(shape.architecture, shape.architecture),
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.embedding,
        "intermediate_size": shape.feed_forward,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.context,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
    }
    if shape.head_length:
        found["head_dim"] = shape.head_length
    if shape.sliding_window:
        found["sliding_window"] = shape.sliding_window
    if shape.experts:
        found |= {"num_experts": shape.experts, "num_experts_per_tok": shape.experts_used}
        found["moe_intermediate_size"] = shape.feed_forward
    return found


def tensor_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """All tensors, slowest dimension first."""
    embedding = shape.embedding
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocabulary, embedding)}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        found |= {f"{prefix}.{name}.weight": dimensions for name, dimensions in _layer(shape, layer).items()}
    found["model.norm.weight"] = (embedding,)
    if not shape.tied:
        found["lm_head.weight"] = (shape.vocabulary, embedding)
    return found


def _layer(shape: Shape, layer: int) -> dict[str, tuple[int, ...]]:
    embedding, feed_forward = shape.embedding, shape.feed_forward
    head = shape.head_length or embedding // shape.heads
    kv_heads = shape.kv_heads if isinstance(shape.kv_heads, int) else shape.kv_heads[layer]
    found: dict[str, tuple[int, ...]] = {
        "input_layernorm": (embedding,),
        "post_attention_layernorm": (embedding,),
        "self_attn.q_proj": (shape.heads * head, embedding),
        "self_attn.k_proj": (kv_heads * head, embedding),
        "self_attn.v_proj": (kv_heads * head, embedding),
        "self_attn.o_proj": (embedding, shape.heads * head),
    }
    places: Sequence[str] = [f"mlp.experts.{n}" for n in range(shape.experts)] or ["mlp"]
    for place in places:
        found |= {
            f"{place}.gate_proj": (feed_forward, embedding),
            f"{place}.up_proj": (feed_forward, embedding),
            f"{place}.down_proj": (embedding, feed_forward),
        }
    return found
