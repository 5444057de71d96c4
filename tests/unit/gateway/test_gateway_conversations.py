"""Conversations as agents send them, made chats: order, ids, tools and what is left out."""

import json
from typing import Any

import pytest
from covey_gateway.wire.anthropic.request import parse_count, parse_messages
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.ollama.request import parse_chat as parse_ollama
from covey_gateway.wire.openai.chat import parse_chat
from covey_gateway.wire.request import Parsed, Request, render_request
from covey_gateway.wire.responses.request import parse_response
from hypothesis import given
from hypothesis import strategies as st


def asked(found: Parsed, engine: str = "") -> dict[str, Any]:
    """What the engine gets."""
    assert isinstance(found, Request), found
    return json.loads(render_request(found, "m", engine))


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m"} | fields).encode()


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}


def test_anthropic_turns_become_messages_in_order_and_tool_results_come_first() -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "Calling."},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "42"}]},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    sent = asked(parse_messages(body(messages=turns, max_tokens=5, system="Be brief.", stop_sequences=["END"])))
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "Calling.", "reasoning_content": "Hm.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "user", "content": "And now?"},
    ]
    assert (sent["max_tokens"], sent["stop"], sent["stream"]) == (5, ["END"], True)


def test_images_in_a_tools_result_follow_it_in_the_users_turn() -> None:
    """A screenshot of a tool: engines' tool messages have text alone."""
    shot = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    seen = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "shot:"}, shot]}
    turns = [{"role": "user", "content": [seen, {"type": "text", "text": "What is it?"}]}]
    request = parse_messages(body(messages=turns, max_tokens=5))
    assert asked(request)["messages"] == [
        {"role": "tool", "tool_call_id": "c1", "content": "shot:"},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                {"type": "text", "text": "What is it?"},
            ],
        },
    ]
    assert isinstance(request, Request)
    assert request.media == "messages[0].content[0].content[1]"
    seen["content"] = [shot | {"source": {"type": "url"}}]
    refused = parse_messages(body(messages=turns, max_tokens=5))
    assert isinstance(refused, ApiError)
    assert "messages[0].content[0].content[0].source" in refused.message


def turn(*blocks: Any) -> bytes:
    return body(messages=[{"role": "user", "content": list(blocks)}], max_tokens=5)


NOTES = {"type": "text", "media_type": "text/plain", "data": "The sky is red."}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def test_documents_of_text_and_results_of_a_search_are_text_under_their_titles() -> None:
    document = {"type": "document", "source": NOTES, "title": "Notes", "context": "Of today.", "citations": None}
    plain = {"type": "document", "source": {"type": "content", "content": "Rain."}}
    found = {
        "type": "search_result",
        "source": "https://example.org/a",
        "title": "A",
        "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
        "citations": {"enabled": True},
    }
    said = "Notes\nOf today.\nThe sky is red."
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [document, found]}
    question = {"type": "text", "text": "What now?"}
    assert asked(parse_messages(turn(result, document, plain, question)))["messages"] == [
        {"role": "tool", "tool_call_id": "c1", "content": f"{said}\nA\nhttps://example.org/a\nOne.\nTwo."},
        {"role": "user", "content": f"{said}\nRain.\nWhat now?"},
    ]
    mixed = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "See:"}, PNG]}}
    request = parse_messages(turn(mixed))
    assert asked(request)["messages"] == [{"role": "user", "content": [{"type": "text", "text": "See:"}, SHOWN]}]
    assert isinstance(request, Request)
    assert request.media == "messages[0].content[0].source.content[1]"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}, "'application/pdf'"),
        ({"type": "url", "url": "https://example.org/a.pdf"}, "'application/pdf'"),
        ({"type": "file", "file_id": "f"}, "a file"),
        ({"type": "text", "data": 5}, "source.data"),
        ({"type": "content", "content": 5}, "source.content"),
        ("https://example.org", "'application/pdf'"),
    ],
)
def test_a_document_that_nobody_here_reads_is_refused_by_name(source: Any, words: str) -> None:
    for block in (
        {"type": "document", "source": source},
        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "document", "source": source}]},
    ):
        error = parse_messages(turn({"type": "text", "text": "Read."}, block))
        assert isinstance(error, ApiError)
        assert (error.status, error.param) == (400, "messages")
        assert "messages[0].content[1]" in error.message
        assert words in error.message


