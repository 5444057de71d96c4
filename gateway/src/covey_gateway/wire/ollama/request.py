"""Ollama's requests: chat, generate and embed as an engine is asked, show and pull for the gateway itself.

Settled here: `keep_alive` is accepted and means nothing (what is declared is loaded, as `/api/ps` says). `num_ctx` up
to the window is accepted, above it refused: a prompt is never cut, so `truncate` and `shift` mean nothing, which Ollama
takes for true where nobody says so. No messages, or an empty prompt, ask for the model to be loaded: they wait for it
as requests do, and that starts one that sleeps. With a `keep_alive` of 0 they ask for it to go, which is declared too:
they wait for nothing, and are told how it is.
"""

from collections import deque
from typing import Any, Literal

import msgspec

from covey_gateway.wire.body import (
    Fields,
    check_fields,
    check_kinds,
    decode_object,
    first_byte,
    read_count,
    read_flag,
    read_struct,
    read_value,
    refuse_field,
)
from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.media import place_image
from covey_gateway.wire.nothing import asks_nothing
from covey_gateway.wire.ollama import catalog
from covey_gateway.wire.ollama.answer import ChatLines, EmbedAnswer, GenerateLines, TextLines
from covey_gateway.wire.ollama.fields import (
    CHAT_FIELDS,
    EMBED_FIELDS,
    EMBEDDINGS_FIELDS,
    GENERATE_FIELDS,
    KINDS,
    PULL_FIELDS,
    REFUSED,
    SHOW_FIELDS,
)
from covey_gateway.wire.ollama.options import Options, read_options
from covey_gateway.wire.openai.chat import check_schemas
from covey_gateway.wire.openai.tools import choose_tools
from covey_gateway.wire.request import TAG, WITH_USAGE, Call, Parsed, Question, Request

_EFFORTS = ("low", "medium", "high")
# Nothing of these is in a prompt without a template.
_NOT_RAW = ("format", "images", "system")
_STREAM_BY_DEFAULT = True
_LIMIT_FIELD = "options.num_predict"


class _Function(msgspec.Struct):
    name: str
    arguments: dict[str, Any] = {}


