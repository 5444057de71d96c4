"""Checkpoints as families publish them: what a config leaves out, calls otherwise, or packs in two ways."""

import json
from dataclasses import replace

import pytest
from covey_api.engines import Compute, EngineName, Lane, LaneState
from covey_api.instance import EngineOptions
from covey_api.model import Geometry
from covey_planner.fit import mlx
from covey_planner.geometry.checkpoint import parse_checkpoint
from covey_planner.geometry.reader import GeometryUnmeasured, HeaderInvalid
from covey_planner.geometry.safetensors import Directory, merge_directories, parse_directory
from kit.checkpoints import build_checkpoint, directory, tensor_shapes
from kit.gguf import Shape

SHAPE = Shape(layers=6, embedding=256, heads=8, kv_heads=2, vocabulary=1024)
METAL = Lane(engine=EngineName.MLX, compute=Compute.METAL, state=LaneState.INSTALLABLE)
OPTIONS = EngineOptions(context_tokens=4096, slots=1)


def tensors_of(*parts: tuple[dict[str, tuple[int, ...]], str]) -> Directory:
    return merge_directories([parse_directory(*directory(shapes, dtype)) for shapes, dtype in parts])


def read(
    family: str, shapes: dict[str, tuple[int, ...]] | None = None, without: tuple[str, ...] = (), /, **changes: object
) -> Geometry:
    config = {
        key: value for key, value in build_checkpoint(SHAPE, model_type=family).config.items() if key not in without
    }
    return parse_checkpoint(json.dumps(config | changes).encode(), tensors_of((shapes or tensor_shapes(SHAPE), "BF16")))


def without_keys(*layers: int) -> dict[str, tuple[int, ...]]:
    gone = tuple(f"layers.{layer}.self_attn." for layer in layers)
    return {name: shape for name, shape in tensor_shapes(SHAPE).items() if not any(each in name for each in gone)}


def test_floats_of_eight_bits_are_counted_as_mlx_unpacks_them() -> None:
    shapes = tensor_shapes(SHAPE)
    eight = {name: shape for name, shape in shapes.items() if "proj" in name}
    rest = {name: shape for name, shape in shapes.items() if name not in eight}
    plain = build_checkpoint(SHAPE)
    found = parse_checkpoint(plain.config_text, tensors_of((eight, "F8_E4M3"), (rest, "BF16")))
    whole = parse_checkpoint(plain.config_text, tensors_of((shapes, "BF16")))
    assert found.weights_bytes + found.unpacked_bytes == whole.weights_bytes
    assert whole.unpacked_bytes == 0
    assert mlx.weights_bytes(found, METAL) == mlx.weights_bytes(whole, METAL)


@pytest.mark.parametrize(
    "changes",
    [
        {"hybrid_override_pattern": "M-M*M-"},
        {"ssm_state_size": 128},
        {"mamba_num_heads": 128},
        {"layers_block_type": ["mamba", "attention"]},
        {"block_types": ["recurrent", "recurrent", "attention"]},
        {"attn_type_list": [0, 0, 1]},
        {"layer_group_size": 5},
    ],
)
def test_recurrent_layers_are_known_by_every_name_that_they_have(changes: dict[str, object]) -> None:
    with pytest.raises(GeometryUnmeasured, match=next(iter(changes))):
        read("never-seen", **changes)


def test_lists_that_name_attention_alone_are_no_sign_of_state() -> None:
    found = read("minimax_m2", attn_type_list=[1] * 6, layers_block_type=["attention"] * 6)
    assert found.kv_head_counts == (2,) * 6


def test_layer_without_keys_is_unmeasured_whatever_the_config_calls_it() -> None:
    with pytest.raises(GeometryUnmeasured, match="layer 3 has no keys, as other layers have"):
        read("never-seen", without_keys(3))


def test_lfm2_may_list_its_layers_of_attention() -> None:
    found = read("lfm2", without_keys(0, 1, 3, 4), conv_L_cache=3, full_attn_idxs=[2, 5])
    assert found.kv_head_counts == (0, 0, 2, 0, 0, 2)
    assert found.recurrent_bytes > 0


