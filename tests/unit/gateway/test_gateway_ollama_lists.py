"""What Ollama's own command reads in lists: it cuts the first twelve letters off a digest, come what may."""

from covey_gateway.wire.ollama.catalog import render_running, render_tags
from covey_gateway.wire.request import Listing


def test_a_model_is_listed_with_its_weights_or_at_least_with_a_digest() -> None:
    known = Listing("a", 1, ("Chat",), True, 4096, weights_bytes=98_362_432, weights_digest="ab" * 32)
    unread = Listing("b", 1, ("Chat",), True, 4096)
    for render in (render_tags, render_running):
        first, second = render([known, unread])["models"]
        assert (first["size"], first["digest"]) == (98_362_432, "ab" * 32)
        assert (second["size"], len(second["digest"]), int(second["digest"], 16) > 0) == (0, 64, True)
        assert second["digest"] != render([Listing("c", 1, ("Chat",), True, 4096)])["models"][0]["digest"]
