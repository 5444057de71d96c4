"""What the directories of a checkpoint's safetensors files say, and `config.json` held against it.

It must not know what a family keeps in memory. The rule: a config that says less than the tensors have is refused with
its field. Projections that hold queries, keys and values in one (`qkv_proj`) are laid out by each family in its own
way; those are refused only where they have more rows than the config's heads need.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from covey_planner.geometry.json_fields import Fields
from covey_planner.geometry.reader import HeaderInvalid, unmeasured
from covey_planner.geometry.safetensors import Directory, Tensor

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks)\.(\d{1,4})\.")
# Towers beside the language model, and what predicts further tokens: their weights count, their layers don't.
_TOWER = re.compile(r"(?:^|\.)(?:vision|visual|audio|image|multi_modal|mm_|mtp\.|projector|connector|encoder\.vision)")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|word_embeddings|wte|embeddings|tok_embeddings)\.weight$")
# Of which there may be hundreds of thousands.
_EXPERT = ".experts."
_OUTPUT = re.compile(r"(?:^|\.)(?:lm_head|output|embed_out)\.weight$")
_QUERY = re.compile(r"(?:\.q_proj|\.attention\.self\.query|\.q_lin)\.weight$")
_KEY = re.compile(r"(?:\.k_proj|\.attention\.self\.key)\.weight$")
_FUSED = re.compile(r"\.(?:qkv_proj|Wqkv|wqkv|W_pack|query_key_value|c_attn)\.weight$")
_LATENT = re.compile(r"\.kv_a_proj_with_mqa\.weight$")
# The same however they are packed (`qweight`, `weight_packed`), where a shape says nothing.
_COMPRESSING = re.compile(r"\.kv_a_proj_with_mqa\.")
_ATTENDING = re.compile(
    r"\.(?:k_proj|kv_a_proj_with_mqa|attention\.self\.key|k_lin|qkv_proj|Wqkv|wqkv|W_pack|query_key_value|c_attn)\."
)
# Several numbers in one, beside which scales and offsets are stored.
_PACKED = frozenset({"U32", "I32"})
_BESIDE = (".scales", ".biases", ".qzeros", ".g_idx", ".weight_scale", ".weight_shape", ".weight_zero_point")
# As mlx-lm packs numbers, and how many of them share a scale.
_MLX_BITS = (2, 3, 4, 5, 6, 8)
_MLX_GROUPS = (16, 32, 64, 128)
_EIGHT_BITS = frozenset({"F8_E4M3", "F8_E5M2"})

ByLayer = dict[int, tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class CheckpointTensors:
    """The directories in sums, and by layer the tensors that keys come from, where they have a known name."""

    weights_bytes: int
    parameters: int
    floats_of_eight_bits: int
    """Of which each has a byte."""
    layers: int
    embedding: Tensor | None
    embedding_name: str
    embedding_scales: Tensor | None
    has_output: bool
    is_bare: bool
    """Whether they were saved without what makes tokens of the last layer."""
    queries: ByLayer
    keys: ByLayer
    fused: ByLayer
    latents: ByLayer
    attending: frozenset[int]
    """Layers with keys of their own, in whatever form."""
    compressing: frozenset[int]
    """Layers that make a latent vector of them."""


def survey_tensors(tensors: Directory, bits: int) -> CheckpointTensors:
    """`bits`: of one parameter where several are packed into 32; 0: none are."""
    if not tensors:
        raise HeaderInvalid("the files must have tensors; got none")
    numbers: set[int] = set()
    kept: dict[re.Pattern[str], ByLayer] = {_QUERY: {}, _KEY: {}, _FUSED: {}, _LATENT: {}}
    embedding: Tensor | None = None
    embedding_name = ""
    has_output = False
    attending: set[int] = set()
    compressing: set[int] = set()
    for name, tensor in tensors.items():
        if _TOWER.search(name):
            continue
        if match := _LAYER.search(name):
            number = int(match[1])
            numbers.add(number)
            if _EXPERT in name:
                continue
            if _ATTENDING.search(name):
                attending.add(number)
            if _COMPRESSING.search(name):
                compressing.add(number)
            for pattern, by_layer in kept.items():
                if pattern.search(name):
                    by_layer[number] = name, tensor
        elif _EMBEDDING.search(name):
            embedding, embedding_name = tensor, name
        elif _OUTPUT.search(name):
            has_output = True
    return CheckpointTensors(
        weights_bytes=sum(tensor.size_bytes for tensor in tensors.values()),
        parameters=sum(_parameters(name, tensor, bits) for name, tensor in tensors.items()),
        floats_of_eight_bits=sum(tensor.elements for tensor in tensors.values() if tensor.dtype in _EIGHT_BITS),
        layers=max(numbers, default=-1) + 1,
        embedding=embedding,
        embedding_name=embedding_name,
        embedding_scales=tensors.get(f"{embedding_name.removesuffix('weight')}scales"),
        has_output=has_output,
        is_bare=any(name.startswith("layers.") for name in tensors),
        queries=kept[_QUERY],
        keys=kept[_KEY],
        fused=kept[_FUSED],
        latents=kept[_LATENT],
        attending=frozenset(attending),
        compressing=frozenset(compressing),
    )


def _parameters(name: str, tensor: Tensor, bits: int) -> int:
    """For people, and to tell how wide a checkpoint's numbers are."""
    if not bits or tensor.dtype not in _PACKED:
        return 0 if bits and name.endswith(_BESIDE) else tensor.elements
    return 0 if name.endswith(_BESIDE) else tensor.elements * 32 // bits