def test_embedding_may_have_bits_of_its_own() -> None:
    shapes = tensor_shapes(SHAPE)
    name = "model.embed_tokens.weight"
    packed = {each: (*shape[:-1], shape[-1] * 4 // 32) for each, shape in shapes.items() if each != name}
    tensors = tensors_of((packed, "U32"), ({name: (1024, 256 * 8 // 32)}, "U32"))
    own = {"model.embed_tokens": {"bits": 8, "group_size": 64}, "lm_head": False}
    config = build_checkpoint(SHAPE, quantization={"bits": 4, "group_size": 64, **own}).config
    assert parse_checkpoint(json.dumps(config).encode(), tensors).embedding_length == 256
    lying = json.dumps(config | {"quantization": {"bits": 4}}).encode()
    with pytest.raises(HeaderInvalid, match="`hidden_size` must be 512, as the embedding is wide; got 256"):
        parse_checkpoint(lying, tensors)


def test_gemma_4_has_heads_of_two_lengths() -> None:
    shapes = tensor_shapes(Shape(layers=6, embedding=256, heads=8, kv_heads=2, head_length=32, vocabulary=1024))
    for part in ("k_proj", "v_proj"):
        shapes[f"model.layers.5.self_attn.{part}.weight"] = (64, 256)  # one head of 64
    shapes["model.layers.5.self_attn.q_proj.weight"] = (8 * 64, 256)
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    full = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    for said in ({"global_head_dim": 64}, {}):
        found = read("gemma4_text", shapes, head_dim=32, layer_types=kinds, sliding_window=512, **full, **said)
        assert (found.key_length, found.sliding_key_length) == (64, 32)
        assert found.kv_head_counts == (2, 2, 2, 2, 2, 1)
        assert mlx.kv_bytes_per_cell(found, OPTIONS) == 2 * (5 * 2 * 2 * 32 + 2 * 64)
    with pytest.raises(HeaderInvalid, match="`num_key_value_heads` must be 64 rows by heads of 32, as tensor"):
        read("gemma4_text", head_dim=32, layer_types=kinds, sliding_window=512, num_key_value_heads=1)


def test_lists_of_widths_count_as_the_widest() -> None:
    assert read("gemma3n_text", head_dim=32, intermediate_size=[512, 2048, 1024]).feed_forward_length == 2048
    found = read("hunyuan", moe_intermediate_size=[96, 128], moe_topk=[2, 4], num_experts=8)
    assert (found.experts_used, found.feed_forward_length) == (4, 512)
    with pytest.raises(HeaderInvalid, match="`intermediate_size` must be an integer between"):
        read("gemma3n_text", head_dim=32, intermediate_size=[512, "wide"])


def test_what_a_config_leaves_out_is_told_by_its_family_and_its_tensors() -> None:
    left_out = ("num_attention_heads", "num_key_value_heads", "max_position_embeddings", "vocab_size", "head_dim")
    shapes = tensor_shapes(Shape(layers=6, embedding=256, heads=8, kv_heads=4, head_length=256, vocabulary=1024))
    found = read("gemma3_text", shapes, left_out)
    assert (found.head_count, found.kv_head_counts, found.key_length) == (8, (4,) * 6, 256)
    assert (found.context_tokens, found.vocabulary_size) == (131_072, 1024)
    with pytest.raises(HeaderInvalid, match="`num_attention_heads` must be an integer between 1 and 4096; got nothing"):
        read("never-seen", None, ("num_attention_heads",))


def test_feed_forward_that_is_not_said_is_as_wide_as_usual() -> None:
    assert read("gpt2", None, ("intermediate_size",), n_inner=None).feed_forward_length == 1024
    assert read("lfm2", None, ("intermediate_size",), conv_L_cache=3, block_ff_dim=640).feed_forward_length == 640


def test_experts_of_which_nobody_says_how_many_see_a_token_all_do() -> None:
    found = read("never-seen", num_experts=8, moe_intermediate_size=64)
    assert (found.experts_used, found.feed_forward_length) == (8, 512)
    assert read("ernie4_5_moe", moe_num_experts=8, moe_k=2, moe_intermediate_size=64).experts_used == 2


@pytest.mark.parametrize(("family", "length"), [("deepseek_v3", 576), ("deepseek_v32", 832)])
def test_latent_vectors_are_kept_once_by_mlx(family: str, length: int) -> None:
    shapes = {
        name.replace("k_proj", "kv_a_proj_with_mqa"): (576, 256) if "k_proj" in name else shape
        for name, shape in tensor_shapes(SHAPE).items()
        if "v_proj" not in name
    }
    found = read(family, shapes, kv_lora_rank=512, qk_rope_head_dim=64)
    assert found.latent_attention
    assert mlx.kv_bytes_per_cell(found, OPTIONS) == 6 * length * 2


def test_model_that_was_saved_without_its_output_is_no_lie() -> None:
    bare = {name.removeprefix("model."): shape for name, shape in tensor_shapes(SHAPE).items()}
    assert read("qwen3", bare, tie_word_embeddings=False).layer_count == 6
    with pytest.raises(HeaderInvalid, match="`tie_word_embeddings` must be true"):
        read("qwen3", tie_word_embeddings=False)


def test_what_no_engine_here_unpacks_is_refused_by_its_name() -> None:
    with pytest.raises(HeaderInvalid, match=r"`quantization_config\.quant_method` must be one that an engine"):
        read("llama", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})


def test_chunked_attention_counts_as_full() -> None:
    assert read("llama4_text", layer_types=["chunked_attention"] * 6).kv_head_counts == (2,) * 6


def test_packed_numbers_are_counted_as_parameters_and_what_is_beside_them_is_not() -> None:
    shapes = tensor_shapes(SHAPE)
    plain = build_checkpoint(SHAPE, quantization_config={"quant_method": "awq", "bits": 4})
    matrices = {name: shape for name, shape in shapes.items() if "proj" in name}
    rest = {name: shape for name, shape in shapes.items() if name not in matrices}
    packed = {name.replace(".weight", ".qweight"): (a, b // 8) for name, (a, b) in matrices.items()}
    zeros = {name.replace(".weight", ".qzeros"): (2, b // 8) for name, (_, b) in matrices.items()}
    tensors = merge_directories([_as_i32(packed | zeros), tensors_of((rest, "F16"))])
    whole = parse_checkpoint(build_checkpoint(SHAPE).config_text, tensors_of((shapes, "BF16")))
    found = parse_checkpoint(plain.config_text, tensors)
    assert found.parameter_count == whole.parameter_count
    assert mlx.element_bytes(found) == 2


def _as_i32(shapes: dict[str, tuple[int, ...]]) -> Directory:
    """As U32 is, under the name that others than mlx-lm give it."""
    return {name: replace(each, dtype="I32") for name, each in tensors_of((shapes, "U32")).items()}
