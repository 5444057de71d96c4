"""Models that people download, with the sizes that are published, through the reader of agents and of `covey fit`."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

import pytest
from covey_agent.artifacts.checkpoint import read_checkpoint
from covey_agent.ports import AgentError, UnmeasuredHeader
from covey_api.engines import Compute, EngineName, Lane, LaneState
from covey_api.instance import EngineOptions
from covey_api.model import Geometry
from covey_planner.fit import mlx
from kit.published_checkpoints import Decoder, Named, Published, in_eight_bits, packed

OPTIONS = EngineOptions(context_tokens=4096, slots=1)
METAL = Lane(engine=EngineName.MLX, compute=Compute.METAL, state=LaneState.INSTALLABLE)
CPU = Lane(engine=EngineName.MLX, compute=Compute.CPU, state=LaneState.INSTALLABLE)


def read(model: Published) -> Geometry:
    files = model.files()

    async def pieces(start: bytes, size_bytes: int) -> AsyncGenerator[bytes]:
        yield start
        yield bytes(min(size_bytes - len(start), 512 * 1024))  # of the first tensors

    async def open_file(name: str) -> tuple[AsyncGenerator[bytes], int] | None:
        return (pieces(*files[name]), files[name][1]) if name in files else None

    return asyncio.run(read_checkpoint(open_file, "the folder"))


def read_plain(config: Mapping[str, object], decoder: Decoder) -> Geometry:
    return read(Published(config, {"BF16": decoder.tensors()}))


def cell_bytes(geometry: Geometry) -> int:
    return mlx.kv_bytes_per_cell(geometry, OPTIONS)


def kinds(layers: int, period: int) -> list[str]:
    return ["full_attention" if layer % period == period - 1 else "sliding_attention" for layer in range(layers)]


def full_of(layer_types: list[str]) -> frozenset[int]:
    return frozenset(layer for layer, kind in enumerate(layer_types) if kind == "full_attention")


TOWER: Named = {"vision_tower.vision_model.encoder.layers.40.self_attn.k_proj.weight": (1152, 1152)}


def test_gemma_3_4b_leaves_out_what_its_code_knows() -> None:
    text = {
        **{"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34},
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    found = read_plain(
        config, Decoder(34, 2560, 8, 4, 256, 262_208, 10240, prefix="language_model.model.", extra=TOWER)
    )
    assert (found.head_count, set(found.kv_head_counts), found.key_length) == (8, {4}, 256)
    assert (found.context_tokens, found.vocabulary_size, found.sliding_window_tokens) == (131_072, 262_208, 1024)
    assert len(found.sliding_layers) == 29
    assert cell_bytes(found) == 34 * 4 * 512 * 2


def test_gemma_3n_lists_its_widths_and_shares_keys() -> None:
    text: dict[str, object] = {
        **{"hidden_size": 2048, "intermediate_size": [16384] * 35, "model_type": "gemma3n_text", "head_dim": 256},
        **{"num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2, "num_kv_shared_layers": 15},
        **{"vocab_size": 262_400, "vocab_size_per_layer_input": 262_144, "max_position_embeddings": 32768},
        **{"layer_types": kinds(35, 5), "sliding_window": 512, "hidden_size_per_layer_input": 256},
    }
    extra: Named = {
        "model.language_model.embed_tokens_per_layer.weight": (262_144, 35 * 256),
        "model.vision_tower.timm_model.blocks.0.0.conv_pw.weight": (64, 64),
        "model.audio_tower.conformer.3.attention.attn.k_proj.weight": (1536, 1536),
        "model.embed_vision.embedding.weight": (128, 2048),
    }
    config = {"model_type": "gemma3n", "text_config": text}
    found = read_plain(config, Decoder(35, 2048, 8, 2, 256, 262_400, 16384, "model.language_model.", extra=extra))
    assert found.feed_forward_length == 16384
    assert found.kv_head_counts == (2,) * 20 + (0,) * 15
    assert cell_bytes(found) == 20 * 2 * 512 * 2


def gemma_4(layers: int, period: int, **text: object) -> dict[str, object]:
    types = kinds(layers, period)
    common = {"model_type": "gemma4_text", "num_hidden_layers": layers, "layer_types": types, "head_dim": 256}
    usual = {"vocab_size": 262_144, "max_position_embeddings": 262_144, "global_head_dim": 512}
    return {"model_type": "gemma4", "tie_word_embeddings": True, "text_config": {**common, **usual, **text}}


def test_gemma_4_e2b_has_longer_heads_in_full_layers_and_shares_most() -> None:
    config = gemma_4(
        layers=35,
        period=5,
        hidden_size=1536,
        intermediate_size=6144,
        num_attention_heads=8,
        num_key_value_heads=1,
        num_global_key_value_heads=None,
        num_kv_shared_layers=20,
        sliding_window=512,
        attention_k_eq_v=False,
        use_double_wide_mlp=True,
        enable_moe_block=False,
        num_experts=None,
        top_k_experts=None,
        moe_intermediate_size=None,
    )
    decoder = Decoder(
        35,
        1536,
        8,
        1,
        256,
        262_144,
        6144,
        "model.language_model.",
        full=full_of(kinds(35, 5)),
        full_kv_heads=1,
        full_head=512,
    )
    found = read_plain(config, decoder)
    assert found.kv_head_counts == (1,) * 15 + (0,) * 20
    assert (found.key_length, found.sliding_key_length) == (512, 256)
    assert cell_bytes(found) == 2 * 2 * (12 * 256 + 3 * 512)
    assert (found.experts_used, found.feed_forward_length) == (0, 2 * 6144)


@pytest.mark.parametrize("is_newer", [False, True])
def test_gemma_4_26b_has_fewer_heads_where_values_are_keys(is_newer: bool) -> None:
    types = kinds(30, 6)
    config = gemma_4(
        layers=30,
        period=6,
        hidden_size=2816,
        intermediate_size=2112,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=2,
        attention_k_eq_v=True,
        num_kv_shared_layers=0,
        sliding_window=1024,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
    )
    if is_newer:  # newer saves say it layer by layer
        text = config["text_config"]
        assert isinstance(text, dict)
        del text["global_head_dim"], text["num_global_key_value_heads"]
        text["per_layer_config"] = {
            str(layer): {"head_dim": 512, "num_key_value_heads": 2} for layer in sorted(full_of(types))
        }
    decoder = Decoder(
        30,
        2816,
        16,
        8,
        256,
        262_144,
        2112,
        "model.language_model.",
        full=full_of(types),
        full_kv_heads=2,
        full_head=512,
    )
    found = read_plain(config, decoder)
    assert found.kv_head_counts == tuple(2 if kind == "full_attention" else 8 for kind in types)
    assert (found.key_length, found.sliding_key_length) == (512, 256)
    assert cell_bytes(found) == 2 * 2 * (25 * 8 * 256 + 5 * 2 * 512)
    assert (found.experts_used, found.feed_forward_length) == (8, 8 * 704 + 2112)


def qwen3(**changes: object) -> dict[str, object]:
    return {
        **{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "hidden_size": 4096},
        **{"intermediate_size": 12288, "max_position_embeddings": 40960, "num_attention_heads": 32},
        **{"num_hidden_layers": 36, "num_key_value_heads": 8, "vocab_size": 151_936, "tie_word_embeddings": False},
        **{"sliding_window": None, "use_sliding_window": False, "max_window_layers": 36},
        **changes,
    }


QWEN3_8B = Decoder(36, 4096, 32, 8, 128, 151_936, 12288, tied=False)


def test_qwen3_and_the_models_of_embeddings_and_of_ranks_that_are_made_of_it() -> None:
    found = read_plain(qwen3(), QWEN3_8B)
    assert found.parameter_count // 10**8 == 81
    assert cell_bytes(found) == 36 * 8 * 256 * 2
    bare = {
        name.removeprefix("model."): shape for name, shape in QWEN3_8B.tensors().items() if name != "lm_head.weight"
    }
    embedding = read(Published(qwen3(vocab_size=151_936), {"BF16": bare}))
    assert embedding.kv_head_counts == found.kv_head_counts


def test_qwen3_moe_counts_the_experts_that_see_a_token() -> None:
    config = qwen3(
        model_type="qwen3_moe",
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_hidden_layers=48,
        num_key_value_heads=4,
        num_experts=128,
        num_experts_per_tok=8,
    )
    decoder = Decoder(48, 2048, 32, 4, 128, 151_936, 6144, tied=False, experts=2, expert_width=768)
    found = read_plain(config, decoder)
    assert (found.experts_used, found.feed_forward_length) == (8, 6144)


def test_qwen3_vl_has_its_text_model_beside_a_tower() -> None:
    text = {
        **{"model_type": "qwen3_vl_text", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288},
        **{"max_position_embeddings": 262_144, "num_attention_heads": 32, "num_hidden_layers": 36},
        **{"num_key_value_heads": 8, "vocab_size": 151_936},
    }
    config = {"model_type": "qwen3_vl", "text_config": text, "tie_word_embeddings": False}
    extra: Named = {"model.visual.blocks.26.attn.qkv.weight": (3456, 1152)}
    found = read_plain(config, Decoder(36, 4096, 32, 8, 128, 151_936, 12288, "model.language_model.", extra=extra))
    assert (found.layer_count, found.context_tokens, cell_bytes(found)) == (36, 262_144, 36 * 8 * 256 * 2)


def test_llama_4_scout_sees_its_own_pieces_of_the_window() -> None:
    text: dict[str, object] = {
        **{"model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "head_dim": 128},
        **{"intermediate_size_mlp": 16384, "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 202_048},
        **{"num_hidden_layers": 48, "num_experts_per_tok": 1, "num_local_experts": 16, "tie_word_embeddings": False},
        **{"max_position_embeddings": 10_485_760, "attention_chunk_size": 8192},
        "layer_types": (["chunked_attention"] * 3 + ["full_attention"]) * 12,
    }
    decoder = Decoder(
        48,
        5120,
        40,
        8,
        128,
        202_048,
        16384,
        "language_model.model.",
        tied=False,
        extra={"vision_model.model.layers.33.self_attn.k_proj.weight": (1408, 1408)},
    )
    found = read_plain({"model_type": "llama4", "text_config": text}, decoder)
    assert cell_bytes(found) == 48 * 8 * 256 * 2
    assert (found.experts_used, found.feed_forward_length) == (1, 16384)


def test_llama_3_2_vision_has_rows_of_embeddings_to_spare() -> None:
    text = {
        **{"model_type": "mllama_text_model", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 40},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256, "tie_word_embeddings": False},
        **{"max_position_embeddings": 131_072, "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]},
    }
    tensors = Decoder(40, 4096, 32, 8, 128, 128_264, 14336, "language_model.model.", tied=False).tensors()
    tensors = {name.replace("layers.3.self_attn", "layers.3.cross_attn"): shape for name, shape in tensors.items()}
    found = read(Published({"model_type": "mllama", "text_config": text}, {"BF16": tensors}))
    assert (found.vocabulary_size, cell_bytes(found)) == (128_264, 40 * 8 * 256 * 2)


def deepseek(family: str = "deepseek_v3", **changes: object) -> dict[str, object]:
    return {
        **{"architectures": ["DeepseekV3ForCausalLM"], "model_type": family, "hidden_size": 7168},
        **{"intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1},
        **{"num_experts_per_tok": 8, "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61},
        **{"num_nextn_predict_layers": 1, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128},
        **{"qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 3, "vocab_size": 129_280},
        **{"max_position_embeddings": 163_840, "tie_word_embeddings": False},
        "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
        **changes,
    }


def deepseek_tensors(experts: int) -> Named:
    return Decoder(
        61,
        7168,
        128,
        128,
        192,
        129_280,
        18432,
        tied=False,
        latent=576,
        experts=experts,
        expert_width=2048,
        dense_layers=3,
        spare_layers=1,
    ).tensors()


def test_deepseek_3_as_published_has_more_tensors_than_others_and_doubles_on_mlx() -> None:
    whole = deepseek_tensors(256)
    found = read(Published(deepseek(), in_eight_bits(whole)))
    assert found.latent_attention
    assert cell_bytes(found) == 61 * 576 * 2
    assert (found.experts_used, found.feed_forward_length) == (8, 9 * 2048)
    eight = sum(a * b for name, (a, b) in ((n, s) for n, s in whole.items() if len(s) == 2) if "layers." in name)
    assert found.unpacked_bytes == eight
    assert mlx.weights_bytes(found, CPU) == found.weights_bytes + eight


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa"])
def test_deepseek_3_2_keeps_the_keys_of_its_index_beside_the_latent_vector(family: str) -> None:
    config = deepseek(family, index_head_dim=128, index_n_heads=64, index_topk=2048)
    found = read_plain(config, Decoder(62, 7168, 128, 128, 192, 129_280, 18432, tied=False, latent=576))
    assert cell_bytes(found) == 61 * (512 + 64 + 2 * 128) * 2


def test_kimi_k2_in_its_later_form_is_a_text_model_in_another_config() -> None:
    text = deepseek("kimi_k2", num_nextn_predict_layers=0, num_attention_heads=64, vocab_size=163_840)
    text["quantization_config"] = {
        **{"quant_method": "compressed-tensors", "format": "pack-quantized"},
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
    }
    plain = Decoder(61, 7168, 64, 64, 192, 163_840, 18432, "language_model.model.", tied=False, latent=576).tensors()
    matrices = {name: shape for name, shape in plain.items() if ".mlp." in name}
    shapes: dict[str, Named] = {
        "BF16": {name: shape for name, shape in plain.items() if name not in matrices},
        "I32": {f"{name}_packed": (rows, width // 8) for name, (rows, width) in pairs(matrices)},
    }
    found = read(Published({"model_type": "kimi_k25", "text_config": text}, shapes))
    assert (found.architecture, found.model_type) == ("kimi_k2", "kimi_k25")
    assert cell_bytes(found) == 61 * 576 * 2
    assert found.parameter_count == sum(count(shape) for shape in plain.values())


def count(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def pairs(shapes: Named) -> list[tuple[str, tuple[int, int]]]:
    return [(name, (shape[0], shape[1])) for name, shape in shapes.items()]


GPT_OSS = {
    **{"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880},
    **{"intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 24},
    **{"num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4, "sliding_window": 128},
    **{"vocab_size": 201_088, "max_position_embeddings": 131_072, "tie_word_embeddings": False},
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}


@pytest.mark.parametrize("is_named", [True, False])
def test_gpt_oss_of_mlx_has_an_embedding_of_eight_bits_among_those_of_four(is_named: bool) -> None:
    tensors = Decoder(24, 2880, 64, 8, 64, 201_088, 2880, tied=False).tensors()
    eight, beside = packed(tensors, 8, 64)
    own = {name.removesuffix(".weight"): {"bits": 8, "group_size": 64} for name in eight if is_named}
    config = GPT_OSS | {"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4", **own}}
    norms = {name: shape for name, shape in tensors.items() if name not in eight}
    found = read(Published(config, {"U32": eight, "BF16": beside | norms}))
    assert (found.embedding_length, found.experts_used, found.feed_forward_length) == (2880, 4, 4 * 2880)
    assert len(found.sliding_layers) == 12
    assert cell_bytes(found) == 24 * 8 * 128 * 2


def mistral(**changes: object) -> dict[str, object]:
    return {
        **{"model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 32768},
        **{"max_position_embeddings": 131_072, "num_attention_heads": 32, "num_hidden_layers": 40},
        **{"num_key_value_heads": 8, "sliding_window": None, "vocab_size": 131_072},
        **changes,
    }


MISTRAL_SMALL = Decoder(40, 5120, 32, 8, 128, 131_072, 32768, "language_model.model.", tied=False, extra=TOWER)


@pytest.mark.parametrize("left_out", [(), ("num_attention_heads",)])
def test_mistral_small_and_pixtral_which_leaves_out_its_heads(left_out: tuple[str, ...]) -> None:
    text = {key: value for key, value in mistral().items() if key not in left_out}
    found = read_plain({"model_type": "mistral3", "text_config": text}, MISTRAL_SMALL)
    assert (found.head_count, cell_bytes(found)) == (32, 40 * 8 * 256 * 2)


def test_ministral_3_as_published_becomes_twice_as_large_on_metal() -> None:
    text = mistral(
        model_type="ministral3",
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=34,
        max_position_embeddings=262_144,
    )
    plain = Decoder(34, 4096, 32, 8, 128, 131_072, 14336, "language_model.model.", tied=False).tensors()
    quantised = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    config = {"model_type": "mistral3", "text_config": text, "quantization_config": quantised}
    found = read(Published(config, in_eight_bits(plain)))
    whole = read(Published({"model_type": "mistral3", "text_config": text}, {"BF16": plain}))
    assert found.weights_bytes < 0.6 * whole.weights_bytes
    assert mlx.weights_bytes(found, METAL) >= mlx.weights_bytes(whole, METAL)


def test_glm_4_5_air_has_a_spare_layer_that_keeps_nothing() -> None:
    config = {
        **{"model_type": "glm4_moe", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 10944},
        **{"moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8},
        **{"num_attention_heads": 96, "num_key_value_heads": 8, "num_hidden_layers": 46, "first_k_dense_replace": 1},
        **{"num_nextn_predict_layers": 1, "vocab_size": 151_552, "max_position_embeddings": 131_072},
        "tie_word_embeddings": False,
    }
    decoder = Decoder(46, 4096, 96, 8, 128, 151_552, 10944, tied=False, spare_layers=1)
    found = read_plain(config, decoder)
    assert cell_bytes(found) == 46 * 8 * 256 * 2
    assert (found.experts_used, found.feed_forward_length) == (8, 9 * 1408)


def test_minimax_m2_names_every_layer_attention() -> None:
    config = {
        **{"model_type": "minimax_m2", "head_dim": 128, "hidden_size": 3072, "intermediate_size": 1536},
        **{"num_attention_heads": 48, "num_key_value_heads": 8, "num_hidden_layers": 62, "attn_type_list": [1] * 62},
        **{"num_local_experts": 256, "num_experts_per_tok": 8, "shared_intermediate_size": 0, "vocab_size": 200_064},
        **{"max_position_embeddings": 196_608, "num_mtp_modules": 3, "tie_word_embeddings": False},
        "quantization_config": {"quant_method": "fp8", "fmt": "float8_e4m3fn", "weight_block_size": [128, 128]},
    }
    plain = Decoder(62, 3072, 48, 8, 128, 200_064, 1536, tied=False).tensors()
    found = read(Published(config, in_eight_bits(plain)))
    assert cell_bytes(found) == 62 * 8 * 256 * 2
    assert (found.experts_used, found.feed_forward_length) == (8, 8 * 1536)
    with pytest.raises(UnmeasuredHeader, match="attn_type_list"):
        read(Published(config | {"attn_type_list": [0] * 61 + [1]}, in_eight_bits(plain)))


def test_lfm2_counts_its_convolutions_whichever_way_its_layers_are_listed() -> None:
    full = [2, 5, 8, 10, 12, 14]
    config = {
        **{"model_type": "lfm2", "hidden_size": 2048, "block_ff_dim": 12288, "block_dim": 2048, "conv_L_cache": 3},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 16, "vocab_size": 65536},
        "max_position_embeddings": 128_000,
    }
    decoder = Decoder(16, 2048, 32, 8, 64, 65536, 8192, without_keys=frozenset(range(16)) - set(full))
    listed = read_plain(config | {"full_attn_idxs": full}, decoder)
    named = ["full_attention" if layer in full else "conv" for layer in range(16)]
    assert read_plain(config | {"layer_types": named}, decoder) == listed
    assert sum(map(bool, listed.kv_head_counts)) == 6
    assert listed.recurrent_bytes == 10 * 2 * 2048 * 4
    with pytest.raises(UnmeasuredHeader, match="layer 0 has no keys"):
        read_plain(config, decoder)


def test_granite_4_counts_its_states_and_its_shared_expert() -> None:
    types = ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)]
    config: dict[str, object] = {
        **{"model_type": "granitemoehybrid", "hidden_size": 1536, "intermediate_size": 512, "num_hidden_layers": 40},
        **{"num_attention_heads": 12, "num_key_value_heads": 4, "num_local_experts": 64, "num_experts_per_tok": 6},
        **{"shared_intermediate_size": 1024, "layer_types": types, "mamba_n_heads": 48, "mamba_d_head": 64},
        **{"mamba_d_state": 128, "mamba_d_conv": 4, "mamba_n_groups": 1, "vocab_size": 100_352},
        **{"max_position_embeddings": 131_072, "tie_word_embeddings": True},
    }
    without = frozenset(layer for layer, kind in enumerate(types) if kind == "mamba")
    found = read_plain(config, Decoder(40, 1536, 12, 4, 128, 100_352, 1024, without_keys=without))
    assert found.recurrent_bytes == 36 * 4 * (3 * (3072 + 2 * 128) + 128 * 3072)
    assert (found.experts_used, found.feed_forward_length) == (6, 6 * 512 + 1024)


NEMOTRON = {
    **{"model_type": "nemotron_h", "hidden_size": 4480, "intermediate_size": 15680, "num_hidden_layers": 56},
    **{"hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", "head_dim": 128},
    **{"num_attention_heads": 40, "num_key_value_heads": 8, "mamba_num_heads": 128, "mamba_head_dim": 80},
    **{"ssm_state_size": 128, "conv_kernel": 4, "n_groups": 8, "vocab_size": 131_072},
    **{"max_position_embeddings": 131_072, "tie_word_embeddings": False},
}
STATE_KEYS = ("hybrid_override_pattern", "mamba_num_heads", "mamba_head_dim", "ssm_state_size")
QWEN3_NEXT = qwen3(
    model_type="qwen3_next",
    num_hidden_layers=48,
    full_attention_interval=4,
    head_dim=256,
    linear_num_value_heads=32,
    linear_num_key_heads=16,
    linear_key_head_dim=128,
    hidden_size=2048,
    num_attention_heads=16,
    num_key_value_heads=2,
    num_experts=512,
    num_experts_per_tok=10,
)
ATTENTION = frozenset({14, 21, 30, 39})
NEXT = Decoder(
    48,
    2048,
    16,
    2,
    256,
    151_936,
    5120,
    tied=False,
    without_keys=frozenset(layer for layer in range(48) if layer % 4 != 3),
    extra={"mtp.layers.0.self_attn.k_proj.weight": (512, 2048)},
)


@pytest.mark.parametrize(
    ("config", "decoder", "words"),
    [
        (NEMOTRON, Decoder(56, 4480, 40, 8, 128, 131_072, 15680, "backbone.", tied=False), "`ssm_state_size`"),
        (
            {key: each for key, each in NEMOTRON.items() if key not in STATE_KEYS},
            Decoder(
                56,
                4480,
                40,
                8,
                128,
                131_072,
                15680,
                "backbone.",
                tied=False,
                without_keys=frozenset(range(56)) - ATTENTION,
            ),
            "layer 0 has no keys",
        ),
        (QWEN3_NEXT, NEXT, "`linear_num_value_heads`"),
        ({key: each for key, each in QWEN3_NEXT.items() if not key.startswith("linear")}, NEXT, "layer 0 has no keys"),
        (
            {"model_type": "mimo_v2_flash", **{k: v for k, v in qwen3().items() if k != "model_type"}}
            | {"num_key_value_heads": 4, "swa_num_key_value_heads": 8, "hybrid_layer_pattern": [0, 1] * 18},
            Decoder(
                36,
                4096,
                32,
                8,
                128,
                151_936,
                12288,
                tied=False,
                full=frozenset(range(0, 36, 2)),
                full_kv_heads=4,
                full_head=128,
            ),
            "`num_key_value_heads` must be 1024 rows by heads of 128",
        ),
        ({"model_type": "openelm", "model_dim": 2048, "num_transformer_layers": 36}, QWEN3_8B, "`num_hidden_layers`"),
        (qwen3(intermediate_size=None), QWEN3_8B, "`intermediate_size` must be an integer"),
        (qwen3(max_position_embeddings=None), QWEN3_8B, "`max_position_embeddings` must be an integer"),
        (qwen3(num_attention_heads=None, head_dim=None), QWEN3_8B, "`num_attention_heads` must be an integer"),
    ],
    ids=[
        *("nemotron-h", "nemotron-h-by-tensors", "qwen3-next", "qwen3-next-by-tensors", "mimo-v2", "openelm"),
        *("no-width", "no-window", "no-heads"),
    ],
)
def test_what_nobody_measured_or_knows_waits_for_a_declared_geometry(
    config: Mapping[str, object], decoder: Decoder, words: str
) -> None:
    with pytest.raises(UnmeasuredHeader) as caught:
        read_plain(config, decoder)
    assert words in str(caught.value)
    assert "spec.geometry" in str(caught.value)


def test_awq_with_some_layers_as_they_were_is_no_model_of_two_kinds() -> None:
    plain = QWEN3_8B.tensors()
    matrices = {
        name: shape for name, shape in plain.items() if "_proj" in name and not name.startswith("model.layers.0.")
    }
    shapes: dict[str, Named] = {
        "F16": {name: shape for name, shape in plain.items() if name not in matrices},
        "I32": {name.replace(".weight", ".qweight"): (width, rows // 8) for name, (rows, width) in pairs(matrices)},
    }
    quantised = {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["model.layers.0."]}
    found = read(Published(qwen3(quantization_config=quantised), shapes))
    assert found.parameter_count == sum(count(shape) for shape in plain.values())
    assert cell_bytes(found) == 36 * 8 * 256 * 2


def test_bits_and_bytes_is_refused_by_its_name_and_accuses_nobody() -> None:
    quantised = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    plain = QWEN3_8B.tensors()
    shapes: dict[str, Named] = {
        "BF16": {name: shape for name, shape in plain.items() if "_proj" not in name},
        "U8": {name: (count(shape) // 2, 1) for name, shape in plain.items() if "_proj" in name},
    }
    with pytest.raises(AgentError, match=r"`quantization_config\.quant_method` must be one that an engine here reads"):
        read(Published(qwen3(quantization_config=quantised), shapes))


def encoder(layers: int, hidden: int, vocabulary: int, place: str, names: dict[str, tuple[int, int]]) -> Named:
    found: Named = {f"{place}embeddings.word_embeddings.weight": (vocabulary, hidden)}
    for layer in range(layers):
        found |= {f"{place}{name.format(layer)}.weight": shape for name, shape in names.items()}
    return found


@pytest.mark.parametrize(
    ("config", "tensors", "width"),
    [
        (
            {
                **{"model_type": "xlm-roberta", "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 250_002},
                **{"num_hidden_layers": 24, "num_attention_heads": 16, "max_position_embeddings": 8194},
            },
            encoder(
                24,
                1024,
                250_002,
                "roberta.",
                {
                    "encoder.layer.{}.attention.self.key": (1024, 1024),
                    "encoder.layer.{}.intermediate.dense": (4096, 1024),
                },
            )
            | {"classifier.out_proj.weight": (1, 1024)},
            4096,
        ),
        (
            {
                **{"model_type": "nomic_bert", "n_embd": 768, "n_inner": 3072, "n_layer": 12, "n_head": 12},
                **{"n_positions": 8192, "vocab_size": 30528},
            },
            encoder(12, 768, 30528, "", {"encoder.layers.{}.attn.Wqkv": (2304, 768)}),
            3072,
        ),
        (
            {
                **{"model_type": "distilbert", "dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12},
                **{"max_position_embeddings": 512, "vocab_size": 30522},
            },
            encoder(6, 768, 30522, "distilbert.", {"transformer.layer.{}.attention.k_lin": (768, 768)}),
            3072,
        ),
    ],
    ids=["bge-reranker-v2-m3", "nomic-embed-v1.5", "distilbert"],
)
def test_encoders_keep_nothing_whatever_their_config_calls_things(
    config: dict[str, object], tensors: Named, width: int
) -> None:
    found = read(Published(config, {"F32": tensors}))
    assert not any(found.kv_head_counts)
    assert (found.feed_forward_length, found.layer_count) == (width, config.get("num_hidden_layers", found.layer_count))