def test_a_billing_line_that_changes_with_every_request_does_not_change_the_prompt() -> None:
    def system(nonce: str) -> bytes:
        blocks = [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={nonce};"},
            {"type": "text", "text": "You are an agent."},
        ]
        return body(messages=[{"role": "user", "content": "Hi"}], max_tokens=1, system=blocks)

    assert asked(parse_messages(system("a"))) == asked(parse_messages(system("b")))
    assert asked(parse_messages(system("a")))["messages"][0]["content"] == "You are an agent."


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ({"type": "auto"}, "auto", ["f", "g"]),
        ({"type": "any"}, "required", ["f", "g"]),
        ({"type": "tool", "name": "g"}, "required", ["g"]),
        ({"type": "none"}, "none", ["f", "g"]),
    ],
)
def test_anthropics_tool_choice_in_all_forms(choice: dict[str, Any], mode: str, names: list[str]) -> None:
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in "fg"]
    turns = [{"role": "user", "content": "Hi"}]
    sent = asked(parse_messages(body(messages=turns, max_tokens=1, tools=tools, tool_choice=choice)))
    assert sent["tool_choice"] == mode
    assert [tool["function"]["name"] for tool in sent["tools"]] == names


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ("auto", "auto", ["f", "g"]),
        ("none", "none", ["f", "g"]),
        ("required", "required", ["f", "g"]),
        ({"type": "function", "function": {"name": "g"}}, "required", ["g"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
            "auto",
            ["f"],
        ),
    ],
)
def test_openais_tool_choice_in_all_forms(choice: Any, mode: str, names: list[str]) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "fg"]
    sent = asked(parse_chat(body(messages=[{"role": "user", "content": "Hi"}], tools=tools, tool_choice=choice)))
    assert (sent["tool_choice"], [tool["function"]["name"] for tool in sent["tools"]]) == (mode, names)


@pytest.mark.parametrize("choice", ["auto", "none"])
@pytest.mark.parametrize("tools", [{}, {"tools": []}, {"tools": None}])
def test_a_choice_without_tools_reaches_no_engine(tools: Any, choice: str) -> None:
    turns = [{"role": "user", "content": "Hi"}]
    for found in (
        parse_chat(body(messages=turns, tool_choice=choice, **tools)),
        parse_response(body(input="Hi", tool_choice=choice, **tools)),
        parse_messages(body(messages=turns, max_tokens=1, tool_choice={"type": choice}, **tools)),
    ):
        assert not {"tools", "tool_choice"} & asked(found).keys()
    for refused in (
        parse_chat(body(messages=turns, tool_choice="required", **tools)),
        parse_response(body(input="Hi", tool_choice="required", **tools)),
    ):
        assert isinstance(refused, ApiError)


@pytest.mark.parametrize("choice", ["any", 5, {"type": "function", "function": {"name": "other"}}, {"type": "mcp"}])
def test_a_tool_choice_that_means_nothing_is_refused(choice: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    error = parse_chat(body(messages=[{"role": "user", "content": "Hi"}], tools=tools, tool_choice=choice))
    assert isinstance(error, ApiError)
    assert error.param == "tool_choice"


def test_responses_items_of_one_turn_are_one_message() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Go."}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Calling."}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
    ]
    sent = asked(parse_response(body(input=items, store=True, previous_response_id=None, background=False)))
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "Calling.", "reasoning_content": "Hm.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]


