"""The estimator beside an independent one: alike, or different for a reason that is written down."""

import pytest
from covey_planner.geometry.gguf import parse_gguf_geometry
from kit.peer_models import MODELS
from kit.peers import ALIKE, DOCUMENT, FIXTURE, Peer, parse_peers, render_table, replace_table

PEERS = parse_peers(FIXTURE.read_text())
# Model, our share of the other's number, and the reason, which docs/reference/estimator.md tells in full. The share is
# pinned: an excuse for one difference is none for another.
OTHER_WEIGHTS = {
    "Gemma 3 27B (sliding window)": (0.950, "the output is the embedding"),
    "Mamba 2 2.7B (recurrent)": (0.955, "the output is the embedding"),
    "Mamba 2.8B (recurrent)": (0.955, "the output is the embedding"),
    "Granite 4's hybrid": (0.870, "the output is the embedding"),
    "LFM2's short convolutions": (0.833, "the output is the embedding"),
}
OTHER_CACHE = {
    "Gemma 3 27B (sliding window)": (0.602, "a micro batch beside the window, not a logical one"),
    "DeepSeek V2 Lite's attention (one latent vector)": (1.800, "the latent vector and no values"),
}
# Rounding of what is pinned.
PINNED = 0.0006


def test_a_dozen_families_are_compared() -> None:
    assert len(PEERS) >= 12
    assert len({peer.geometry.architecture for peer in PEERS}) >= 8


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.model)
def test_difference_above_5_percent_is_the_one_that_is_explained(peer: Peer) -> None:
    for ratio, excuses in ((peer.weights_ratio, OTHER_WEIGHTS), (peer.kv_cache_ratio, OTHER_CACHE)):
        pinned, _ = excuses.get(peer.model, (1.0, ""))
        assert abs(ratio - pinned) <= (PINNED if peer.model in excuses else ALIKE)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.model)
def test_geometry_that_is_compared_is_what_the_reader_reads_now(peer: Peer) -> None:
    made = MODELS[peer.model]
    assert parse_gguf_geometry(made.header, made.file_bytes) == peer.geometry


def test_table_in_the_docs_is_what_the_estimator_says_now() -> None:
    document = DOCUMENT.read_text()
    assert document == replace_table(document, render_table(PEERS)), "run tools/estimator_peers.py"
