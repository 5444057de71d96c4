"""Which path speaks which format: its adapter, its envelope, and what keeps its streams alive.

A path that is in no format answers in OpenAI's envelope, unless it is below one of the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from covey_gateway.wire.allowances import RenderAllowances
from covey_gateway.wire.allowances import render_anthropic as render_anthropic_allowances
from covey_gateway.wire.allowances import render_openai as render_openai_allowances
from covey_gateway.wire.anthropic.answer import PING
from covey_gateway.wire.anthropic.errors import render_envelope as render_anthropic
from covey_gateway.wire.anthropic.request import COUNT_PATH, MESSAGES_PATH, parse_count, parse_messages
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.ollama import request as ollama_request
from covey_gateway.wire.ollama.errors import render_envelope as render_ollama
from covey_gateway.wire.openai import chat, embeddings, texts
from covey_gateway.wire.openai.errors import render_envelope as render_openai
from covey_gateway.wire.request import Parsed
from covey_gateway.wire.responses import request as responses

Parse = Callable[[bytes], Parsed]


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    render_envelope: Callable[[ApiError], bytes]
    stream_type: bytes
    keep_alive: bytes
    """What a silent stream sends; empty: this format has nothing that means nothing."""
    render_allowances: RenderAllowances = render_openai_allowances


_SSE = b"text/event-stream; charset=utf-8"
_COMMENT = b": keep-alive\n\n"

OPENAI = Format("openai", render_openai, _SSE, _COMMENT)
ANTHROPIC = Format("anthropic", render_anthropic, _SSE, PING, render_anthropic_allowances)
OLLAMA = Format("ollama", render_ollama, b"application/x-ndjson", b"")

OLLAMA_ROOTS = (b"", b"/ollama")

_OLLAMA_PARSERS: Mapping[bytes, Parse] = {
    b"/api/chat": ollama_request.parse_chat,
    b"/api/generate": ollama_request.parse_generate,
    b"/api/embed": ollama_request.parse_embed,
    b"/api/embeddings": ollama_request.parse_embeddings,
    b"/api/show": ollama_request.parse_show,
    b"/api/pull": ollama_request.parse_pull,
}

HOT_PATHS: Mapping[bytes, tuple[Format, Parse]] = {
    chat.PATH.encode(): (OPENAI, chat.parse_chat),
    texts.PATH.encode(): (OPENAI, texts.parse_completion),
    responses.PATH.encode(): (OPENAI, responses.parse_response),
    embeddings.EMBEDDINGS_PATH.encode(): (OPENAI, embeddings.parse_embeddings),
    **{path.encode(): (OPENAI, embeddings.parse_rerank) for path in embeddings.RERANK_PATHS},
    **{path.encode(): (OPENAI, embeddings.parse_score) for path in embeddings.SCORE_PATHS},
    MESSAGES_PATH.encode(): (ANTHROPIC, parse_messages),
    COUNT_PATH.encode(): (ANTHROPIC, parse_count),
    **{root + path: (OLLAMA, parse) for root in OLLAMA_ROOTS for path, parse in _OLLAMA_PARSERS.items()},
}
"""Calls that carry a body, all of them by POST."""


def choose_format(path: bytes) -> Format:
    """Whose envelope an answer on this path has."""
    if (found := HOT_PATHS.get(path)) is not None:
        return found[0]
    if path.startswith((b"/api/", b"/ollama")):
        return OLLAMA
    return ANTHROPIC if path.startswith(b"/v1/messages") else OPENAI
