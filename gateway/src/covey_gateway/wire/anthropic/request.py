"""A Messages request as a chat request: system, blocks and tools as an engine's template knows them.

Order is kept where a chat can keep it: results of tools come first in a user's turn, as Anthropic demands, and become
messages of their own. What a block carries for Anthropic's own machines (`cache_control`, signatures, citations) means
nothing to an engine and is left out. Claude Code's billing line changes with every request and would make every prompt
a new one for the engine's cache: it is left out too.
"""

from typing import Annotated, Any, Literal

import msgspec

from covey_gateway.wire.anthropic.answer import StreamedMessage, WholeCount, WholeMessage
from covey_gateway.wire.anthropic.blocks import Block, Part, read_parts, read_text, unsupported
from covey_gateway.wire.anthropic.fields import KINDS, MESSAGES_FIELDS, REFUSED
from covey_gateway.wire.body import (
    Fields,
    Unknown,
    check_kinds,
    decode_object,
    read_count,
    read_flag,
    read_model,
    read_struct,
    take_unknown,
)
from covey_gateway.wire.errors import ApiError, Refused, ensure, invalid_request, refusing
from covey_gateway.wire.media import place_image
from covey_gateway.wire.openai.chat import check_passed, check_schemas
from covey_gateway.wire.request import TEMPLATE_TOKENS, WITH_USAGE, Call, Request, Teller

MESSAGES_PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"

