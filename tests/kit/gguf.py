"""A tiny GGUF writer: headers of chosen architectures, whole files of zeros where an engine must load them.

It knows only what the tests need: little-endian version 3, and the tensors of llama-like models. It shares no code with
the reader in `covey_planner.geometry`, so that a wrong idea of the format can't hide in both.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ALIGNMENT = 32

# Type numbers of ggml: (number, elements per block, bytes per block).
TENSOR_TYPES = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144),
    "Q6_K": (14, 256, 210),
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value with its GGUF type number and its packed bytes."""

    type: int
    data: bytes


def u32(value: int) -> Typed:
    return Typed(4, struct.pack("<I", value))


def u16(value: int) -> Typed:
    return Typed(2, struct.pack("<H", value))


def i32(value: int) -> Typed:
    return Typed(5, struct.pack("<i", value))


def f32(value: float) -> Typed:
    return Typed(6, struct.pack("<f", value))


def text(value: str) -> Typed:
    return Typed(8, _string(value))


def array(element_type: int, values: Sequence[bytes]) -> Typed:
    return Typed(9, struct.pack("<IQ", element_type, len(values)) + b"".join(values))


def texts(values: Sequence[str]) -> Typed:
    return array(8, [_string(value) for value in values])


def integers(values: Sequence[int]) -> Typed:
    return array(5, [struct.pack("<i", value) for value in values])