def require_layers(fields: Fields, found: CheckpointTensors, layers: int) -> None:
    spare = fields.integer("num_nextn_predict_layers", 0, 64, 0)
    if found.layers not in (layers, layers + spare):
        key = "num_hidden_layers" if "num_hidden_layers" in fields else "n_layer"
        raise fields.wrong(key, f"{found.layers}, as many as the tensors have", layers)


def require_embedding(fields: Fields, found: CheckpointTensors, vocabulary: int, embedding: int, bits: int) -> None:
    if found.embedding is None or len(found.embedding.shape) != 2:
        return
    rows, width = found.embedding.shape
    if found.embedding.dtype == "U32":
        width = _unpacked_width(found, width, embedding, bits)
    if rows != vocabulary:
        raise fields.wrong("vocab_size", f"{rows}, as the embedding has rows", vocabulary)
    if width != embedding:
        raise fields.wrong("hidden_size", f"{width}, as the embedding is wide", embedding)


def _unpacked_width(found: CheckpointTensors, width: int, embedding: int, bits: int) -> int:
    """As wide as the config's bits make it; mlx-lm goes by the scales beside it where that is not the model's width."""
    said = width * 32 // bits if bits else width
    scales = found.embedding_scales.shape if found.embedding_scales else ()
    is_told = len(scales) == 2 and any(scales[1] * group == embedding for group in _MLX_GROUPS)
    if said != embedding and is_told and any(embedding * each == width * 32 for each in _MLX_BITS):
        return embedding
    return said


def require_output(whole: Fields, fields: Fields, found: CheckpointTensors) -> None:
    """A language model without an output matrix answers with its embedding, and must say so. One that was saved without
    any (`layers.0.…`, as models of embeddings are) makes no tokens."""
    is_decoder = any(name.endswith("ForCausalLM") for name in whole.texts("architectures", 16))
    is_tied = fields.flag("tie_word_embeddings", whole.flag("tie_word_embeddings", True))
    if is_decoder and not is_tied and not found.has_output and not found.is_bare:
        raise fields.wrong("tie_word_embeddings", "true, as the tensors have no output matrix", False)


def require_recurrent(fields: Fields, found: CheckpointTensors, recurrent: Collection[int]) -> None:
    """A layer that has keys keeps them, whatever the config calls it."""
    for layer in sorted(recurrent):
        if held := found.keys.get(layer) or found.fused.get(layer) or found.latents.get(layer):
            field = "layer_types" if "layer_types" in fields else "model_type"
            message = f"must count layer {layer} as attention, as it has tensor '{held[0][:80]}'"
            raise HeaderInvalid(f"`{fields.path}{field}` {message}")


def require_keys(
    fields: Fields, found: CheckpointTensors, kv_heads: tuple[int, ...], heads: int, key_lengths: tuple[int, ...]
) -> None:
    """Layers of which some are as the config says and some aren't have heads of a kind that it tells in other words."""
    as_said: list[int] = []
    wrongs: list[HeaderInvalid] = []
    for layer, (name, tensor) in sorted(found.keys.items()):
        if layer >= len(kv_heads) or len(tensor.shape) != 2:
            continue
        if tensor.shape[0] == kv_heads[layer] * key_lengths[layer]:
            as_said.append(layer)
            continue
        text = f"{tensor.shape[0]} rows by heads of {key_lengths[layer]}, as tensor '{name[:80]}' has"
        wrongs.append(fields.wrong("num_key_value_heads", text, kv_heads[layer]))
    if wrongs:
        raise unmeasured(wrongs[0]) if as_said else wrongs[0]
    for layer, (name, tensor) in sorted(found.fused.items()):
        if layer >= len(kv_heads) or len(tensor.shape) != 2:
            continue
        # Some families keep it the other way round; its other side is the width of the model, which is less.
        rows, most = max(tensor.shape), (heads + 2 * kv_heads[layer]) * key_lengths[layer]
        if rows > most:
            text = f"enough for {rows} rows of queries, keys and values by heads of {key_lengths[layer]}, as tensor "
            raise fields.wrong("num_key_value_heads", f"{text}'{name[:80]}' has", kv_heads[layer])


def require_all_layers(fields: Fields, found: CheckpointTensors, layers: int, without: Collection[int]) -> None:
    """Where the keys of some layers have a known name, all have such: a layer without keeps something else, which a
    config may tell in words that nobody here knows."""
    known = found.attending
    missing = next((layer for layer in range(layers) if layer not in known and layer not in without), None)
    if known and missing is not None:
        raise unmeasured(
            f"layer {missing} has no keys, as other layers have (`{fields.path}num_hidden_layers` is {layers}), and "
            "what it keeps was not measured yet"
        )


def require_latents(
    fields: Fields, found: CheckpointTensors, layers: int, latent: int, turned: int, *, is_mixed: bool
) -> None:
    """Every layer compresses its keys to as much as the config says.

    `is_mixed`: others may do it in some of their layers and keep something else in the rest (`kimi_linear`), which is
    no lie, and which nobody has measured.
    """
    for layer, (name, tensor) in sorted(found.latents.items()):
        if layer < layers and len(tensor.shape) == 2 and tensor.shape[0] != latent + turned:
            text = f"{tensor.shape[0]} with `qk_rope_head_dim` ({turned}), as tensor '{name[:80]}' has rows"
            raise fields.wrong("kv_lora_rank", text, latent)
    missing = next((layer for layer in range(layers) if layer not in found.compressing), None)
    if missing is None:
        return
    wrong = fields.wrong("kv_lora_rank", f"of every layer, and layer {missing} has no 'kv_a_proj_with_mqa'", latent)
    if is_mixed:
        raise unmeasured(wrong)
    raise wrong
