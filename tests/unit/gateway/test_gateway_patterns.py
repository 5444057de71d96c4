"""Patterns of JSON schemas that hang an engine, and the harmless ones that clients send."""

import json
from typing import Any

import pytest
from covey_gateway.limits import MAX_SCHEMA_BYTES
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.chat import parse_chat
from covey_gateway.wire.openai.patterns import find_wild_pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "^(c?){1,200}d$",
        "^(c{0,5}){1,200}d$",
        "^((c?){5}){5}d$",
        "^(c?){2}{2}{2}{2}{2}{2}d$",
        "^(c|){1,100}d$",
        "^(|c){100}d$",
        "^(?:c*){30}d$",
        "^" + "c?" * 200 + "d$",
        "^([(]?[a\\]]?){20}$",
        "(" * 20_000 + "a" + ")" * 20_000,
    ],
)
def test_pattern_that_hangs_an_engine_is_found(pattern: str) -> None:
    assert find_wild_pattern({"type": "object", "properties": {"a": [{"pattern": pattern}]}}) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?)?$",
        r"^([0-9]{1,3}\.){3}[0-9]{1,3}$",
        r"^[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}$",
        r"^(?:https?)://[^\s/$.?#].[^\s]*$",
        r"^\(\d{3}\)\?{100}[*?]{100}$",
        "^c{0,500}$",
        "([",
        "{",
        ")?",
    ],
)
def test_pattern_that_an_engine_can_follow_passes(pattern: str) -> None:
    assert find_wild_pattern({"pattern": pattern}) is None


def test_property_named_pattern_is_no_pattern() -> None:
    assert find_wild_pattern({"properties": {"pattern": {"type": "string"}}}) is None


@pytest.mark.parametrize("key", ["pattern", "p\\u0061ttern"])
@pytest.mark.parametrize("field", ["response_format", "json_schema", "tools", "functions"])
def test_request_with_a_wild_pattern_is_refused(field: str, key: str) -> None:
    schema = f'{{"{key}":"^(c?){{1,200}}d$"}}'
    value = {
        "response_format": f'{{"type":"json_schema","json_schema":{{"schema":{schema}}}}}',
        "json_schema": schema,
        "tools": f'[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]',
        "functions": f'[{{"name":"f","parameters":{schema}}}]',
    }[field]
    body = f'{{"model":"m","messages":[{{"role":"user"}}],"{field}":{value}}}'
    refused = parse_chat(body.encode())
    assert isinstance(refused, ApiError)
    assert (refused.status, refused.param) == (400, field)
    assert "may be left out" in refused.message


def test_grammar_is_refused_with_what_to_use() -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user"}], "grammar": 'root ::= "a"'}
    refused = parse_chat(json.dumps(body).encode())
    assert isinstance(refused, ApiError)
    assert "response_format" in refused.message


def test_schema_longer_than_can_be_looked_through_is_refused() -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user"}], "functions": ["x" * MAX_SCHEMA_BYTES]}
    refused = parse_chat(json.dumps(body).encode())
    assert isinstance(refused, ApiError)
    assert (refused.status, refused.param) == (400, "functions")
