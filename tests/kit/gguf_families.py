"""Made-up files of families that aren't llama-like: recurrent layers, and attention over one latent vector.

Names and shapes are what the engine asks for when it loads them; every number is small. Weights are zeros.
"""

from collections.abc import Mapping

from kit.gguf import GgufFile, TensorSpec, Typed, build, f32, integers, text, tokenizer, u32

KIND = "Q8_0"
Shapes = Mapping[str, tuple[int, ...]]


def build_mamba(layers: int = 8, embedding: int = 768, state: int = 16, vocabulary: int = 32_000) -> GgufFile:
    """Every layer recurrent, with one state per channel."""
    inner, taps, rank = 2 * embedding, 4, 48
    tensors = _outer(embedding, vocabulary)
    for layer in range(layers):
        tensors += _tensors(
            layer,
            {
                "ssm_in.weight": (embedding, 2 * inner),
                "ssm_x.weight": (inner, rank + 2 * state),
                "ssm_out.weight": (inner, embedding),
            },
            KIND,
        )
        tensors += _tensors(
            layer,
            {
                "attn_norm.weight": (embedding,),
                "ssm_conv1d.weight": (taps, inner),
                "ssm_conv1d.bias": (inner,),
                "ssm_dt.weight": (rank, inner),
                "ssm_dt.bias": (inner,),
                "ssm_a": (state, inner),
                "ssm_d": (inner,),
            },
            "F32",
        )
    keys = {"ssm.conv_kernel": taps, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": rank}
    return build(_metadata("mamba", layers, 8192, embedding, vocabulary, keys), tensors)


def build_mamba2(layers: int = 8, embedding: int = 768, state: int = 128, vocabulary: int = 32_000) -> GgufFile:
    """Every layer recurrent, with one state per head."""
    inner = 2 * embedding
    tensors = _outer(embedding, vocabulary)
    for layer in range(layers):
        tensors += [
            *_tensors(layer, {"attn_norm.weight": (embedding,)}, "F32"),
            *_mamba2_block(layer, embedding, state),
        ]
    return build(_metadata("mamba2", layers, 8192, embedding, vocabulary, _mamba2_keys(inner, state)), tensors)


def build_granite_hybrid(layers: int = 8, embedding: int = 1024, vocabulary: int = 32_000) -> GgufFile:
    """Every fourth layer attention, the others as in Mamba 2; a feed-forward in each."""
    heads, kv_heads, state, feed_forward = 16, 4, 128, 2048
    counts = [kv_heads if layer % 4 == 3 else 0 for layer in range(layers)]
    tensors = _outer(embedding, vocabulary)
    for layer, count in enumerate(counts):
        tensors += _feed_forward(layer, embedding, feed_forward)
        tensors += _attention(layer, embedding, heads, count) if count else _mamba2_block(layer, embedding, state)
    more = {
        "attention.head_count_kv": integers(counts),
        "rope.dimension_count": u32(embedding // heads),
        "logit_scale": f32(1.0),
        "residual_scale": f32(1.0),
        "embedding_scale": f32(1.0),
        "attention.scale": f32(0.1),
    }
    keys = _mamba2_keys(2 * embedding, state) | {"attention.head_count": heads, "feed_forward_length": feed_forward}
    return build(_metadata("granitehybrid", layers, 32_768, embedding, vocabulary, keys, more), tensors)


def build_lfm2(layers: int = 8, embedding: int = 1024, vocabulary: int = 32_000) -> GgufFile:
    """Short convolutions, and attention in three layers."""
    heads, kv_heads, taps, feed_forward = 16, 8, 3, 2816
    counts = [kv_heads if layer in (2, 5, 7) else 0 for layer in range(layers)]
    tensors = [
        TensorSpec("token_embd.weight", (embedding, vocabulary), KIND),
        TensorSpec("token_embd_norm.weight", (embedding,), "F32"),
    ]
    for layer, count in enumerate(counts):
        tensors += _feed_forward(layer, embedding, feed_forward)
        if count:
            head = embedding // heads
            tensors += _attention(layer, embedding, heads, count)
            tensors += _tensors(layer, {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}, "F32")
        else:
            tensors += _tensors(
                layer,
                {
                    "shortconv.in_proj.weight": (embedding, 3 * embedding),
                    "shortconv.out_proj.weight": (embedding, embedding),
                },
                KIND,
            )
            tensors += _tensors(layer, {"shortconv.conv.weight": (taps, embedding)}, "F32")
    keys = {"attention.head_count": heads, "feed_forward_length": feed_forward, "shortconv.l_cache": taps}
    more = {"attention.head_count_kv": integers(counts)}
    return build(_metadata("lfm2", layers, 32_768, embedding, vocabulary, keys, more), tensors)


def build_deepseek2(layers: int = 6, embedding: int = 1024, vocabulary: int = 32_000) -> GgufFile:
    """Attention over one latent vector a token; every layer dense."""
    heads, latent, rope, plain, value, query, feed_forward = 16, 512, 64, 128, 128, 256, 2816
    tensors = [*_outer(embedding, vocabulary), TensorSpec("output.weight", (embedding, vocabulary), KIND)]
    for layer in range(layers):
        tensors += _feed_forward(layer, embedding, feed_forward)
        tensors += _tensors(
            layer,
            {
                "attn_q_a.weight": (embedding, query),
                "attn_q_b.weight": (query, heads * (plain + rope)),
                "attn_kv_a_mqa.weight": (embedding, latent + rope),
                "attn_output.weight": (heads * value, embedding),
            },
            KIND,
        )
        tensors += _tensors(
            layer, {"attn_k_b.weight": (plain, latent, heads), "attn_v_b.weight": (latent, value, heads)}, "F16"
        )
        tensors += _tensors(layer, {"attn_q_a_norm.weight": (query,), "attn_kv_a_norm.weight": (latent,)}, "F32")
    keys = {
        "attention.head_count": heads, "attention.head_count_kv": 1, "feed_forward_length": feed_forward,
        "leading_dense_block_count": layers, "attention.kv_lora_rank": latent, "attention.q_lora_rank": query,
        "attention.key_length": latent + rope, "attention.value_length": latent,
        "attention.key_length_mla": plain + rope, "attention.value_length_mla": value, "rope.dimension_count": rope,
        "expert_count": 8, "expert_used_count": 2, "expert_shared_count": 1, "expert_feed_forward_length": 256,
    }  # fmt: skip
    more = {"expert_weights_scale": f32(1.0)}
    return build(_metadata("deepseek2", layers, 32_768, embedding, vocabulary, keys, more), tensors)


def _metadata(
    architecture: str,
    layers: int,
    context: int,
    embedding: int,
    vocabulary: int,
    keys: Mapping[str, int],
    more: Mapping[str, Typed] | None = None,
) -> dict[str, Typed]:
    numbers = {
        "block_count": layers,
        "context_length": context,
        "embedding_length": embedding,
        "feed_forward_length": 0,
        "attention.head_count": 0,
    } | dict(keys)
    found = {"general.architecture": text(architecture), "general.name": text("made up")}
    found |= {f"{architecture}.{key}": u32(value) for key, value in numbers.items()}
    found[f"{architecture}.attention.layer_norm_rms_epsilon"] = f32(1e-5)
    return found | {f"{architecture}.{key}": value for key, value in (more or {}).items()} | tokenizer(vocabulary)


def _mamba2_keys(inner: int, state: int) -> dict[str, int]:
    return {"ssm.conv_kernel": 4, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": inner // 64,
            "ssm.group_count": 1}  # fmt: skip


def _mamba2_block(layer: int, embedding: int, state: int) -> list[TensorSpec]:
    inner, taps = 2 * embedding, 4
    heads, convolved = inner // 64, inner + 2 * state
    weights = {"ssm_in.weight": (embedding, inner + convolved + heads), "ssm_out.weight": (inner, embedding)}
    vectors = {"ssm_conv1d.weight": (taps, convolved), "ssm_conv1d.bias": (convolved,), "ssm_dt.bias": (heads,),
               "ssm_a": (1, heads), "ssm_d": (1, heads), "ssm_norm.weight": (inner, 1)}  # fmt: skip
    return [*_tensors(layer, weights, KIND), *_tensors(layer, vectors, "F32")]


def _attention(layer: int, embedding: int, heads: int, kv_heads: int) -> list[TensorSpec]:
    width = embedding // heads * kv_heads
    return _tensors(
        layer,
        {
            "attn_q.weight": (embedding, embedding),
            "attn_k.weight": (embedding, width),
            "attn_v.weight": (embedding, width),
            "attn_output.weight": (embedding, embedding),
        },
        KIND,
    )


def _feed_forward(layer: int, embedding: int, width: int) -> list[TensorSpec]:
    weights = {"ffn_gate.weight": (embedding, width), "ffn_up.weight": (embedding, width),
               "ffn_down.weight": (width, embedding)}  # fmt: skip
    norms = {"attn_norm.weight": (embedding,), "ffn_norm.weight": (embedding,)}
    return [*_tensors(layer, weights, KIND), *_tensors(layer, norms, "F32")]


def _outer(embedding: int, vocabulary: int) -> list[TensorSpec]:
    return [
        TensorSpec("token_embd.weight", (embedding, vocabulary), KIND),
        TensorSpec("output_norm.weight", (embedding,), "F32"),
    ]


def _tensors(layer: int, shapes: Shapes, kind: str) -> list[TensorSpec]:
    return [TensorSpec(f"blk.{layer}.{name}", shape, kind) for name, shape in shapes.items()]
