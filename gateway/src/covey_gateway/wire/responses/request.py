"""A Responses request as a chat request. Stateless: what came before is in `input`, or nowhere.

`store` is accepted and answered with false. Fields that need a memory (`previous_response_id`, `conversation`,
`background`) are refused, unless they ask for nothing, as SDKs send them. Items become messages in their
order; calls that follow one another are one assistant's turn, as templates want them.
"""

from typing import Any

import msgspec
from covey_api.reasons import ErrorCode

from covey_gateway.wire.body import (
    Fields,
    check_kinds,
    decode_object,
    first_byte,
    is_object,
    read_count,
    read_flag,
    read_model,
    read_struct,
    read_value,
    take_unknown,
)
from covey_gateway.wire.errors import ApiError, Refused, ensure, invalid_request, refusing
from covey_gateway.wire.media import place_image
from covey_gateway.wire.openai.chat import check_image_url, check_passed, check_schemas
from covey_gateway.wire.request import WITH_USAGE, Call, Request, Teller
from covey_gateway.wire.responses.answer import ResponseStream, WholeResponse
from covey_gateway.wire.responses.fields import KINDS, KNOWN, REFUSED
from covey_gateway.wire.responses.tools import Tools, join_name, render_tools

PATH = "/v1/responses"

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_LOGPROBS = "message.output_text.logprobs"
_DECODED = frozenset((*KNOWN, *REFUSED))


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None