def _string(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    shape: tuple[int, ...]
    """Fastest dimension first, as in the file."""
    type: str

    @property
    def bytes(self) -> int:
        _, elements, size = TENSOR_TYPES[self.type]
        count = 1
        for length in self.shape:
            count *= length
        return count // elements * size


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One made-up file: its header, and the length it would have with its data."""

    header: bytes
    file_bytes: int
    tensor_bytes: int

    def write(self, path: Path) -> Path:
        """The whole file; its data are zeros in a sparse file, which take no disk."""
        with path.open("wb") as file:
            file.write(self.header)
            file.truncate(self.file_bytes)
        return path


def build(metadata: Mapping[str, Typed], tensors: Sequence[TensorSpec], *, version: int = 3) -> GgufFile:
    """Header and sizes of a file with this metadata and these tensors."""
    parts = [struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))]
    parts += [_string(key) + struct.pack("<I", value.type) + value.data for key, value in metadata.items()]
    offset = 0
    for tensor in tensors:
        number = TENSOR_TYPES[tensor.type][0]
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts.append(_string(tensor.name) + shape + struct.pack("<IQ", number, offset))
        offset += _aligned(tensor.bytes)
    header = b"".join(parts)
    header += bytes(_aligned(len(header)) - len(header))
    return GgufFile(header, len(header) + offset, sum(tensor.bytes for tensor in tensors))


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Shape:
    """A model to make up. The defaults are small; every number that memory depends on can be set."""

    architecture: str = "llama"
    layers: int = 4
    context: int = 4096
    embedding: int = 256
    feed_forward: int = 512
    heads: int = 8
    kv_heads: int | tuple[int, ...] = 2
    vocabulary: int = 1024
    head_length: int | None = None
    """`attention.key_length` and `value_length`; None leaves them to the default."""
    sliding_window: int = 0
    experts: int = 0
    experts_used: int = 0
    tied: bool = True
    type: str = "Q8_0"


def build_model(shape: Shape, **more: Typed) -> GgufFile:
    """A file that a llama.cpp engine loads; `more` adds metadata below the architecture's prefix."""
    metadata = model_metadata(shape) | {f"{shape.architecture}.{key}": value for key, value in more.items()}
    return build(metadata, model_tensors(shape))


def build_set(shape: Shape, count: int, **first: Typed) -> list[GgufFile]:
    """The model over `count` files, as llama.cpp splits them; `first` replaces keys of the first."""
    tensors = model_tensors(shape)
    size = -(-len(tensors) // count)
    files: list[GgufFile] = []
    for number in range(count):
        keys = {"split.no": u16(number), "split.count": u16(count), "split.tensors.count": i32(len(tensors))}
        metadata = keys if number else model_metadata(shape) | keys | first
        files.append(build(metadata, tensors[number * size : (number + 1) * size]))
    return files


def model_metadata(shape: Shape) -> dict[str, Typed]:
    """Keys of the whole model, a vocabulary with them."""
    prefix = shape.architecture
    kv_heads = shape.kv_heads
    found = {
        "general.architecture": text(shape.architecture),
        "general.name": text("made up"),
        f"{prefix}.block_count": u32(shape.layers),
        f"{prefix}.context_length": u32(shape.context),
        f"{prefix}.embedding_length": u32(shape.embedding),
        f"{prefix}.feed_forward_length": u32(shape.feed_forward),
        f"{prefix}.attention.head_count": u32(shape.heads),
        f"{prefix}.attention.head_count_kv": u32(kv_heads) if isinstance(kv_heads, int) else integers(kv_heads),
        f"{prefix}.attention.layer_norm_rms_epsilon": f32(1e-5),
    }
    if shape.head_length:
        found[f"{prefix}.attention.key_length"] = u32(shape.head_length)
        found[f"{prefix}.attention.value_length"] = u32(shape.head_length)
    if shape.sliding_window:
        found[f"{prefix}.attention.sliding_window"] = u32(shape.sliding_window)
    if shape.experts:
        found[f"{prefix}.expert_count"] = u32(shape.experts)
        found[f"{prefix}.expert_used_count"] = u32(shape.experts_used)
        found[f"{prefix}.expert_feed_forward_length"] = u32(shape.feed_forward)
    return found | tokenizer(shape.vocabulary)


def tokenizer(vocabulary: int) -> dict[str, Typed]:
    """A sentencepiece vocabulary: three specials, all bytes, then numbered words."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [2, 3, 3] + [6] * 256
    tokens += [f"\u2581w{index}" for index in range(vocabulary - len(tokens))]
    types += [1] * (vocabulary - len(types))
    return {
        "tokenizer.ggml.model": text("llama"),
        "tokenizer.ggml.tokens": texts(tokens),
        "tokenizer.ggml.scores": array(6, [struct.pack("<f", -float(index)) for index in range(vocabulary)]),
        "tokenizer.ggml.token_type": integers(types),
        "tokenizer.ggml.bos_token_id": u32(1),
        "tokenizer.ggml.eos_token_id": u32(2),
    }


def model_tensors(shape: Shape) -> list[TensorSpec]:
    """Tensors of the whole model in the names and shapes of its architecture."""
    embedding, kind = shape.embedding, shape.type
    found = [
        TensorSpec("token_embd.weight", (embedding, shape.vocabulary), kind),
        TensorSpec("output_norm.weight", (embedding,), "F32"),
    ]
    if not shape.tied:
        found.append(TensorSpec("output.weight", (embedding, shape.vocabulary), kind))
    for layer in range(shape.layers):
        found += _layer_tensors(shape, layer)
    return found


def _layer_tensors(shape: Shape, layer: int) -> list[TensorSpec]:
    embedding, kind = shape.embedding, shape.type
    head = shape.head_length or embedding // shape.heads
    kv_heads = shape.kv_heads if isinstance(shape.kv_heads, int) else shape.kv_heads[layer]
    weights: dict[str, tuple[int, ...]] = {
        "attn_q": (embedding, shape.heads * head),
        "attn_k": (embedding, kv_heads * head),
        "attn_v": (embedding, kv_heads * head),
        "attn_output": (shape.heads * head, embedding),
    }
    vectors: dict[str, int] = {"attn_norm.weight": embedding, "ffn_norm.weight": embedding}
    if shape.experts:
        weights |= {
            "ffn_gate_exps": (embedding, shape.feed_forward, shape.experts),
            "ffn_up_exps": (embedding, shape.feed_forward, shape.experts),
            "ffn_down_exps": (shape.feed_forward, embedding, shape.experts),
        }
    else:
        weights |= {
            "ffn_gate": (embedding, shape.feed_forward),
            "ffn_up": (embedding, shape.feed_forward),
            "ffn_down": (shape.feed_forward, embedding),
        }
    if shape.architecture == "qwen2":
        vectors |= {"attn_q.bias": shape.heads * head, "attn_k.bias": kv_heads * head, "attn_v.bias": kv_heads * head}
    if shape.architecture in ("gemma3", "qwen3", "qwen3moe"):
        vectors |= {"attn_q_norm.weight": head, "attn_k_norm.weight": head}
    if shape.architecture == "gemma3":
        vectors |= {"post_attention_norm.weight": embedding, "post_ffw_norm.weight": embedding}
    found = [
        TensorSpec(f"blk.{layer}.{name}.weight", dimensions, kind)
        for name, dimensions in weights.items()
        if all(dimensions)  # a layer without KV heads has no such matrix
    ]
    found += [TensorSpec(f"blk.{layer}.{name}", (length,), "F32") for name, length in vectors.items()]
    if shape.experts:
        found.append(TensorSpec(f"blk.{layer}.ffn_gate_inp.weight", (embedding, shape.experts), "F32"))
    return found
