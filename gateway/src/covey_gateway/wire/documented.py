"""What the OpenAPI document says of each call with a body: from the very lists by which its fields are taken.

Beyond names and kinds a schema is written by hand where a parser looks deeper. A test holds it against the parsers:
what the document calls wrong must be refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from covey_gateway.wire.anthropic import fields as anthropic
from covey_gateway.wire.anthropic.request import COUNT_PATH, MESSAGES_PATH
from covey_gateway.wire.formats import OLLAMA_ROOTS
from covey_gateway.wire.ollama import fields as ollama
from covey_gateway.wire.openai import chat, embeddings, texts
from covey_gateway.wire.openai import fields as openai
from covey_gateway.wire.responses import fields as responses
from covey_gateway.wire.responses import request as responses_request

Schema = dict[str, Any]

_WORDS: Mapping[str, Schema] = {
    "string": {"type": "string"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "array": {"type": "array"},
    "object": {"type": "object"},
    "strings": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
}
_MODEL: Schema = {"type": "string", "minLength": 1}
_COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
_FLAG: Schema = {"type": "boolean"}
_TEXT: Schema = {"type": "string"}
_TOKENS: Schema = {"type": "array", "items": {"type": "integer"}}
_TEXTS: Schema = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"anyOf": [_TEXT, {"type": "integer"}, _TOKENS]}},
    ]
}


@dataclass(frozen=True, slots=True)
class Documented:
    """One call with a body."""

    summary: str
    properties: Mapping[str, Schema]
    required: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    """Names that are refused, and what to use instead."""
    streams: bool = False


def _properties(known: Iterable[str], kinds: Mapping[str, str], **deeper: Schema) -> dict[str, Schema]:
    """Of every name; null says what absence says, unless it is looked at deeper."""
    found: dict[str, Schema] = {}
    for name in sorted(known):
        found[name] = deeper.get(name) or _nullable(_WORDS[kinds[name]] if name in kinds else {})
    return found


def _nullable(schema: Schema) -> Schema:
    if "type" in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [*schema["anyOf"], {"type": "null"}]} if schema else {}


def _message(roles: Iterable[str], content: Schema) -> Schema:
    one = {"type": "object", "required": ["role"], "properties": {"role": {"enum": sorted(roles)}, "content": content}}
    return {"type": "array", "minItems": 1, "items": one}


_PART: Schema = {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}
_PARTS: Schema = {"type": "array", "items": _PART}
_CHAT_CONTENT: Schema = {"anyOf": [{"type": "string"}, {"type": "null"}, _PARTS]}
_STREAM_OPTIONS: Schema = {
    "type": ["object", "null"],
    "properties": dict.fromkeys(sorted(chat.STREAM_OPTIONS), _nullable(_FLAG)),
    "additionalProperties": False,
    "description": "Only with `stream`.",
}
_SHARED: dict[str, Schema] = {"model": _MODEL, "stream": _nullable(_FLAG)}
_LENGTHS = dict.fromkeys(("max_tokens", "max_completion_tokens"), _nullable(_COUNT))

_CHAT = Documented(
    "OpenAI's chat completions",
    _properties(
        openai.CHAT_FIELDS,
        openai.CHAT_KINDS,
        **_SHARED,
        **_LENGTHS,
        stream_options=_STREAM_OPTIONS,
        messages=_message(chat.ROLES, _CHAT_CONTENT),
        n=_nullable(_COUNT),
        reasoning_format={"enum": [*openai.ENUMS["reasoning_format"], None]},
    ),
    ("model", "messages"),
    openai.REFUSED,
    streams=True,
)
_TEXTS_CALL = Documented(
    "OpenAI's older completions",
    _properties(
        openai.TEXT_FIELDS,
        texts.KINDS,
        **_SHARED,
        stream_options=_STREAM_OPTIONS,
        max_tokens=_nullable(_COUNT | {"minimum": 0}),
        n=_nullable(_COUNT),
        prompt=_TEXTS,
    ),
    ("model", "prompt"),
    texts.REFUSED,
    streams=True,
)
_RESPONSES = Documented(
    "OpenAI's Responses, without state",
    _properties(
        responses.KNOWN,
        responses.KINDS,
        **_SHARED,
        max_output_tokens=_nullable(_COUNT),
        truncation={"enum": ["disabled", None]},
        input={"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "object"}}]},
    ),
    ("model", "input"),
    responses.REFUSED,
    streams=True,
)
_ANTHROPIC_MESSAGES = _message(("user", "assistant", "system"), {"anyOf": [_TEXT, _PARTS]})
_ANTHROPIC_MESSAGES["items"]["required"] = ["role", "content"]
_MESSAGES_PROPERTIES = _properties(
    anthropic.MESSAGES_FIELDS, anthropic.KINDS, **_SHARED, max_tokens=_COUNT, messages=_ANTHROPIC_MESSAGES
)
_MESSAGES = Documented(
    "Anthropic's Messages",
    _MESSAGES_PROPERTIES,
    ("model", "messages", "max_tokens"),
    anthropic.REFUSED,
    streams=True,
)
_COUNT_TOKENS = Documented(
    "Anthropic's count of a prompt's tokens",
    {name: schema if name != "max_tokens" else {} for name, schema in _MESSAGES_PROPERTIES.items()},
    ("model", "messages"),
    anthropic.REFUSED,
)
_EMBEDDINGS = Documented(
    "OpenAI's embeddings",
    _properties(
        embeddings.EMBEDDINGS_FIELDS,
        {"user": "string"},
        model=_MODEL,
        input=_TEXTS,
        dimensions=_nullable(_COUNT),
        encoding_format={"enum": ["float", "base64", None]},
    ),
    ("model", "input"),
    embeddings.REFUSED,
)
_DOCUMENT: Schema = {
    "anyOf": [_TEXT, {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}]
}
_RERANK = Documented(
    "Rerank, in Jina's and Cohere's shape",
    _properties(
        embeddings.RERANK_FIELDS,
        {},
        model=_MODEL,
        query={"type": "string", "minLength": 1},
        documents={"type": "array", "minItems": 1, "items": _DOCUMENT},
        top_n=_nullable(_COUNT),
        return_documents=_nullable(_FLAG),
    ),
    ("model", "query", "documents"),
    embeddings.REFUSED,
)
_ONE_TEXT: Schema = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "string", "minLength": 1}},
    ]
}
_SOME_TEXTS: Schema = {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _TEXT}]}
_SCORE = Documented(
    "One text's relevance for each of others",
    _properties(embeddings.SCORE_FIELDS, {}, model=_MODEL, text_1=_ONE_TEXT, text_2=_SOME_TEXTS),
    ("model", "text_1", "text_2"),
    embeddings.REFUSED,
)


def _ollama(summary: str, known: frozenset[str], *, streams: bool = False, **deeper: Schema) -> Documented:
    either = "name" in known  # older clients' word for it; newer ones send it empty
    named = {"model": _nullable(_TEXT) if either else _MODEL, "stream": _nullable(_FLAG)}
    refused = {name: words for name, words in ollama.REFUSED.items() if name not in known}
    return Documented(
        summary,
        _properties(known, ollama.KINDS, **named, **deeper),
        () if either else ("model",),
        refused,
        streams=streams,
    )


_OLLAMA: Mapping[str, Documented] = {
    "/api/chat": _ollama("Ollama's chat; streams by default", ollama.CHAT_FIELDS, streams=True),
    "/api/generate": _ollama("Ollama's generate; streams by default", ollama.GENERATE_FIELDS, streams=True),
    "/api/embed": _ollama("Ollama's embeddings", ollama.EMBED_FIELDS, input=_WORDS["strings"]),
    "/api/embeddings": _ollama("Ollama's older embeddings", ollama.EMBEDDINGS_FIELDS),
    "/api/show": _ollama("What Ollama tells of a model", ollama.SHOW_FIELDS),
    "/api/pull": _ollama("Succeeds for what is declared", ollama.PULL_FIELDS, streams=True),
}

CALLS: Mapping[str, Documented] = {
    chat.PATH: _CHAT,
    texts.PATH: _TEXTS_CALL,
    responses_request.PATH: _RESPONSES,
    MESSAGES_PATH: _MESSAGES,
    COUNT_PATH: _COUNT_TOKENS,
    embeddings.EMBEDDINGS_PATH: _EMBEDDINGS,
    **dict.fromkeys(embeddings.RERANK_PATHS, _RERANK),
    **dict.fromkeys(embeddings.SCORE_PATHS, _SCORE),
    **{root.decode() + path: call for root in OLLAMA_ROOTS for path, call in _OLLAMA.items()},
}
