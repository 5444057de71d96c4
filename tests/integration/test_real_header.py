"""The header of the real model, read by the planner."""

import pytest
from covey_planner.geometry.gguf import parse_gguf_geometry
from kit.real import provide_real_parts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_real_header_of_smollm2() -> None:
    path = provide_real_parts().model
    with path.open("rb") as file:
        prefix = file.read(4 * 2**20)
    found = parse_gguf_geometry(prefix, path.stat().st_size)
    assert (found.architecture, found.layer_count, found.context_tokens) == ("llama", 30, 8192)
    assert (found.parameter_count, found.weights_bytes) == (134_515_008, 96_576_768)
    assert (found.head_count, found.kv_head_counts, found.key_length) == (9, (3,) * 30, 64)
    assert (found.embedding_length, found.feed_forward_length, found.vocabulary_size) == (576, 1536, 49_152)
    assert (found.token_embedding_bytes, found.repack_bytes) == (30_081_024, 33_619_968)
