"""One real model in two formats: what its authors publish, and the GGUF file that is made of it."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from covey_agent.artifacts.checkpoint import read_checkpoint
from covey_agent.artifacts.local import read_pieces
from kit.loading import read_geometry
from kit.real_models import provide_minilm, provide_minilm_folder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_published_encoder_has_the_geometry_of_its_gguf_file() -> None:
    gguf, folder = read_geometry(provide_minilm()), provide_minilm_folder()
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}

    async def open_file(name: str) -> tuple[AsyncGenerator[bytes], int] | None:
        return (read_pieces(str(folder / name)), sizes[name]) if name in sizes else None

    found = asyncio.run(read_checkpoint(open_file, "the folder"))
    names = ("architecture", "layer_count", "context_tokens", "embedding_length", "feed_forward_length", "head_count")
    names += ("vocabulary_size", "kv_head_counts", "key_length", "token_embedding_bytes", "has_gate")
    assert {name: getattr(found, name) for name in names} == {name: getattr(gguf, name) for name in names}
    # A pooler and a list of positions, which the engine doesn't load.
    assert found.weights_bytes - gguf.weights_bytes == 4 * (384 * 384 + 384) + 8 * 512
