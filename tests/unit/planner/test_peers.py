"""The estimator beside an independent one: alike, or different for a reason that is written down."""

import pytest
from kit.peers import ALIKE, DOCUMENT, FIXTURE, Peer, parse_peers, render_table, replace_table

PEERS = parse_peers(FIXTURE.read_text())
# Model and the reason, which docs/reference/estimator.md tells in full.
OTHER_WEIGHTS = {
    "Gemma 3 27B (sliding window)": "the output is the embedding",
    "Mamba 2 2.7B (recurrent)": "the output is the embedding",
    "Mamba 2.8B (recurrent)": "the output is the embedding",
    "Granite 4's hybrid": "the output is the embedding",
    "LFM2's short convolutions": "the output is the embedding",
}
OTHER_CACHE = {
    "Gemma 3 27B (sliding window)": "a micro batch beside the window, not a logical one",
    "DeepSeek V2 Lite's attention (one latent vector)": "the latent vector and no values",
}


def test_a_dozen_families_are_compared() -> None:
    assert len(PEERS) >= 12
    assert len({peer.geometry.architecture for peer in PEERS}) >= 8


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.model)
def test_difference_above_5_percent_is_one_that_is_explained(peer: Peer) -> None:
    assert abs(peer.weights_ratio - 1) <= ALIKE or peer.model in OTHER_WEIGHTS
    assert abs(peer.kv_cache_ratio - 1) <= ALIKE or peer.model in OTHER_CACHE


def test_table_in_the_docs_is_what_the_estimator_says_now() -> None:
    document = DOCUMENT.read_text()
    assert document == replace_table(document, render_table(PEERS)), "run tools/estimator_peers.py"
