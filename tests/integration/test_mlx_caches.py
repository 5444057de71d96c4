"""What mlx-lm's own caches hold of small models of many families, beside what is read from their files and counted."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from covey_api.instance import EngineOptions
from covey_planner.fit import mlx
from covey_planner.geometry.checkpoint import parse_checkpoint
from covey_planner.geometry.safetensors import parse_directory
from kit import mlx_caches
from kit.checkpoints import directory
from kit.real_engines import mlx_packages

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

Config = dict[str, Any]

BASE: Config = {
    **{"num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    **{"intermediate_size": 96, "vocab_size": 320, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6},
    **{"rope_theta": 10000.0, "tie_word_embeddings": True, "attention_bias": False, "rope_scaling": None},
}
EXPERTS: Config = {
    **{"n_routed_experts": 4, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
    **{"moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "norm_topk_prob": True},
    **{"routed_scaling_factor": 1.0, "first_k_dense_replace": 1, "moe_layer_freq": 1},
}
LATENT: Config = EXPERTS | {
    **{"kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16},
    **{"topk_method": "noaux_tc", "scoring_func": "sigmoid", "num_key_value_heads": 4, "tie_word_embeddings": False},
}
INDEX: Config = {"index_head_dim": 16, "index_n_heads": 2, "index_topk": 512}
ROPE: Config = {"rope_theta": 10000.0, "rope_type": "default"}
SCALED: Config = ROPE | {"original_max_position_embeddings": 4096, "llama_4_scaling_beta": 0.1}
FIVE_OF_SIX = ["sliding_attention"] * 5 + ["full_attention"]
BY_TURNS = ["sliding_attention", "full_attention"] * 3
GEMMA_4: Config = BASE | {
    **{"sliding_window": 512, "layer_types": FIVE_OF_SIX, "global_head_dim": 32, "num_kv_shared_layers": 0},
    "hidden_size_per_layer_input": 0,
}
SHARING: Config = {
    **{"sliding_window": 512, "layer_types": BY_TURNS, "num_kv_shared_layers": 2},
    **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 320},
}
GEMMA_3N: Config = {
    **{"model_type": "gemma3n_text", "intermediate_size": [96] * 6, "altup_num_inputs": 4, "altup_coef_clip": 120.0},
    **{"altup_correct_scale": True, "altup_active_idx": 0, "laurel_rank": 8, "final_logit_softcapping": 30.0},
    **{"activation_sparsity_pattern": [0.0] * 6, "query_rescale_scalar": 1.0, "rope_local_base_freq": 10000.0},
}
FAMILIES: dict[str, Config] = {
    "qwen3": BASE,
    "gemma3_text": BASE | {"sliding_window": 512, "sliding_window_pattern": 6},
    "gemma3n": {"text_config": BASE | SHARING | GEMMA_3N},
    "gemma4_text": GEMMA_4,
    "gemma4_text of 26B": GEMMA_4
    | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "enable_moe_block": True}
    | {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "gemma4_text of E2B": GEMMA_4 | SHARING,
    "llama4": {
        "text_config": BASE
        | {"model_type": "llama4_text", "intermediate_size_mlp": 96, "attention_chunk_size": 512, "use_qk_norm": True}
        | {"num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1}
    },
    "gpt_oss": BASE | EXPERTS | {"sliding_window": 512, "layer_types": BY_TURNS},
    "minimax_m2": BASE
    | EXPERTS
    | {"shared_intermediate_size": 0, "rotary_dim": 8, "attn_type_list": [1] * 6, "scoring_func": "sigmoid"},
    "ministral3": BASE | {"rope_parameters": SCALED},
    "deepseek_v2": BASE
    | LATENT
    | {"topk_method": "group_limited_greedy", "rope_scaling": {"type": "yarn", "factor": 1.0, "mscale_all_dim": 0}},
    "deepseek_v3": BASE | LATENT,
    "deepseek_v32": BASE | LATENT | INDEX,
    "glm_moe_dsa": BASE | LATENT | INDEX | {"rope_parameters": ROPE},
    "glm4_moe_lite": BASE | LATENT,
    "mistral4": BASE | LATENT | {"rope_parameters": SCALED},
    "lfm2": BASE
    | {"norm_eps": 1e-5, "conv_bias": False, "conv_L_cache": 3, "block_dim": 64, "block_ff_dim": 96}
    | {"block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True}
    | {"full_attn_idxs": [2, 5]},
    "granitemoehybrid": BASE
    | EXPERTS
    | {"layer_types": ["mamba", "mamba", "attention"] * 2, "mamba_n_heads": 8, "mamba_d_head": 16}
    | {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_n_groups": 1, "mamba_proj_bias": False, "mamba_conv_bias": True}
    | {"shared_intermediate_size": 64, "embedding_multiplier": 1.0, "attention_multiplier": 1.0}
    | {"logits_scaling": 1.0, "residual_multiplier": 1.0, "position_embedding_type": "rope"}
    | {"time_step_limit": [0.0, 100.0]},
}


def test_what_mlx_keeps_of_a_token_is_what_is_counted() -> None:
    configs = {name: {"model_type": name.split()[0]} | config for name, config in FAMILIES.items()}
    packages = {"PYTHONPATH": str(mlx_packages()), "PATH": "/usr/bin:/bin"}
    script = Path(mlx_caches.__file__)
    ran = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps(configs),
        env=packages,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert {name: _counted(configs[name], found[name]["tensors"]) for name in configs} == {
        name: (each["growing"], each["fixed"]) for name, each in found.items()
    }


def _counted(config: Config, tensors: dict[str, list[int]]) -> tuple[int, int]:
    shapes = {name: tuple(shape) for name, shape in tensors.items()}
    geometry = parse_checkpoint(json.dumps(config).encode(), parse_directory(*directory(shapes, "F32")))
    options = EngineOptions(context_tokens=4096, slots=1)
    return mlx.kv_bytes_per_cell(geometry, options) * mlx_caches.TOKENS, geometry.recurrent_bytes
