"""What every format's adapter makes of a request: one type, whatever the client speaks.

An adapter is pure: bytes in, `Request` (for an engine), `Question` (for the gateway itself) or `ApiError` out; and a
`Teller`, which tells the engine's answer in the client's own words. Engines are asked in OpenAI's chat format alone,
which all of them speak.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import msgspec
from covey_api.engines import EngineName

from covey_gateway.wire.errors import ApiError

TAG = ":latest"
"""What Ollama's clients put behind a name that has no tag."""
TRUE = msgspec.Raw(b"true")
# An engine whose answer is put together or translated here is asked to count tokens.
WITH_USAGE = msgspec.Raw(b'{"include_usage":true}')
# What templates add of their own, a default system prompt above all; a message's marks are fewer than its JSON's bytes.
TEMPLATE_TOKENS = 1024
_ENCODE = msgspec.json.Encoder().encode


class Call(StrEnum):
    """What an engine is asked; the value is the path there."""

    CHAT = "/v1/chat/completions"
    COMPLETION = "/v1/completions"
    COUNT = "/v1/chat/completions/input_tokens"
    EMBEDDING = "/v1/embeddings"
    RERANK = "/v1/rerank"


STREAMED = frozenset((Call.CHAT, Call.COMPLETION))
"""Always asked for as a stream: closing one is the only way to stop an engine's decoding."""

TASKS: Mapping[Call, str] = {
    Call.CHAT: "Chat",
    Call.COMPLETION: "Chat",
    Call.COUNT: "Chat",
    Call.EMBEDDING: "Embedding",
    Call.RERANK: "Rerank",
}
"""What a model must do for a call."""

MEDIA_TASK = "Vision"
"""What a model must do to take images."""


class Teller(Protocol):
    """Tells one answer of an engine to its client. Nothing is told twice."""

    def take(self, events: bytes) -> bytes | ApiError:
        """What the client gets of these whole events now (for a call without a stream: of the whole body)."""
        ...

    def end(self) -> bytes:
        """The rest: what ends a stream, or the whole answer for a client that asked for none."""
        ...

    def fail(self, error: ApiError) -> bytes:
        """What ends a stream that has begun and can't go on."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """Something to ask of an engine."""

    call: Call
    model: str
    """As the client named it."""
    fields: Mapping[str, Any]
    """For the engine, all but `model`: values as they came, or ours."""
    make_teller: Callable[[str], Teller]
    """Given the Model's name."""
    wants_stream: bool = False
    max_tokens: int | None = None
    media: str = ""
    """Where its first image is; empty: it has none."""
    window_tokens: int = 0
    """The window that the client counts on (Ollama's `num_ctx`)."""
    unknown: ApiError | None = None
    """Why it is refused unless the model passes fields that nobody here knows."""
    wants_progress: bool = False
    """Whether the answer begins with how long the prompt is."""
    withholds_usage: bool = False
    """Whether its client didn't ask for the usage that the engine is asked for: it is dropped."""
    n: int = 1
    """Answers to each prompt, where there may be several of both."""
    is_single: bool = True
    """Whether it has one prompt and one answer."""
    prompt_field: str = "messages"
    """What its format calls the prompt."""
    limit_field: str = "max_tokens"
    """What its format calls the most tokens of an answer."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A Model as a format describes it."""

    name: str
    """To ask with."""
    created: int
    tasks: tuple[str, ...]
    is_ready: bool
    context_tokens: int | None
    weights_bytes: int = 0
    weights_digest: str = ""
    """Empty: nobody has read them."""


@dataclass(frozen=True, slots=True)
class Question:
    """Something the gateway answers itself, once the model is known."""

    model: str
    answer: Callable[[Listing], bytes]
    needs_ready: bool = False
    is_stream: bool = False


Parsed = Request | Question | ApiError


def has_extra_usage(request: Request, engine: str) -> bool:
    """Whether the engine is asked for usage that the client isn't told. llama-server tells `timings` unasked."""
    return request.withholds_usage and counts_asked(engine)


def counts_asked(engine: str) -> bool:
    """Whether it tells what an answer cost only where it is asked to."""
    return engine != EngineName.LLAMA_SERVER


def render_request(request: Request, model: str, engine: str) -> bytes:
    """The body for an engine."""
    fields: dict[str, Any] = {"model": model, **request.fields}
    if request.call in STREAMED:
        fields["stream"] = TRUE
    if request.max_tokens is not None:
        fields["max_tokens"] = request.max_tokens
    if request.wants_progress and engine == EngineName.LLAMA_SERVER:
        fields["return_progress"] = TRUE
    if has_extra_usage(request, engine):
        fields["stream_options"] = WITH_USAGE
    return _ENCODE(fields)
