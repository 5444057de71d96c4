"""Tools of a Responses request, as a chat has them.

- Functions are nested as the chat nests them.
- A namespace's functions are functions whose name begins with it, since templates know no other; an answer's calls get
  their namespace back. Its description goes before that of its first function.
- `web_search` and `image_generation` run on OpenAI's machines, and agents (Codex) offer them in every request. A model
  may leave them alone, so they are left out and the answer's `tools` doesn't have them. Who demands one by
  `tool_choice` is refused.
- All else that a model could call (`file_search`, `code_interpreter`, `mcp`, `custom` with its grammars…) was asked for
  by somebody, who would wait for it: refused by name.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from covey_gateway.wire.body import Fields, is_array, is_object, read_value
from covey_gateway.wire.errors import Refused, ensure, invalid_request
from covey_gateway.wire.openai.chat import check_schemas
from covey_gateway.wire.openai.tools import choose_tools

_LEFT_OUT = ("web_search", "image_generation")

Names = Mapping[str, tuple[str, str]]
"""A namespaced function's name as the engine has it, and its namespace and name."""


@dataclass(slots=True)
class Tools:
    sent: dict[str, Any] = field(default_factory=dict[str, Any])
    told: msgspec.Raw | None = None
    """What the answer says that there was, where that isn't what was asked."""
    names: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])


def join_name(namespace: str | None, name: str) -> str:
    """As an engine has it: no more than letters, digits, `_` and `-` are sure to be taken."""
    if not namespace:
        return name
    return f"{namespace}{'' if namespace.endswith('_') else '__'}{name}"


def render_tools(fields: Fields) -> Tools:
    """Tools and their choice, nested as the chat has them."""
    found = ensure(read_value(fields, "tools"))
    asked = found if is_array(found) else []
    kept = {index: tool for index, tool in enumerate(asked) if not _is_left_out(tool)}
    tools = Tools(told=_encode(list(kept.values())) if len(kept) < len(asked) else None)
    nested: Fields = {}
    if kept:
        flat = [one for index, tool in kept.items() for one in _flatten(tool, tools, f"tools[{index}]")]
        nested["tools"] = _encode(flat)
        _check_names(flat, tools.names)
    choice = ensure(read_value(fields, "tool_choice"))
    if is_object(choice) and choice.get("type") == "allowed_tools":
        allowed = choice.get("tools")
        inner = {"mode": choice.get("mode"), "tools": [_nest(tool) for tool in allowed] if is_array(allowed) else []}
        nested["tool_choice"] = _encode({"type": "allowed_tools", "allowed_tools": inner})
    elif choice is not None:
        nested["tool_choice"] = _encode(_nest(choice))
    ensure(choose_tools(nested) or check_schemas(nested, ("tools",)))
    tools.sent = dict(nested)
    return tools


def _is_left_out(tool: Any) -> bool:
    kind = tool.get("type") if is_object(tool) else None
    return isinstance(kind, str) and kind.startswith(_LEFT_OUT)


def _flatten(tool: Any, tools: Tools, place: str) -> list[Any]:
    kind = tool.get("type") if is_object(tool) else None
    if not is_object(tool) or kind not in ("function", "namespace"):
        words = f"`{place}` must be a function, or a namespace of functions; '{str(kind)[:64]}' is not run here"
        raise Refused(invalid_request(words, "tools"))
    if kind == "function":
        return [_nest(tool)]
    namespace, inner = tool.get("name"), tool.get("tools")
    if not isinstance(namespace, str) or not namespace or not is_array(inner):
        raise Refused(invalid_request(f"`{place}` must be a namespace with a name and tools", "tools"))
    functions: list[Any] = []
    for index, one in enumerate(inner):
        name = one.get("name") if is_object(one) else None
        if not is_object(one) or one.get("type") != "function" or not isinstance(name, str) or not name:
            raise Refused(invalid_request(f"`{place}.tools[{index}]` must be a function with a name", "tools"))
        flat = join_name(namespace, name)
        tools.names[flat] = (namespace, name)
        words = [tool.get("description") if not index else None, one.get("description")]
        described = "\n".join(each for each in words if isinstance(each, str) and each)
        functions.append(_nest(one | {"name": flat} | ({"description": described} if described else {})))
    return functions


def _check_names(flat: list[Any], names: Names) -> None:
    """A call must tell which function it is of."""
    functions = [tool["function"] for tool in flat if is_object(tool) and is_object(tool.get("function"))]
    found = Counter(name for each in functions if isinstance(name := each.get("name"), str))
    for name in names:
        if found[name] > 1:
            words = f"`tools` must have one function that is called '{name[:64]}' with its namespace before it"
            raise Refused(invalid_request(words, "tools"))


def _nest(tool: Any) -> Any:
    if not is_object(tool) or tool.get("type") != "function":
        return tool
    function = {name: value for name, value in tool.items() if name not in ("type", "namespace")}
    namespace, name = tool.get("namespace"), tool.get("name")
    if isinstance(namespace, str) and isinstance(name, str):
        function["name"] = join_name(namespace, name)
    return {"type": "function", "function": function}


def _encode(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
