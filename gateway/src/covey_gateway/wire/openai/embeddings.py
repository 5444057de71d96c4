"""Embeddings, rerank and score: asked and answered whole.

Rerank has Jina's and Cohere's shape at once (`results` with `index` and `relevance_score`); score is vLLM's, one query
against each text. Vectors are asked of the engine as numbers and packed here where a client wants base64: what an
engine packs, in which order of bytes, is then no question.
"""

import base64
import struct
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from covey_gateway.limits import MAX_ANSWER_BYTES
from covey_gateway.wire.body import (
    Fields,
    check_fields,
    check_kinds,
    check_texts,
    decode_object,
    is_array,
    read_count,
    read_flag,
    read_model,
    read_struct,
    read_value,
)
from covey_gateway.wire.chunks import count
from covey_gateway.wire.errors import ApiError, ensure, invalid_request, refusing
from covey_gateway.wire.openai.errors import engine_failed, render_error_event
from covey_gateway.wire.request import Call, Request

EMBEDDINGS_PATH = "/v1/embeddings"
RERANK_PATHS = ("/v1/rerank", "/rerank", "/v2/rerank")
SCORE_PATHS = ("/v1/score", "/score")

EMBEDDINGS_FIELDS = frozenset(("model", "input", "encoding_format", "dimensions", "user"))
RERANK_FIELDS = frozenset(("model", "query", "documents", "top_n", "return_documents"))
SCORE_FIELDS = frozenset(("model", "text_1", "text_2"))
_SHARED = "slots and caches are the engine's own"
REFUSED = {
    "truncate": "texts are never cut silently; too long a one is refused",
    "truncate_prompt_tokens": "texts are never cut silently; too long a one is refused",
    "max_tokens_per_doc": "texts are never cut silently; too long a one is refused",
    "max_chunks_per_doc": "texts are never cut silently; too long a one is refused",
    "embd_normalize": "vectors are normalised, as OpenAI's are",
    "id_slot": _SHARED,
    "cache_prompt": _SHARED,
    "priority": "the order of requests is the gateway's to choose",
}


class _Text(msgspec.Struct):
    text: str


_DOCUMENTS = msgspec.json.Decoder(list[str | _Text])
_TEXTS = msgspec.json.Decoder(str | list[str])


def _open(body: bytes, known: frozenset[str], kinds: dict[str, str], call: str) -> tuple[Fields, str]:
    fields = ensure(decode_object(body, frozenset((*known, *REFUSED))))
    ensure(check_fields(fields, known, REFUSED, call) or check_kinds(fields, kinds))
    return fields, ensure(read_model(fields))


@refusing
def parse_embeddings(body: bytes) -> Request | ApiError:
    kinds = {"encoding_format": "string", "user": "string"}
    fields, model = _open(body, EMBEDDINGS_FIELDS, kinds, "embeddings")
    ensure(check_texts(fields, "input"))
    form = read_value(fields, "encoding_format") or "float"
    if form not in ("float", "base64"):
        return invalid_request("`encoding_format` must be 'float' or 'base64'", "encoding_format")
    dimensions = ensure(read_count(fields, "dimensions"))
    sent: dict[str, Any] = {"input": fields["input"]} | ({"dimensions": dimensions} if dimensions is not None else {})
    return Request(
        Call.EMBEDDING, model, sent, lambda name: Embeddings(name, form == "base64", dimensions), prompt_field="input"
    )