def test_images_in_a_calls_output_follow_the_outputs_in_the_users_turn() -> None:
    """An image that the gateway doesn't know of is fetched by the engine, from wherever its URL says."""
    shot = {"type": "input_image", "image_url": "http://169.254.169.254/x"}
    part = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/x"}}
    seen = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "shot:"}, shot]}
    plain = {"type": "function_call_output", "call_id": "c2", "output": "42"}
    tools = [{"role": "tool", "tool_call_id": "c1", "content": "shot:"}]
    tools += [{"role": "tool", "tool_call_id": "c2", "content": "42"}]
    asking = {"role": "user", "content": "What is it?"}
    said = {"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}
    begun = {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"}
    call = {"id": "c3", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
    for items, rendered in (
        ([seen, plain], [*tools, {"role": "user", "content": [part]}]),
        ([seen, plain, asking], [*tools, said]),
        ([seen, plain, begun], [*tools, {"role": "user", "content": [part]}, assistant]),
    ):
        request = parse_response(body(input=items))
        assert asked(request)["messages"] == rendered
        assert isinstance(request, Request)
        assert request.media == "input[0]"


def test_ollamas_calls_and_results_find_each_other_without_ids() -> None:
    turns = [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": name, "arguments": {"x": 1}}} for name in "fg"],
        },
        {"role": "tool", "tool_name": "f", "content": "1"},
        {"role": "tool", "tool_name": "g", "content": "2"},
    ]
    _, assistant, *results = asked(parse_ollama(body(messages=turns)))["messages"]
    assert [call["id"] for call in assistant["tool_calls"]] == [result["tool_call_id"] for result in results]
    assert assistant["tool_calls"][0]["function"]["arguments"] == '{"x":1}'


def test_ollamas_options_become_fields_or_are_refused_by_name() -> None:
    options = {"num_predict": 7, "temperature": 0, "stop": ["a"], "num_ctx": 2048, "num_thread": 4}
    turns = [{"role": "user", "content": "Hi"}]
    sent = asked(parse_ollama(body(messages=turns, options=options, keep_alive="5m", format="json")))
    assert (sent["max_tokens"], sent["temperature"], sent["stop"]) == (7, 0, ["a"])
    assert not {"num_ctx", "num_thread", "keep_alive"} & sent.keys()
    assert sent["response_format"] == {"type": "json_object"}
    assert "max_tokens" not in asked(parse_ollama(body(messages=turns, options={"num_predict": -1})))
    error = parse_ollama(body(messages=turns, options={"num_keep": 4}))
    assert isinstance(error, ApiError)
    assert error.param == "options.num_keep"


def test_a_history_of_hundreds_of_messages_keeps_its_order() -> None:
    turns = [{"role": ("user", "assistant")[number % 2], "content": str(number)} for number in range(601)]
    sent = asked(parse_messages(body(messages=turns, max_tokens=1)))
    assert [one["content"] for one in sent["messages"]] == [str(number) for number in range(601)]
    counted = asked(parse_count(body(messages=turns)))
    assert counted["messages"] == sent["messages"]
    assert "stream" not in counted


def test_only_an_engine_that_knows_it_is_asked_for_progress() -> None:
    found = parse_messages(body(messages=[{"role": "user", "content": "Hi"}], max_tokens=1, stream=True))
    assert asked(found, "LlamaServer")["return_progress"] is True
    assert "return_progress" not in asked(found, "Mlx")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_names = st.sampled_from(
    [
        "messages",
        "input",
        "system",
        "tools",
        "tool_choice",
        "options",
        "text",
        "reasoning",
        "thinking",
        "images",
        "format",
    ]
)


@given(st.dictionaries(_names, _json, max_size=4), st.sampled_from([parse_messages, parse_response, parse_ollama]))
def test_any_object_gives_something_that_can_be_answered(fields: dict[str, Any], parse: Any) -> None:
    found = parse(body(**fields))
    if isinstance(found, ApiError):
        assert found.status == 400
    elif isinstance(found, Request):
        assert asked(found)["model"] == "m"
