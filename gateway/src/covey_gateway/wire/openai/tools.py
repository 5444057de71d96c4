"""`tool_choice` in all its forms, as every engine understands it: `auto`, `none` or `required`.

Engines read the object forms differently or not at all (llama-server takes them for `auto`, without a word). Here the
tools that may not be called are left out instead, and one of those that remain is required. A choice without tools is
left out too: there is nothing to choose, and vLLM refuses it.
"""

from typing import Any

import msgspec

from covey_gateway.wire.body import Fields, first_byte, is_array, is_object, read_value
from covey_gateway.wire.errors import ApiError, invalid_request

_MODES = ("auto", "none", "required")
_FORM = "'auto', 'none', 'required' or an object that names a function"


def choose_tools(fields: Fields) -> ApiError | None:
    """Check `tools` and put `tool_choice` into its plain form, both in `fields`."""
    if (error := _check_tools(fields)) is not None:
        return error
    if "tool_choice" not in fields:
        return None
    choice = read_value(fields, "tool_choice")
    if choice is None:
        del fields["tool_choice"]
        return None
    if isinstance(choice, ApiError):
        return choice
    if isinstance(choice, str):
        if choice not in _MODES:
            return invalid_request(f"`tool_choice` must be {_FORM}; got '{choice[:64]}'", "tool_choice")
        if choice == "required" and "tools" not in fields:
            return invalid_request("`tool_choice` is 'required', so `tools` must have one", "tools")
        if "tools" not in fields:
            del fields["tool_choice"]
        return None
    return _choose_named(fields, choice)


class _Function(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    type: str
    function: _Function | None = None


_TOOLS = msgspec.json.Decoder(list[_Tool])


def _check_tools(fields: Fields) -> ApiError | None:
    raw = fields.get("tools")
    if raw is None:
        return None
    if first_byte(raw) == b"n":
        del fields["tools"]
        return None
    try:
        tools = _TOOLS.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        return invalid_request(f"`tools` must be an array of functions: {str(error).lower()}", "tools")
    if not tools:
        del fields["tools"]
    for index, tool in enumerate(tools):
        if tool.type != "function" or tool.function is None or not tool.function.name:
            words = f"`tools[{index}]` must be a function with a name; '{tool.type[:64]}' is not run here"
            return invalid_request(words, "tools")
    return None


def _choose_named(fields: Fields, choice: Any) -> ApiError | None:
    mode: Any = "required"
    wanted: Any = [choice]
    if is_object(choice) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        mode = allowed.get("mode", "auto") if is_object(allowed) else None
        wanted = allowed.get("tools") if is_object(allowed) else None
    names = [_read_name(one) for one in wanted] if is_array(wanted) else []
    if mode not in ("auto", "required") or not names or None in names:
        return invalid_request(f"`tool_choice` must be {_FORM}", "tool_choice")
    tools: list[dict[str, Any]] = read_value(fields, "tools") or []
    wished = set(names)
    kept = [tool for tool in tools if tool["function"]["name"] in wished]
    found = {tool["function"]["name"] for tool in kept}
    if missing := [name for name in names if name not in found]:
        words = f"`tool_choice` names '{str(missing[0])[:64]}', which `tools` must have"
        return invalid_request(words, "tool_choice")
    fields["tools"] = msgspec.Raw(msgspec.json.encode(kept))
    fields["tool_choice"] = msgspec.Raw(msgspec.json.encode(mode))
    return None


def _read_name(form: Any) -> str | None:
    function = form.get("function") if is_object(form) and form.get("type") == "function" else None
    name = function.get("name") if is_object(function) else None
    return name if isinstance(name, str) else None