class _Embedding(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _Found(msgspec.Struct):
    data: list[_Embedding]
    usage: dict[str, Any] = {}


def check_dimensions(vectors: Sequence[Sequence[float]], wished: int | None, model: str) -> ApiError | None:
    """Engines that can't shorten a vector ignore the wish."""
    found = len(vectors[0]) if vectors else 0
    if wished is None or found == wished:
        return None
    return invalid_request(
        f"`dimensions` must be {found}, which is what model '{model}' has; got {wished}", "dimensions"
    )


class Embeddings:
    def __init__(self, model: str, is_packed: bool, dimensions: int | None) -> None:
        self._model = model
        self._is_packed = is_packed
        self._dimensions = dimensions
        self._found = _Found([])

    def take(self, events: bytes) -> bytes | ApiError:
        try:
            self._found = msgspec.json.decode(events[:MAX_ANSWER_BYTES], type=_Found)
        except (msgspec.DecodeError, RecursionError):
            return engine_failed(self._model, "it wrote no embeddings")
        return check_dimensions([one.embedding for one in self._found.data], self._dimensions, self._model) or b""

    def end(self) -> bytes:
        rendered = [
            {"object": "embedding", "index": one.index, "embedding": self._render(one.embedding)}
            for one in sorted(self._found.data, key=lambda one: one.index)
        ]
        prompt = count(self._found.usage, "prompt_tokens")
        usage = {"prompt_tokens": prompt, "total_tokens": prompt}
        return msgspec.json.encode({"object": "list", "data": rendered, "model": self._model, "usage": usage})

    def _render(self, vector: list[float]) -> list[float] | str:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if self._is_packed else vector

    def fail(self, error: ApiError) -> bytes:
        return render_error_event(error)


@refusing
def parse_rerank(body: bytes) -> Request | ApiError:
    fields, model = _open(body, RERANK_FIELDS, {"query": "string", "documents": "array"}, "rerank")
    query, top = ensure(read_value(fields, "query")), ensure(read_count(fields, "top_n"))
    returns = ensure(read_flag(fields, "return_documents"))
    documents: list[str | _Text] = ensure(
        read_struct(fields.get("documents", msgspec.Raw(b"[]")), "documents", _DOCUMENTS)
    )
    if not query or not documents:
        missing = "documents" if query else "query"
        return invalid_request(f"`{missing}` must be given, and not be empty", missing)
    texts = [one if isinstance(one, str) else one.text for one in documents]
    told = texts if returns else None
    sent: dict[str, Any] = {"query": query, "documents": texts}
    return Request(
        Call.RERANK,
        model,
        sent,
        lambda name: Ranking(name, "rerank", top or len(texts), told),
        prompt_field="documents",
    )


@refusing
def parse_score(body: bytes) -> Request | ApiError:
    fields, model = _open(body, SCORE_FIELDS, {"text_1": "strings", "text_2": "strings"}, "score")
    first, second = (_read_texts(fields, name) for name in ("text_1", "text_2"))
    if len(first) != 1 or not first[0] or not second:
        return invalid_request("`text_1` must be one string, and `text_2` one or several", "text_1")
    sent: dict[str, Any] = {"query": first[0], "documents": second}
    return Request(
        Call.RERANK, model, sent, lambda name: Ranking(name, "score", len(second), None), prompt_field="text_2"
    )


def _read_texts(fields: Fields, name: str) -> list[str]:
    found: Any = ensure(read_struct(fields.get(name, msgspec.Raw(b"[]")), name, _TEXTS))
    return found if is_array(found) else [found]


class _Score(msgspec.Struct):
    index: int
    relevance_score: float


class _Scores(msgspec.Struct):
    results: list[_Score]
    usage: dict[str, Any] = {}
    id: str | None = None


class Ranking:
    """`texts`: told with their scores where the client wants them."""

    def __init__(self, model: str, shape: Literal["rerank", "score"], limit: int, texts: list[str] | None) -> None:
        self._model = model
        self._shape = shape
        self._limit = limit
        self._texts = texts
        self._found = _Scores([])

    def take(self, events: bytes) -> bytes | ApiError:
        try:
            self._found = msgspec.json.decode(events[:MAX_ANSWER_BYTES], type=_Scores)
        except (msgspec.DecodeError, RecursionError):
            return engine_failed(self._model, "it wrote no scores")
        return b""

    def end(self) -> bytes:
        total = count(self._found.usage, "total_tokens") or count(self._found.usage, "prompt_tokens")
        usage = {"prompt_tokens": total, "total_tokens": total}
        if self._shape == "score":
            scores = sorted(self._found.results, key=lambda one: one.index)
            content = [{"object": "score", "index": one.index, "score": one.relevance_score} for one in scores]
            return msgspec.json.encode({"object": "list", "model": self._model, "data": content, "usage": usage})
        ranked = sorted(self._found.results, key=lambda one: (-one.relevance_score, one.index))[: self._limit]
        results = [self._render(one) for one in ranked]
        return msgspec.json.encode({"object": "list", "model": self._model, "results": results, "usage": usage})

    def _render(self, score: _Score) -> dict[str, Any]:
        result: dict[str, Any] = {"index": score.index, "relevance_score": score.relevance_score}
        if self._texts is not None and 0 <= score.index < len(self._texts):
            result["document"] = {"text": self._texts[score.index]}
        return result

    def fail(self, error: ApiError) -> bytes:
        return render_error_event(error)