class _Item(msgspec.Struct):
    """One item of `input`, whatever its type; fields of other types are None."""

    type: str = "message"
    role: str | None = None
    content: str | list[_Part] | None = None
    summary: list[_Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: str | list[_Part] | None = None


_ITEMS = msgspec.json.Decoder(list[_Item])


@refusing
def parse_response(body: bytes) -> Request | ApiError:
    fields = ensure(decode_object(body, _DECODED))
    unknown = ensure(take_unknown(fields, KNOWN, REFUSED, "responses"))
    ensure(check_kinds(fields, KINDS))
    model, wants_stream = ensure(read_model(fields)), ensure(read_flag(fields, "stream"))
    max_tokens = ensure(read_count(fields, "max_output_tokens"))
    if _LOGPROBS in (ensure(read_value(fields, "include")) or ()):
        return invalid_request(f"`include` must not have '{_LOGPROBS}': {REFUSED['top_logprobs']}", "include")
    if read_value(fields, "truncation") not in (None, "disabled"):
        words = "`truncation` must be 'disabled': prompts are never cut; too long a one is refused with both numbers"
        return invalid_request(words, "truncation")
    tools = render_tools(fields)
    sent, media = _render(fields, tools)
    asked = _render_asked(fields, max_tokens, tools)

    def make_teller(name: str) -> Teller:
        return (ResponseStream if wants_stream else WholeResponse)(name, asked, tools.names)

    passed = ensure(check_passed(unknown)) | sent
    return Request(
        Call.CHAT,
        model,
        passed,
        make_teller,
        wants_stream,
        max_tokens,
        media,
        unknown=unknown.error,
        prompt_field="input",
        limit_field="max_output_tokens",
    )


def _render(fields: Fields, tools: Tools) -> tuple[dict[str, Any], str]:
    messages, media = _render_input(fields)
    if instructions := read_value(fields, "instructions"):
        messages.insert(0, {"role": "system", "content": instructions})
    sent: dict[str, Any] = {"messages": messages, "stream_options": WITH_USAGE}
    for name in ("temperature", "top_p", "parallel_tool_calls"):
        if name in fields:
            sent[name] = fields[name]
    sent |= tools.sent | _render_text(fields) | _render_reasoning(fields)
    return sent, place_image(messages, media)


def _render_input(fields: Fields) -> tuple[list[dict[str, Any]], str]:
    raw = fields.get("input")
    if raw is not None and first_byte(raw) == b'"':
        text = ensure(read_value(fields, "input"))
        return [{"role": "user", "content": text}], ""
    if raw is None or first_byte(raw) != b"[":
        raise Refused(invalid_request("`input` must be a string or an array of items", "input"))
    items: list[_Item] = ensure(read_struct(raw, "input", _ITEMS))
    if not items:
        raise Refused(invalid_request("`input` must have at least one item", "input"))
    messages: list[dict[str, Any]] = []
    pictures: list[dict[str, Any]] = []
    media = ""
    for index, item in enumerate(items):
        if item.type != "function_call_output" and (item.type, item.role) != ("message", "user"):
            _show(messages, pictures)
        found = _add_item(messages, pictures, item, f"input[{index}]")
        media = media or found
    _show(messages, pictures)
    return messages, media


def _show(messages: list[dict[str, Any]], pictures: list[dict[str, Any]]) -> None:
    """Images of tools' results as the user's turn after them: a tool's message has text alone for most engines."""
    if pictures:
        messages.append({"role": "user", "content": pictures.copy()})
        pictures.clear()


def _add_item(messages: list[dict[str, Any]], pictures: list[dict[str, Any]], item: _Item, place: str) -> str:
    """Add what it says to the chat, a result's images to `pictures`; where it has an image."""
    if item.type == "message":
        role = _ROLES.get(item.role or "")
        if role is None:
            words = f"`{place}.role` must be 'user', 'assistant', 'system' or 'developer'"
            raise Refused(invalid_request(words, "input"))
        content, has_image = _render_content(item.content, place)
        if role == "user" and pictures:
            content = [*pictures, *(content if has_image else [{"type": "text", "text": content}])]
            pictures.clear()
        if role == "assistant":
            _assistant(messages)["content"] = content
        else:
            messages.append({"role": role, "content": content})
        return place if has_image else ""
    if item.type == "function_call":
        function = {"name": join_name(item.namespace, item.name or ""), "arguments": item.arguments or "{}"}
        call = {"id": item.call_id or "", "type": "function", "function": function}
        _assistant(messages, is_call=True).setdefault("tool_calls", []).append(call)
    elif item.type == "function_call_output":
        output, has_image = _render_content(item.output, f"{place}.output")
        if has_image:
            pictures += [part for part in output if part["type"] == "image_url"]
            output = "\n".join(part["text"] for part in output if part["type"] == "text")
        messages.append({"role": "tool", "tool_call_id": item.call_id or "", "content": output})
        return place if has_image else ""
    elif item.type == "reasoning":
        parts = item.content if isinstance(item.content, list) and item.content else item.summary or []
        text = "".join(part.text or "" for part in parts)
        if text:
            messages.append({"role": "assistant", "content": None, "reasoning_content": text})
    else:
        words = f"`{place}.type` must be 'message', 'function_call', 'function_call_output' or 'reasoning'; got "
        raise Refused(ApiError(400, ErrorCode.UNSUPPORTED_FIELD, f"{words}'{item.type[:64]}'", "input"))
    return ""


def _assistant(messages: list[dict[str, Any]], *, is_call: bool = False) -> dict[str, Any]:
    """The assistant's turn that an item belongs to: a reasoning before it is of the same, and so is a call's text."""
    if messages and (last := messages[-1])["role"] == "assistant" and (is_call or last["content"] is None):
        return last
    messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _render_content(content: str | list[_Part] | None, place: str) -> tuple[Any, bool]:
    """A string where it is text alone, else parts; and whether there is an image."""
    if not isinstance(content, list):
        return content or "", False
    parts: list[dict[str, Any]] = []
    has_image = False
    for number, part in enumerate(content):
        if part.type in ("input_text", "output_text", "text", "refusal"):
            parts.append({"type": "text", "text": part.text or part.refusal or ""})
        elif part.type == "input_image":
            ensure(check_image_url(part.image_url, f"{place}.content[{number}]"))
            parts.append({"type": "image_url", "image_url": {"url": part.image_url}})
            has_image = True
        else:
            words = f"`{place}.content[{number}].type` must be a text or 'input_image'; got '{part.type[:64]}'"
            raise Refused(ApiError(400, ErrorCode.UNSUPPORTED_FIELD, words, "input"))
    return (parts, True) if has_image else ("".join(part["text"] for part in parts), False)


def _render_text(fields: Fields) -> dict[str, Any]:
    """The format that the text must have."""
    ensure(check_schemas(fields, ("text",)))
    text = ensure(read_value(fields, "text"))
    form = text.get("format") if is_object(text) else None
    if form is None or form == {"type": "text"}:
        return {}
    if not is_object(form) or form.get("type") not in ("json_schema", "json_object"):
        raise Refused(invalid_request("`text.format.type` must be 'text', 'json_object' or 'json_schema'", "text"))
    if form["type"] == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = {name: value for name, value in form.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _render_reasoning(fields: Fields) -> dict[str, Any]:
    reasoning = ensure(read_value(fields, "reasoning"))
    effort = reasoning.get("effort") if is_object(reasoning) else None
    return {"reasoning_effort": effort} if isinstance(effort, str) else {}


def _render_asked(fields: Fields, max_tokens: int | None, tools: Tools) -> dict[str, Any]:
    """What the answer says of its request."""

    def told(name: str, absent: Any) -> Any:
        return fields.get(name, absent)

    return {
        "background": False,
        "instructions": told("instructions", None),
        "max_output_tokens": max_tokens,
        "metadata": told("metadata", {}),
        "parallel_tool_calls": told("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": told("reasoning", {"effort": None, "summary": None}),
        "store": False,
        "temperature": told("temperature", None),
        "text": told("text", {"format": {"type": "text"}}),
        "tool_choice": told("tool_choice", "auto"),
        "tools": told("tools", []) if tools.told is None else tools.told,
        "top_p": told("top_p", None),
        "truncation": "disabled",
    }
