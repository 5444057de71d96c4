"""What Codex sends and is told: tools that it offers in every request, and those of its MCP servers in namespaces.

The shapes are those of `codex-rs/tools/src/tool_spec.rs` at 46a0387 and `codex-rs/codex-api/src/common.rs`.
"""

import json
from typing import Any

import pytest
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.request import Request, render_request
from covey_gateway.wire.responses.request import parse_response
from kit.wiretap import read_events

SHELL = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
SEARCH = {"type": "function", "name": "search", "description": "Finds.", "parameters": {"type": "object"}}
STORE = SEARCH | {"name": "store", "description": "Keeps."}
MEMORY = {"type": "namespace", "name": "mcp__memory__", "description": "A memory.", "tools": [SEARCH, STORE]}
WEB = {"type": "web_search", "external_web_access": False}
PICTURES = {"type": "image_generation", "output_format": "png"}
CODEX: dict[str, Any] = {
    "model": "m",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox: read-only."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "x"},
        {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"ls"}', "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
        {"type": "function_call", "name": "store", "namespace": "mcp__memory__", "arguments": "{}", "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "kept"}]},
    ],
    "tools": [SHELL, WEB, MEMORY, PICTURES],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "text": {"verbosity": "low"},
}


def ask(**fields: Any) -> Request:
    request = parse_response(json.dumps(CODEX | fields).encode())
    assert isinstance(request, Request), request
    return request


def sent(request: Request) -> dict[str, Any]:
    return json.loads(render_request(request, "m", "Vllm"))


def refused(**fields: Any) -> ApiError:
    error = parse_response(json.dumps(CODEX | fields).encode())
    assert isinstance(error, ApiError), error
    assert error.status == 400
    return error


def test_tools_of_codex_reach_the_engine_as_functions() -> None:
    asked = sent(ask())
    functions = {tool["function"]["name"]: tool["function"] for tool in asked["tools"]}
    assert list(functions) == ["exec_command", "mcp__memory__search", "mcp__memory__store"]
    assert functions["exec_command"] == {name: value for name, value in SHELL.items() if name != "type"}
    assert functions["mcp__memory__search"]["description"] == "A memory.\nFinds."
    assert functions["mcp__memory__store"]["description"] == "Keeps."
    assert asked["tool_choice"] == "auto"
    calls = [call["function"]["name"] for turn in asked["messages"] for call in turn.get("tool_calls", ())]
    assert calls == ["exec_command", "mcp__memory__store"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_is_told_in_its_namespace_and_the_answer_has_the_tools_that_there_were(stream: bool) -> None:
    teller = ask(stream=stream).make_teller("m")
    begun = b""
    call: dict[str, Any] = {"index": 0, "id": "c3", "type": "function"}
    call["function"] = {"name": "mcp__memory__search", "arguments": '{"q":1}'}
    for delta, finish in (({"tool_calls": [call]}, None), ({}, "tool_calls")):
        chunk = {"id": "a", "created": 1, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        taken = teller.take(b"data: %b\n\n" % json.dumps(chunk).encode())
        assert isinstance(taken, bytes)
        begun += taken
    told = teller.end()
    response = read_events(told)[-1]["response"] if stream else json.loads(told)
    (item,) = response["output"]
    assert (item["namespace"], item["name"], item["arguments"]) == ("mcp__memory__", "search", '{"q":1}')
    assert response["tools"] == [SHELL, MEMORY]
    added = [event["item"] for event in read_events(begun) if event["type"] == "response.output_item.added"]
    assert [(each["namespace"], each["name"]) for each in added] == ([("mcp__memory__", "search")] if stream else [])


def test_tools_that_all_run_elsewhere_are_no_tools() -> None:
    request = ask(tools=[WEB, {"type": "web_search_preview"}, PICTURES])
    assert not {"tools", "tool_choice"} & sent(request).keys()
    assert json.loads(ask(tools=[WEB], stream=False).make_teller("m").end())["tools"] == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEB], "tool_choice": "required"}, "tools"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}, "tools"),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "tools"),
        ({"tools": [{"type": "mcp", "server_label": "a", "server_url": "https://example.org"}]}, "tools"),
        ({"tools": [{"type": "custom", "name": "apply_patch"}]}, "tools"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "custom", "name": "b"}]}]}, "tools"),
        ({"tools": [{"type": "namespace", "name": "a"}]}, "tools"),
        ({"tools": [MEMORY, SEARCH | {"name": "mcp__memory__search"}]}, "tools"),
        ({"tools": [MEMORY, MEMORY]}, "tools"),
    ],
)
def test_what_is_demanded_and_not_run_here_is_refused(fields: Any, param: str) -> None:
    assert refused(**fields).param == param


def test_the_tool_that_is_not_run_here_is_named_by_its_place() -> None:
    error = refused(tools=[WEB, SHELL, {"type": "custom", "name": "apply_patch"}])
    assert "`tools[2]`" in error.message
    assert "'custom' is not run here" in error.message


def test_a_namespaced_function_may_be_chosen() -> None:
    for choice in (
        {"type": "function", "namespace": "mcp__memory__", "name": "store"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "namespace": "mcp__memory__", "name": "store"}],
        },
    ):
        asked = sent(ask(tool_choice=choice))
        assert asked["tool_choice"] == "required"
        assert [tool["function"]["name"] for tool in asked["tools"]] == ["mcp__memory__store"]
