"""Every field that the official SDKs can send has a decision here: read, of no meaning, or refused with a reason."""

import json
from collections.abc import Collection
from typing import Any

import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaMessageParams
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase as MessageParams
from covey_gateway.wire.anthropic import fields as anthropic
from covey_gateway.wire.anthropic.request import parse_count, parse_messages
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.ollama import fields as ollama_fields
from covey_gateway.wire.ollama import request as ollama
from covey_gateway.wire.openai import embeddings, texts
from covey_gateway.wire.openai import fields as openai
from covey_gateway.wire.openai.chat import parse_chat
from covey_gateway.wire.openai.embeddings import parse_embeddings, parse_rerank
from covey_gateway.wire.openai.texts import parse_completion
from covey_gateway.wire.request import Parsed, Question, Request, render_request
from covey_gateway.wire.responses import fields as responses
from covey_gateway.wire.responses.request import parse_response
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams

LARGE = 300_000
"""Bytes of a body that is read against the known names first."""
TEXT_ONLY = ("echo", "suffix", "best_of", "logprobs")

# What must never reach an engine, whatever the format.
SHARED = (
    "id_slot",
    "n_predict",
    "cache_prompt",
    "lora",
    "adapters",
    "draft_model",
    "chat_template",
    "priority",
    "kv_transfer_params",
)


@pytest.mark.parametrize(
    ("params", "known"),
    [
        (ChatParams, (*openai.CHAT_FIELDS, *openai.REFUSED)),
        (TextParams, (*openai.TEXT_FIELDS, *openai.REFUSED, *TEXT_ONLY)),
        (ResponseParams, (*responses.KNOWN, *responses.REFUSED)),
        (MessageParams, (*anthropic.MESSAGES_FIELDS, *anthropic.REFUSED)),
        (BetaMessageParams, (*anthropic.MESSAGES_FIELDS, *anthropic.REFUSED)),
        (MessageCountTokensParams, (*anthropic.MESSAGES_FIELDS, *anthropic.REFUSED)),
    ],
)
def test_every_field_of_an_sdk_has_a_decision(params: Any, known: Collection[str]) -> None:
    assert set(params.__annotations__) - set(known) == set()


@pytest.mark.parametrize("refused", [openai.REFUSED, responses.REFUSED, anthropic.REFUSED])
def test_what_touches_what_all_share_is_refused_with_a_reason(refused: dict[str, str]) -> None:
    assert [name for name in SHARED if not refused.get(name)] == []


def test_no_field_is_both_taken_and_refused() -> None:
    assert not responses.KNOWN & responses.REFUSED.keys()
    assert not anthropic.MESSAGES_FIELDS & anthropic.REFUSED.keys()


HI: Any = {"messages": [{"role": "user", "content": "Hi"}]}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m"} | fields).encode()


def sent(found: Parsed) -> dict[str, Any]:
    assert isinstance(found, Request), found
    return json.loads(render_request(found, "m", "LlamaServer"))


def test_effort_and_budget_to_think_with_reach_the_engine() -> None:
    for effort, known in (("low", "low"), ("high", "high"), ("xhigh", "high"), ("max", "high")):
        asked = sent(parse_messages(body(**HI, max_tokens=1, output_config={"effort": effort})))
        assert asked["reasoning_effort"] == known
    thinking = {"type": "enabled", "budget_tokens": 2048}
    asked = sent(parse_messages(body(**HI, max_tokens=4096, thinking=thinking)))
    assert (asked["thinking_budget_tokens"], asked["chat_template_kwargs"]) == (2048, {"enable_thinking": True})
    asked = sent(ollama.parse_chat(body(**HI, think="high")))
    assert (asked["reasoning_effort"], asked["chat_template_kwargs"]) == ("high", {"enable_thinking": True})
    assert "reasoning_effort" not in sent(ollama.parse_chat(body(**HI, think=True)))