_DECODED = frozenset((*MESSAGES_FIELDS, *REFUSED))
# As far as the words of a failed tool are looked at for saying so themselves.
_SAYS_ERROR = 64
# What the prompt is made of.
_COUNTED = ("messages", "tools", "chat_template_kwargs", "reasoning_effort")
_BILLING = "x-anthropic-billing-header:"


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class _Tool(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None


class _ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Thinking(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None


class _Format(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class _OutputConfig(msgspec.Struct):
    format: _Format | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


_MESSAGES = msgspec.json.Decoder(list[_Message])
_SYSTEM = msgspec.json.Decoder(str | list[Block])
_TOOLS = msgspec.json.Decoder(list[_Tool])
_TOOL_CHOICE = msgspec.json.Decoder(_ToolChoice)
_THINKING = msgspec.json.Decoder(_Thinking)
_FORMAT = msgspec.json.Decoder(_Format)
_OUTPUT_CONFIG = msgspec.json.Decoder(_OutputConfig)
_STOPS = msgspec.json.Decoder(list[str])


@refusing
def parse_messages(body: bytes) -> Request | ApiError:
    fields, unknown = _open(body)
    model, wants_stream = ensure(read_model(fields)), ensure(read_flag(fields, "stream"))
    max_tokens = ensure(read_count(fields, "max_tokens"))
    if max_tokens is None:
        return invalid_request("`max_tokens` must be given: a whole number from 1", "max_tokens")
    sent, media = _render(fields)
    bound = TEMPLATE_TOKENS + sum(
        memoryview(fields[name]).nbytes for name in ("messages", "system", "tools") if name in fields
    )

    def make_teller(name: str) -> Teller:
        return StreamedMessage(name, bound) if wants_stream else WholeMessage(name)

    return Request(
        Call.CHAT,
        model,
        ensure(check_passed(unknown)) | sent,
        make_teller,
        wants_stream,
        max_tokens,
        media,
        unknown=unknown.error,
        wants_progress=wants_stream,
    )


@refusing
def parse_count(body: bytes) -> Request | ApiError:
    """`count_tokens`: the same prompt, counted by the engine that would take it."""
    fields, unknown = _open(body)
    model = ensure(read_model(fields))
    sent, media = _render(fields)
    kept = {name: sent[name] for name in _COUNTED if name in sent}
    passed = ensure(check_passed(unknown))
    return Request(Call.COUNT, model, passed | kept, WholeCount, media=media, unknown=unknown.error)


def _open(body: bytes) -> tuple[Fields, Unknown]:
    fields = ensure(decode_object(body, _DECODED))
    unknown = ensure(take_unknown(fields, MESSAGES_FIELDS, REFUSED, "messages"))
    ensure(check_kinds(fields, KINDS))
    return fields, unknown


def _render(fields: Fields) -> tuple[dict[str, Any], str]:
    """The chat's fields, and where the first image is."""
    if "messages" not in fields:
        raise Refused(invalid_request("`messages` must be an array with at least one message", "messages"))
    messages, media = _render_messages(_read(fields, "messages", _MESSAGES))
    if not messages:
        raise Refused(invalid_request("`messages` must be an array with at least one message", "messages"))
    system = _render_system(_read(fields, "system", _SYSTEM))
    sent: dict[str, Any] = {"messages": [*system, *messages]}
    for name in ("temperature", "top_p", "top_k"):
        if name in fields:
            sent[name] = fields[name]
    if stops := _read(fields, "stop_sequences", _STOPS):
        sent["stop"] = stops
    sent |= _render_tools(fields) | _render_output(fields)
    if (thinking := _read(fields, "thinking", _THINKING)) is not None:
        sent["chat_template_kwargs"] = {"enable_thinking": thinking.type != "disabled"}
        if thinking.type == "enabled" and thinking.budget_tokens is not None:
            sent["thinking_budget_tokens"] = thinking.budget_tokens
    sent["stream_options"] = WITH_USAGE
    return sent, place_image(messages, media)


def _read(fields: Fields, name: str, decoder: msgspec.json.Decoder[Any]) -> Any:
    raw = fields.get(name)
    if raw is None or bytes(memoryview(raw)[:1]) == b"n":
        return None
    return ensure(read_struct(raw, name, decoder))


def _render_system(system: str | list[Block] | None) -> list[dict[str, Any]]:
    texts = [system] if isinstance(system, str) else [read_text(block, "system") for block in system or ()]
    text = "\n\n".join(text for text in texts if text and not text.startswith(_BILLING))
    return [{"role": "system", "content": text}] if text else []


def _render_messages(messages: list[_Message]) -> tuple[list[dict[str, Any]], str]:
    rendered: list[dict[str, Any]] = []
    media = ""
    for index, message in enumerate(messages):
        place = f"messages[{index}].content"
        if isinstance(message.content, str):
            rendered.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            rendered.append(_render_assistant(message.content, place))
        else:
            turns, found = _render_turn(message.role, message.content, place)
            rendered += turns
            media = media or found
    return rendered, media


def _render_assistant(blocks: list[Block], place: str) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            arguments = msgspec.json.encode({} if block.input is None else block.input).decode()
            function = {"name": block.name or "", "arguments": arguments}
            calls.append({"id": block.id or "", "type": "function", "function": function})
        elif block.type != "redacted_thinking":
            texts.append(read_text(block, place))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _render_turn(role: str, blocks: list[Block], place: str) -> tuple[list[dict[str, Any]], str]:
    """Results of tools as messages of their own, then the rest of the turn.

    A tool's message has text alone for most engines and templates, so its images come first in what follows.
    """
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    media = ""
    for index, block in enumerate(blocks):
        at = f"{place}[{index}]"
        if block.type == "tool_result":
            result, images = _render_result(block, at)
            results.append(result)
            parts += [part for _, part in images]
            media = media or next((place for place, _ in images), "")
        else:
            shown = read_parts(block, at)
            parts += [part for _, part in shown]
            media = media or next((place for place, part in shown if part["type"] == "image_url"), "")
    if not parts:
        return results, media
    if media:
        return [*results, {"role": role, "content": parts}], media
    return [*results, {"role": role, "content": "\n".join(part["text"] for part in parts)}], ""


def _render_result(block: Block, place: str) -> tuple[dict[str, Any], list[Part]]:
    """The message, and the images of the result."""
    if not block.tool_use_id:
        raise Refused(invalid_request(f"`{place}.tool_use_id` must be the id of a call", "messages"))
    content, images = block.content, list[Part]()
    if isinstance(content, list):
        shown = [part for index, one in enumerate(content) for part in read_parts(one, f"{place}.content[{index}]")]
        images = [each for each in shown if each[1]["type"] == "image_url"]
        content = "\n".join(part["text"] for _, part in shown if part["type"] == "text")
    content = content or ""
    if block.is_error and "error" not in content[:_SAYS_ERROR].lower():
        content = f"Error: {content}"  # a chat has no field for it
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}, images


def _render_tools(fields: Fields) -> dict[str, Any]:
    """`tools` and `tool_choice`; where one tool is to be called, only that one is sent."""
    tools: list[_Tool] = _read(fields, "tools", _TOOLS) or []
    for index, tool in enumerate(tools):
        if tool.type not in (None, "custom") or tool.input_schema is None:
            kind = (tool.type or tool.name)[:64]
            words = f"`tools[{index}]` must be a tool with `input_schema`; '{kind}' is not run here"
            raise Refused(unsupported(words, "tools"))
    ensure(check_schemas(fields, ("tools",)))
    choice: _ToolChoice | None = _read(fields, "tool_choice", _TOOL_CHOICE)
    if choice is not None and choice.type == "tool":
        tools = [tool for tool in tools if tool.name == choice.name]
    if choice is not None and choice.type in ("any", "tool") and not tools:
        raise Refused(invalid_request("`tool_choice` must name a tool that `tools` has", "tool_choice"))
    if not tools:
        return {}
    rendered: dict[str, Any] = {"tools": [_render_tool(tool) for tool in tools]}
    if choice is not None:
        rendered["tool_choice"] = {"auto": "auto", "none": "none"}.get(choice.type, "required")
        if choice.disable_parallel_tool_use is not None:
            rendered["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    return rendered


def _render_tool(tool: _Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _render_output(fields: Fields) -> dict[str, Any]:
    """The schema that the answer must follow, and the effort to think with. Engines know three of Anthropic's."""
    ensure(check_schemas(fields, ("output_config", "output_format")))
    config: _OutputConfig | None = _read(fields, "output_config", _OUTPUT_CONFIG)
    form: _Format | None = config.format if config is not None else None
    form = form or _read(fields, "output_format", _FORMAT)
    effort = config.effort if config is not None else None
    sent = {"reasoning_effort": {"xhigh": "high", "max": "high"}.get(effort, effort)} if effort is not None else {}
    if form is None:
        return sent
    return sent | {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.schema}}}
