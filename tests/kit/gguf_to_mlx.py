"""A Llama-family GGUF file as a folder that mlx-lm loads. A script, run with the packages of the MLX environment:

    python -I -S gguf_to_mlx.py PACKAGES FILE.gguf FOLDER [ministral3]

MLX reads the file itself. Matrices become 32-bit floats: on a processor those are multiplied by BLAS, and others a
hundred times slower. The file pairs rotary elements next to each other, which mlx-lm calls traditional; so no matrix is
reordered. `ministral3`: as that architecture, which computes the same and which mlx-lm can run as a pipeline; it knows
no traditional rotary elements, so the matrices of queries and keys are reordered.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

_PARTS = {
    "attn_k": "self_attn.k_proj",
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.o_proj",
    "attn_q": "self_attn.q_proj",
    "attn_v": "self_attn.v_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.up_proj",
    "output": "lm_head",
    "output_norm": "model.norm",
    "token_embd": "model.embed_tokens",
}
_CONTROL = 3
# Elements of one block.
_GROUP = 32


def rename(name: str) -> str:
    """`blk.3.attn_q.scales` is `model.layers.3.self_attn.q_proj.scales` there."""
    words = name.split(".")
    if words[0] == "blk":
        return f"model.layers.{words[1]}.{_PARTS[words[2]]}.{words[3]}"
    return f"{_PARTS[words[0]]}.{words[1]}"


def render_config(about: dict[str, Any], *, is_tied: bool) -> dict[str, Any]:
    def number(name: str) -> Any:
        return about[f"llama.{name}"].item()

    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": number("embedding_length"),
        "num_hidden_layers": number("block_count"),
        "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": number("rope.dimension_count"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "vocab_size": number("vocab_size"),
        "rope_theta": number("rope.freq_base"),
        "rope_traditional": True,
        "max_position_embeddings": number("context_length"),
        "tie_word_embeddings": is_tied,
        "bos_token_id": about["tokenizer.ggml.bos_token_id"].item(),
        "eos_token_id": about["tokenizer.ggml.eos_token_id"].item(),
        "torch_dtype": "float32",
    }


def render_tokenizer(about: dict[str, Any]) -> dict[str, Any]:
    """A byte-level BPE as `tokenizers` reads it."""
    tokens: list[str] = about["tokenizer.ggml.tokens"]
    kinds: list[int] = about["tokenizer.ggml.token_type"].tolist()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": i, "content": token, **flags} for i, token in enumerate(tokens) if kinds[i] == _CONTROL]
    bytes_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_level],
        },
        "decoder": bytes_level,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": about["tokenizer.ggml.merges"],
        },
    }


def as_ministral3(config: dict[str, Any]) -> dict[str, Any]:
    """Beta 0: its scale of attention by position is 1 everywhere."""
    window = config["max_position_embeddings"]
    rope = {
        "rope_type": "default",
        "rope_theta": config["rope_theta"],
        "llama_4_scaling_beta": 0.0,
        "original_max_position_embeddings": window,
    }
    changed = {"model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"], "rope_parameters": rope}
    return {name: value for name, value in config.items() if name != "rope_traditional"} | changed


def reorder(name: str, array: Any, config: dict[str, Any]) -> Any:
    """Of queries and keys: the second half of a head's elements are the partners of the first."""
    kind = name.split(".")[-2]
    if kind not in ("q_proj", "k_proj"):
        return array
    heads = config["num_attention_heads" if kind == "q_proj" else "num_key_value_heads"]
    rows, columns = array.shape
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def read_matrices(core: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """All arrays as floats. What was in blocks comes as three arrays: numbers, scales, biases."""
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        stem, _, kind = name.rpartition(".")
        if kind in ("scales", "biases"):
            continue
        if f"{stem}.scales" in arrays:
            blocks = arrays[f"{stem}.scales"].astype(core.float32), arrays[f"{stem}.biases"].astype(core.float32)
            bits = 32 * array.shape[-1] // (_GROUP * blocks[0].shape[-1])
            array = core.dequantize(array, *blocks, group_size=_GROUP, bits=bits)
        found[name] = array.astype(core.float32)
    return found


def main(packages: str, file: str, folder: str, family: str = "llama") -> None:
    sys.path.insert(0, packages)
    core: Any = importlib.import_module("mlx.core")
    arrays, about = core.load(file, return_metadata=True, format="gguf")
    out = Path(folder)
    out.mkdir(parents=True)
    weights = {rename(name): array for name, array in read_matrices(core, arrays).items()}
    config = render_config(about, is_tied="lm_head.weight" not in weights)
    if family == "ministral3":
        weights = {name: reorder(name, array, config) for name, array in weights.items()}
        config = as_ministral3(config)
    core.save_safetensors(str(out / "model.safetensors"), weights, {"format": "mlx"})
    eos, bos = (
        about["tokenizer.ggml.tokens"][about[f"tokenizer.ggml.{name}_token_id"].item()] for name in ("eos", "bos")
    )
    texts: dict[str, Any] = {
        "config.json": config,
        "tokenizer.json": render_tokenizer(about),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": bos,
            "eos_token": eos,
            "chat_template": about["tokenizer.chat_template"],
        },
    }
    if family == "ministral3":  # mlx-lm reads in it which files a rank of a pipeline needs
        texts["model.safetensors.index.json"] = {"weight_map": dict.fromkeys(weights, "model.safetensors")}
    for name, content in texts.items():
        (out / name).write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