def test_a_tool_that_failed_is_told_to_the_model_as_that() -> None:
    for is_error, said, told in (
        (True, "no file", "Error: no file"),
        (True, "<error>no", "<error>no"),
        (None, "x", "x"),
    ):
        result = {"type": "tool_result", "tool_use_id": "c", "content": said, "is_error": is_error}
        turns = [{"role": "user", "content": [result]}]
        assert sent(parse_messages(body(messages=turns, max_tokens=1)))["messages"][0]["content"] == told


@pytest.mark.parametrize(
    ("parse", "fields", "param"),
    [
        (ollama.parse_chat, HI | {"think": "a lot"}, "think"),
        (ollama.parse_generate, {"prompt": "Hi", "raw": True, "format": "json"}, "format"),
        (ollama.parse_generate, {"prompt": "Hi", "raw": True, "images": ["iVBORw0KGgo="]}, "images"),
        (ollama.parse_generate, {"prompt": "Hi", "raw": True, "system": "Be brief."}, "system"),
        (parse_response, {"input": "Hi", "include": ["message.output_text.logprobs"]}, "include"),
        (parse_messages, HI | {"max_tokens": 1, "output_config": {"effort": "huge"}}, "output_config"),
        (parse_messages, HI | {"max_tokens": 1, "thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking"),
    ],
)
def test_a_value_that_nothing_here_can_do_is_refused_by_name(parse: Any, fields: Any, param: str) -> None:
    error = parse(body(**fields))
    assert isinstance(error, ApiError), error
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    ("parse", "fields"),
    [
        (parse_chat, HI),
        (parse_completion, {"prompt": "Hi"}),
        (parse_response, {"input": "Hi"}),
        (parse_messages, HI | {"max_tokens": 1}),
        (ollama.parse_chat, HI),
        (ollama.parse_generate, {"prompt": "Hi", "raw": True, "format": None, "images": [], "system": ""}),
        (parse_rerank, {"query": "q", "documents": ["a"], "max_tokens_per_doc": None}),
    ],
)
def test_a_refused_field_that_is_null_asks_for_nothing(parse: Any, fields: Any) -> None:
    plain = sent(parse(body(**fields)))
    asked = body(**fields, cache_prompt=None, id_slot=None)
    for padding in (b"", b" " * LARGE):
        assert sent(parse(asked + padding)) == plain
    error = parse(body(**fields, cache_prompt=True))
    assert isinstance(error, ApiError)
    assert error.param == "cache_prompt"


# What Ollama's own client in Go sends of every call, filled in or not (`api/types.go` at fb3076099).
GO_SHOW = {"model": "m", "system": "", "template": "", "verbose": False, "options": None, "name": ""}
GO_GENERATE = {"model": "m", "prompt": "Hi", "suffix": "", "system": "", "template": "", "options": None}
GO_PULL = {"model": "m", "username": "", "password": "", "name": ""}


@pytest.mark.parametrize(
    ("parse", "fields"),
    [
        (ollama.parse_show, GO_SHOW),
        (ollama.parse_show, GO_SHOW | {"model": "", "name": "m"}),
        (ollama.parse_show, GO_SHOW | {"template": "{{ .Prompt }}", "system": "Be brief."}),
        (ollama.parse_show, {"name": "m", "template": ""}),
        (ollama.parse_pull, GO_PULL),
        (ollama.parse_pull, GO_PULL | {"model": "", "name": "m"}),
        (ollama.parse_chat, {"model": "m", "messages": None, "options": None}),
        (ollama.parse_generate, GO_GENERATE | {"prompt": ""}),
    ],
)
def test_what_ollamas_client_in_go_sends_empty_asks_for_nothing(parse: Any, fields: Any) -> None:
    found = parse(json.dumps(fields).encode())
    assert isinstance(found, Question), found
    assert found.model == "m"


