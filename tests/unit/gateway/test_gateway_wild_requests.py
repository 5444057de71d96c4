"""Small requests that would hold the gateway's loop or an engine's for everybody."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from covey_gateway.wire.body import MOST
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.chat import parse_chat
from covey_gateway.wire.openai.patterns import MAX_PATTERNS, TOKEN, find_wild_pattern
from covey_gateway.wire.openai.plain import parse_plain
from covey_gateway.wire.openai.references import MAX_DEPTH, MAX_REFERENCES, find_wild_reference
from covey_gateway.wire.openai.texts import parse_completion
from covey_gateway.wire.request import Request

MESSAGES = [{"role": "user", "content": "hi"}]
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                "kind": {"anyOf": [{"$ref": "#/$defs/kind"}, {"type": "null"}]},
            },
        },
        "kind": {"enum": ["a", "b"]},
    },
}


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode()


def chain(links: int, each: str) -> dict[str, Any]:
    """Of definitions of which each names the next one."""
    names = [f"d{index}" for index in range(links)]
    forms: dict[str, Callable[[dict[str, str]], dict[str, Any]]] = {
        "twice": lambda link: {"anyOf": [link, link]},
        "once": lambda link: dict(link),
        "inside": lambda link: {"type": "object", "properties": {"next": link}},
    }
    form = forms[each]
    defs = {name: form({"$ref": f"#/$defs/{following}"}) for name, following in pairwise(names)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {names[-1]: {"type": "string"}}}


def test_what_people_refer_to_passes() -> None:
    assert find_wild_reference(TREE) is None
    assert find_wild_reference(chain(10, "twice")) is None
    assert find_wild_reference(chain(20, "inside")) is None
    assert find_wild_reference({"properties": {"x": {"$ref": "https://elsewhere/schema"}, "y": {"$ref": "#"}}}) is None
    tools = [{"type": "function", "function": {"name": f"t{i}", "parameters": TREE}} for i in range(60)]
    assert isinstance(parse_chat(chat(tools=tools)), Request)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (chain(40, "twice"), "alternatives"),
        (chain(5 * MAX_DEPTH, "once"), "deep"),
        (chain(5 * MAX_DEPTH, "inside"), "deep"),
        ({"anyOf": [{"$ref": f"#/x{index}"} for index in range(3)]}, "leads nowhere"),
        (
            {"$defs": {"a": {}}, "anyOf": [{"$ref": f"https://x/{index}"} for index in range(MAX_REFERENCES + 1)]},
            "different",
        ),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "lead back"),
    ],
)
def test_references_that_would_hold_or_end_an_engine_are_refused_by_name(schema: Any, words: str) -> None:
    wished = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = parse_chat(chat(response_format=wished))
    assert isinstance(found, ApiError)
    assert (found.status, found.param) == (400, "response_format")
    assert words in found.message
    hidden = json.dumps({"model": "m", "messages": MESSAGES, "response_format": wished}).replace("$ref", "\\u0024ref")
    assert isinstance(parse_chat(hidden.encode()), ApiError)


def test_classes_that_nothing_closes_are_read_once() -> None:
    """Each token begins where the one before ended, so as many tokens as there are."""
    tokens = [match.group() for match in TOKEN.finditer("a" + "[" * 1000 + "\\")]
    assert tokens == ["a", "[" * 1000 + "\\"]
    assert find_wild_pattern({"pattern": "[a-z]*[^]]+[0-9"}) is None


def test_patterns_are_bounded_together() -> None:
    many = [{"pattern": "a" * 1000} for _ in range(MAX_PATTERNS // 1000 + 1)]
    words = find_wild_pattern({"anyOf": many})
    assert words is not None
    assert "together" in words
    assert find_wild_pattern({"anyOf": many[:-1]}) is None


@pytest.mark.parametrize(("name", "most"), MOST.items())
def test_what_an_engine_goes_through_for_each_token_is_bounded(name: str, most: int) -> None:
    def value(count: int) -> Any:
        if name == "logit_bias":
            return {str(index): 1 for index in range(count)}
        return count if name in ("n", "logprobs", "top_logprobs") else ["x"] * count

    if name in ("stop_sequences",):  # the Messages API's
        return
    parse = parse_completion if name == "logprobs" else parse_chat
    body = {"model": "m", "prompt": "hi"} if name == "logprobs" else {"model": "m", "messages": MESSAGES}
    assert isinstance(parse(msgspec.json.encode(body | {name: value(most)})), Request)
    found = parse(msgspec.json.encode(body | {name: value(most + 1)}))
    assert isinstance(found, ApiError)
    assert found.param == name
    assert str(most) in found.message


def test_what_is_too_long_is_not_made_into_objects_to_be_counted() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stop":[' + b'"a",' * 400_000 + b'"a"]}'
    found = parse_chat(body)
    assert isinstance(found, ApiError)
    assert (found.param, "bytes" in found.message) == ("stop", True)


def test_a_plain_chat_with_too_many_stops_is_left_to_the_long_way() -> None:
    assert parse_plain(chat(stop=["x"] * MOST["stop"])) is not None
    assert parse_plain(chat(stop=["x"] * (MOST["stop"] + 1))) is None