class _ToolCall(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Message(msgspec.Struct):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


_MESSAGES = msgspec.json.Decoder(list[_Message])
_IMAGES = msgspec.json.Decoder(list[str])
_TEXTS = msgspec.json.Decoder(str | list[str])


def _open(body: bytes, known: frozenset[str], call: str) -> tuple[Fields, str] | ApiError:
    """The fields, and the model that is asked for."""
    fields = decode_object(body, frozenset((*known, *REFUSED)))
    if isinstance(fields, ApiError):
        return fields
    refused = {name: words for name, words in REFUSED.items() if name not in known}
    if (error := check_fields(fields, known, refused, call) or check_kinds(fields, KINDS)) is not None:
        return error
    # Older clients say `name`, and newer ones in Go both, one of them empty.
    name = read_value(fields, "model")
    name = read_value(fields, "name") if name in (None, "") else name
    if isinstance(name, str) and name.removesuffix(TAG):
        return fields, name
    return invalid_request("`model` must be a non-empty string; GET /api/tags lists what there is", "model")


def parse_chat(body: bytes) -> Parsed:
    opened = _open(body, CHAT_FIELDS, "/api/chat")
    if isinstance(opened, ApiError):
        return opened
    fields, model = opened
    raw = fields.get("messages", msgspec.Raw(b"[]"))
    messages = read_struct(raw, "messages", _MESSAGES)
    if isinstance(messages, ApiError):
        return messages
    if not messages:
        return Question(model, catalog.tell_loaded_chat, needs_ready=not _unloads(fields))
    rendered, media = _render_messages(messages)
    return _ask(fields, model, rendered, media, ChatLines)


def parse_generate(body: bytes) -> Parsed:
    opened = _open(body, GENERATE_FIELDS, "/api/generate")
    if isinstance(opened, ApiError):
        return opened
    fields, model = opened
    prompt, system = read_value(fields, "prompt") or "", read_value(fields, "system") or ""
    images = read_struct(fields.get("images", msgspec.Raw(b"[]")), "images", _IMAGES)
    is_raw = read_flag(fields, "raw")
    for found in (prompt, system, images, is_raw):
        if isinstance(found, ApiError):
            return found
    if not prompt and not images:
        return Question(model, catalog.tell_loaded_text, needs_ready=not _unloads(fields))
    if is_raw:
        return _ask_raw(fields, model, prompt)
    message = _Message("user", prompt, images=images or None)
    rendered, media = _render_messages([*([_Message("system", system)] if system else []), message])
    return _ask(fields, model, rendered, media, GenerateLines, "prompt")


def _unloads(fields: Fields) -> bool:
    seconds = read_value(fields, "keep_alive")
    return seconds == 0 or (isinstance(seconds, str) and seconds.rstrip("hmsuµn") == "0")


def _ask(
    fields: Fields,
    model: str,
    messages: list[dict[str, Any]],
    media: str,
    make_lines: type[ChatLines],
    prompt_field: str = "messages",
) -> Request | ApiError:
    opened = _read_options(fields)
    if isinstance(opened, ApiError):
        return opened
    options, wants_stream = opened
    sent: dict[str, Any] = {"messages": messages, **options.fields, "stream_options": WITH_USAGE}
    if (error := choose_tools(fields) or check_schemas(fields, ("tools", "format"))) is not None:
        return error
    if "tools" in fields:
        sent["tools"] = fields["tools"]
    form = _render_format(fields)
    if isinstance(form, ApiError):
        return form
    think = read_value(fields, "think")
    if not (isinstance(think, bool | None) or think in _EFFORTS):
        return invalid_request("`think` must be true, false, 'low', 'medium' or 'high'", "think")
    if think is not None:
        sent["chat_template_kwargs"] = {"enable_thinking": bool(think)}
    if isinstance(think, str):
        sent["reasoning_effort"] = think
    return Request(
        Call.CHAT,
        model,
        sent | form,
        lambda name: make_lines(name, wants_stream),
        wants_stream,
        options.max_tokens,
        place_image(messages, media),
        options.window_tokens,
        prompt_field=prompt_field,
        limit_field=_LIMIT_FIELD,
    )


def _ask_raw(fields: Fields, model: str, prompt: str) -> Request | ApiError:
    """A prompt without a template."""
    for name in _NOT_RAW:
        if name in fields and not asks_nothing(name, fields[name]):
            return refuse_field(
                name, {name: "with `raw` the prompt is all that the model is given"}, (), "/api/generate"
            )
    opened = _read_options(fields)
    if isinstance(opened, ApiError):
        return opened
    options, wants_stream = opened
    sent = {"prompt": prompt, **options.fields, "stream_options": WITH_USAGE}
    return Request(
        Call.COMPLETION,
        model,
        sent,
        lambda name: TextLines(name, wants_stream),
        wants_stream,
        options.max_tokens,
        window_tokens=options.window_tokens,
        prompt_field="prompt",
        limit_field=_LIMIT_FIELD,
    )


def _read_options(fields: Fields) -> tuple[Options, bool] | ApiError:
    wants_stream = read_flag(fields, "stream", _STREAM_BY_DEFAULT)
    options = read_options(fields)
    if isinstance(options, ApiError):
        return options
    return wants_stream if isinstance(wants_stream, ApiError) else (options, wants_stream)


def _render_format(fields: Fields) -> dict[str, Any] | ApiError:
    raw = fields.get("format")
    if raw is None or first_byte(raw) == b"n" or bytes(raw) == b'""':
        return {}
    form = read_value(fields, "format")
    if isinstance(form, ApiError):
        return form
    if form == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(form, dict):
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": form}}}
    return invalid_request("`format` must be 'json' or a JSON schema", "format")


def _render_messages(messages: list[_Message]) -> tuple[list[dict[str, Any]], str]:
    """As a chat, and where its first image is. Calls and their results have no ids here: they follow one another."""
    rendered: list[dict[str, Any]] = []
    due: deque[str] = deque()
    media = ""
    for index, message in enumerate(messages):
        one: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            one["reasoning_content"] = message.thinking
        if message.images:
            media = media or f"messages[{index}].images"
            one["content"] = [{"type": "text", "text": message.content or ""}, *map(_render_image, message.images)]
        if message.tool_calls:
            ids = [call.id or f"call_{index}_{number}" for number, call in enumerate(message.tool_calls)]
            one["tool_calls"] = [_render_call(*pair) for pair in zip(ids, message.tool_calls, strict=True)]
            due += ids
        if message.role == "tool":
            one["tool_call_id"] = message.tool_call_id or (due.popleft() if due else f"call_{index}")
        rendered.append(one)
    return rendered, media


def _render_image(content: str) -> dict[str, Any]:
    """Only its bytes are known; engines look into them for what it is."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}


def _render_call(id_: str, call: _ToolCall) -> dict[str, Any]:
    arguments = msgspec.json.encode(call.function.arguments).decode()
    return {"id": id_, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def parse_embed(body: bytes) -> Parsed:
    opened = _open(body, EMBED_FIELDS, "/api/embed")
    if isinstance(opened, ApiError):
        return opened
    fields, model = opened
    texts = read_struct(fields.get("input", msgspec.Raw(b"null")), "input", _TEXTS)
    if isinstance(texts, ApiError):
        return texts
    dimensions = read_count(fields, "dimensions")
    if isinstance(dimensions, ApiError):
        return dimensions
    sent = {"input": fields["input"]} | ({"dimensions": dimensions} if dimensions is not None else {})
    return Request(
        Call.EMBEDDING,
        model,
        sent,
        lambda name: EmbedAnswer(name, is_list=True, dimensions=dimensions),
        prompt_field="input",
    )


def parse_embeddings(body: bytes) -> Parsed:
    """The older call: one prompt, one vector."""
    opened = _open(body, EMBEDDINGS_FIELDS, "/api/embeddings")
    if isinstance(opened, ApiError):
        return opened
    fields, model = opened
    if "prompt" not in fields:
        return invalid_request("`prompt` must be a string", "prompt")
    sent = {"input": fields["prompt"]}
    return Request(Call.EMBEDDING, model, sent, lambda name: EmbedAnswer(name, is_list=False), prompt_field="prompt")


def parse_show(body: bytes) -> Parsed:
    opened = _open(body, SHOW_FIELDS, "/api/show")
    return opened if isinstance(opened, ApiError) else Question(opened[1], catalog.tell_shown)


def parse_pull(body: bytes) -> Parsed:
    opened = _open(body, PULL_FIELDS, "/api/pull")
    if isinstance(opened, ApiError):
        return opened
    wants_stream = read_flag(opened[0], "stream", _STREAM_BY_DEFAULT)
    if isinstance(wants_stream, ApiError):
        return wants_stream
    tell = catalog.tell_pulled_lines if wants_stream else catalog.tell_pulled
    return Question(opened[1], tell, is_stream=wants_stream)