def test_a_generate_of_ollamas_client_in_go_is_the_plain_one() -> None:
    plain = sent(ollama.parse_generate(body(prompt="Hi")))
    others: list[dict[str, Any]] = [{}, {"context": []}]
    others += [{"truncate": said, "shift": said} for said in (False, True)]
    for more in others:
        assert sent(ollama.parse_generate(json.dumps(GO_GENERATE | more).encode())) == plain
    for name, value in (("context", [1]), ("template", "x"), ("suffix", "x"), ("_debug_render_only", True)):
        error = ollama.parse_generate(json.dumps(GO_GENERATE | {name: value}).encode())
        assert isinstance(error, ApiError)
        assert (error.status, error.param) == (400, name)
    assert sent(ollama.parse_chat(body(**HI, truncate=True, shift=False))) == sent(ollama.parse_chat(body(**HI)))


PLAIN: list[tuple[Any, Any, Collection[str]]] = [
    (parse_chat, HI, openai.REFUSED),
    (parse_completion, {"prompt": "Hi"}, texts.REFUSED),
    (parse_response, {"input": "Hi"}, responses.REFUSED),
    (parse_messages, HI | {"max_tokens": 1}, anthropic.REFUSED),
    (ollama.parse_chat, HI, ollama_fields.REFUSED),
    (parse_rerank, {"query": "q", "documents": ["a"]}, embeddings.REFUSED),
    (parse_embeddings, {"input": "Hi"}, embeddings.REFUSED),
]


@pytest.mark.parametrize(("parse", "fields", "refused"), PLAIN)
def test_every_refused_name_may_be_there_empty_in_every_format(parse: Any, fields: Any, refused: Any) -> None:
    plain = sent(parse(body(**fields)))
    empty: list[Any] = [None, "", [], {}]
    for name in refused:
        for nothing in empty:
            assert sent(parse(body(**fields, **{name: nothing}))) == plain, name
        found = parse(body(**fields, **{name: False}))
        assert isinstance(found, ApiError) is (name == "cache_prompt"), name
        for something in (True, 3, "x", " ", [1], [" "], {"x": 1}):
            error = parse(body(**fields, **{name: something}))
            assert isinstance(error, ApiError), name
            assert error.param == name


@pytest.mark.parametrize(
    ("parse", "fields", "name", "value"),
    [
        (parse_response, {"input": "Hi"}, "top_logprobs", 0),
        (parse_response, {"input": "Hi"}, "n", 1),
        (parse_messages, HI | {"max_tokens": 1}, "n", 1),
        (parse_completion, {"prompt": "Hi"}, "best_of", 1),
        (parse_chat, HI, "priority", 0),
        (parse_chat, HI, "id_slot", -1),
        (parse_rerank, {"query": "q", "documents": ["a"]}, "truncate", "NONE"),
    ],
)
def test_what_an_api_has_unasked_may_be_asked(parse: Any, fields: Any, name: str, value: Any) -> None:
    assert sent(parse(body(**fields, **{name: value}))) == sent(parse(body(**fields)))


def test_a_count_leaves_unknown_fields_to_the_model_as_a_message_does() -> None:
    for parse in (parse_messages, parse_count):
        request = parse(body(**HI, max_tokens=1, chat_mode="brief"))
        assert sent(request)["chat_mode"] == "brief"
        assert isinstance(request, Request)
        assert request.unknown is not None
        assert request.unknown.param == "chat_mode"
    assert "max_tokens" not in sent(parse_count(body(**HI, max_tokens=1)))


def test_an_option_that_asks_for_nothing_is_not_refused() -> None:
    for nothing in (None, 0):
        options = {"num_keep": nothing, "num_thread": None, "draft_num_predict": 0}
        assert sent(ollama.parse_chat(body(**HI, options=options))) == sent(ollama.parse_chat(body(**HI)))


@pytest.mark.parametrize("parse", [ollama.parse_embed, parse_embeddings])
def test_a_length_of_vectors_that_the_engine_did_not_give_is_refused(parse: Any) -> None:
    content = json.dumps({"data": [{"index": 0, "embedding": [0.5] * 4}]}).encode()
    for wished, is_given in ((4, True), (2, False)):
        request = parse(body(input="Hi", dimensions=wished))
        assert sent(request)["dimensions"] == wished
        found = request.make_teller("m").take(content)
        assert isinstance(found, ApiError) is not is_given
        assert is_given or "`dimensions` must be 4" in found.message
