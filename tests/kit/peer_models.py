"""Headers with the real geometry of a dozen families that are too large to load here; no weights.

`tools/estimator_peers.py` shows them to an independent estimator; the tests read them again.
"""

from kit.gguf import GgufFile, Shape, build_model
from kit.gguf_families import build_deepseek2, build_granite_hybrid, build_lfm2, build_mamba, build_mamba2

MODELS: dict[str, GgufFile] = {
    name: build_model(shape)
    for name, shape in {
        "Llama 2 7B (every head its own keys)": Shape(
            layers=32, embedding=4096, feed_forward=11_008, heads=32, kv_heads=32, vocabulary=32_000, context=4096,
            tied=False, type="Q4_0",
        ),
        "Llama 3.1 8B": Shape(
            layers=32, embedding=4096, feed_forward=14_336, heads=32, kv_heads=8, vocabulary=128_256, context=131_072,
            tied=False, type="Q4_0",
        ),
        "Llama 3.1 70B": Shape(
            layers=80, embedding=8192, feed_forward=28_672, heads=64, kv_heads=8, vocabulary=128_256, context=131_072,
            tied=False, type="Q4_K",
        ),
        "Qwen2.5 7B": Shape(
            "qwen2", layers=28, embedding=3584, feed_forward=18_944, heads=28, kv_heads=4, vocabulary=152_064,
            context=131_072, tied=False, type="Q8_0",
        ),
        "Qwen3 32B": Shape(
            "qwen3", layers=64, embedding=5120, feed_forward=25_600, heads=64, kv_heads=8, head_length=128,
            vocabulary=151_936, context=40_960, tied=False, type="Q6_K",
        ),
        "Qwen3 30B-A3B (128 experts)": Shape(
            "qwen3moe", layers=48, embedding=2048, feed_forward=768, heads=32, kv_heads=4, head_length=128,
            vocabulary=151_936, context=40_960, experts=128, experts_used=8, tied=False, type="Q4_K",
        ),
        "Mixtral 8x7B (8 experts)": Shape(
            layers=32, embedding=4096, feed_forward=14_336, heads=32, kv_heads=8, vocabulary=32_000, context=32_768,
            experts=8, experts_used=2, tied=False, type="Q4_0",
        ),
        "Gemma 3 27B (sliding window)": Shape(
            "gemma3", layers=62, embedding=5376, feed_forward=21_504, heads=32, kv_heads=16, head_length=128,
            vocabulary=262_144, context=131_072, sliding_window=1024, type="Q4_0",
        ),
    }.items()
} | {
    "DeepSeek V2 Lite's attention (one latent vector)": build_deepseek2(layers=27, embedding=2048, vocabulary=102_400),
    "Mamba 2.8B (recurrent)": build_mamba(layers=64, embedding=2560, vocabulary=50_280),
    "Mamba 2 2.7B (recurrent)": build_mamba2(layers=64, embedding=2560, vocabulary=50_288),
    "Granite 4's hybrid": build_granite_hybrid(layers=40, embedding=1536, vocabulary=100_352),
    "LFM2's short convolutions": build_lfm2(layers=16, embedding=2048, vocabulary=65_536),
}  # fmt: skip
