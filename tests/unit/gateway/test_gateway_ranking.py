"""Rerank and score: three shapes of one question. The engine's answer has the fields that llama-server's own test of
`/v1/rerank` reads (`results` with `index` and `relevance_score`, `usage`)."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.embeddings import parse_rerank, parse_score
from covey_gateway.wire.request import Call, Parsed, Request, render_request

ENGINE = {
    "model": "engine's",
    "object": "list",
    "usage": {"prompt_tokens": 12, "total_tokens": 12},
    "results": [
        {"index": 0, "relevance_score": -2.5},
        {"index": 1, "relevance_score": 3.25},
        {"index": 2, "relevance_score": 0.5},
    ],
}
TEXTS = ["a", "b", "c"]


def answer(parse: Callable[[bytes], Parsed], **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the engine is asked, and what the client gets."""
    request = parse(json.dumps({"model": "m"} | fields).encode())
    assert isinstance(request, Request), request
    assert request.call is Call.RERANK
    teller = request.make_teller("m")
    assert teller.take(json.dumps(ENGINE).encode()) == b""
    return json.loads(render_request(request, "m", "")), json.loads(teller.end())


def test_documents_come_best_first_and_only_as_many_as_asked() -> None:
    asked, told = answer(parse_rerank, query="q", documents=TEXTS, top_n=2)
    assert asked == {"model": "m", "query": "q", "documents": TEXTS}
    assert told["results"] == [{"index": 1, "relevance_score": 3.25}, {"index": 2, "relevance_score": 0.5}]
    assert told["usage"] == {"prompt_tokens": 12, "total_tokens": 12}


def test_documents_are_told_where_they_are_wanted_also_of_objects() -> None:
    documents = [{"text": "a"}, "b", {"text": "c"}]
    asked, told = answer(parse_rerank, query="q", documents=documents, return_documents=True)
    assert asked["documents"] == TEXTS
    assert [one["document"]["text"] for one in told["results"]] == ["b", "c", "a"]


def test_scores_keep_the_order_of_the_texts() -> None:
    asked, told = answer(parse_score, text_1="q", text_2=TEXTS)
    assert asked["query"] == "q"
    assert [one["score"] for one in told["data"]] == [-2.5, 3.25, 0.5]


@pytest.mark.parametrize(
    ("parse", "fields"),
    [
        (parse_rerank, {"query": "", "documents": TEXTS}),
        (parse_rerank, {"query": "q", "documents": []}),
        (parse_rerank, {"query": "q", "documents": [1]}),
        (parse_rerank, {"query": "q", "documents": TEXTS, "top_n": 0}),
        (parse_score, {"text_1": TEXTS, "text_2": TEXTS}),
        (parse_score, {"text_1": "q"}),
    ],
)
def test_what_cannot_be_ranked_is_refused(parse: Callable[[bytes], Parsed], fields: dict[str, Any]) -> None:
    error = parse(json.dumps({"model": "m"} | fields).encode())
    assert isinstance(error, ApiError)
    assert error.status == 400


def test_an_answer_that_ranks_nothing_is_the_engines_failure() -> None:
    request = parse_rerank(json.dumps({"model": "m", "query": "q", "documents": TEXTS}).encode())
    assert isinstance(request, Request)
    error = request.make_teller("m").take(b'{"data":[]}')
    assert isinstance(error, ApiError)
    assert error.status == 502
