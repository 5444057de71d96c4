"""The static table: strict, and its errors name the field."""

import hashlib
import json
from pathlib import Path

import pytest
from covey_gateway.failures import StartError
from covey_gateway.routing.table import Caller, RoutingTable
from covey_gateway.table import parse_table

HASH = "sha256:" + hashlib.sha256(b"x").hexdigest()
MODEL = {"name": "m", "endpoints": [{"url": "http://127.0.0.1:8000"}]}


def parsed(**document: object) -> RoutingTable:
    return parse_table(json.dumps({"models": [MODEL]} | document).encode(), "t.yaml")


def refused(content: bytes) -> str:
    with pytest.raises(StartError) as caught:
        parse_table(content, "t.yaml")
    assert str(caught.value).startswith("t.yaml: ")
    return str(caught.value)


def test_a_yaml_table_is_read_whole() -> None:
    table = parse_table(
        b"""
models:
- name: qwen
  aliases: [gpt-4o, org/qwen:latest]
  contextTokens: 4096
  endpoints:
  - {url: 'http://127.0.0.1:8000', slots: 8, weight: 2}
  - {url: 'http://[::1]:8001/'}
keys:
- {name: ann, hash: '%s', expiry: '2030-01-01T00:00:00Z'}
"""
        % HASH.encode(),
        "t.yaml",
    )
    first, second = table.targets["default", "qwen"]
    assert (first.host, first.port, first.slots, first.weight, first.context_tokens) == ("127.0.0.1", 8000, 8, 2, 4096)
    assert (second.host, second.port, second.slots, second.weight) == ("::1", 8001, 4, 1)
    assert table.resolve(Caller(), "org/qwen:latest") is not None
    (key,) = table.keys.values()
    assert (key.namespace, key.name) == ("default", "ann")
    assert key.expires_at is not None


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"models": []}, "`models`"),
        ({"models": [{"name": "m"}]}, "`models[0].endpoints`"),
        ({"models": [MODEL | {"endpoints": []}]}, "`models[0].endpoints`"),
        ({"models": [MODEL | {"endpoints": [{"url": "https://x:1"}]}]}, "`models[0].endpoints[0].url`"),
        ({"models": [MODEL | {"endpoints": [{"url": "http://x"}]}]}, "`models[0].endpoints[0].url`"),
        ({"models": [MODEL | {"endpoints": [{"url": "http://x:1/v1"}]}]}, "`models[0].endpoints[0].url`"),
        ({"models": [MODEL | {"endpoints": [{"url": "http://x:1", "slots": 0}]}]}, "`models[0].endpoints[0].slots`"),
        ({"models": [MODEL | {"alias": "x"}]}, "`models[0].alias`"),
        ({"models": [MODEL], "keys": [{"name": "k", "hash": "plain"}]}, "`keys[0].hash`"),
        ({"models": [MODEL], "key": []}, "`key`"),
        ([], "`the document`"),
    ],
)
def test_a_fault_is_named_by_its_field(document: object, field: str) -> None:
    assert field in refused(json.dumps(document).encode())


def test_the_example_of_the_reference_is_a_table() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/gateway.md").read_text()
    table = parse_table(page.partition("```yaml\n")[2].partition("```")[0].encode(), "t.yaml")
    assert table.resolve(Caller(), "gpt-4o") is not None
    assert [key.name for key in table.keys.values()] == ["ann"]


def test_a_name_means_one_model() -> None:
    twice = {"models": [MODEL, MODEL | {"name": "n", "aliases": ["m"]}]}
    assert "'m' must name one model" in refused(json.dumps(twice).encode())


@pytest.mark.parametrize("content", [b"models: [", b"\xff\xfe\x00", b"", b"a: b: c", b"[" * 2000])
def test_what_is_no_document_is_refused(content: bytes) -> None:
    refused(content)


def test_an_endpoint_is_routed_without_a_key_of_its_own() -> None:
    (only,) = parsed().targets["default", "m"]
    assert only.key == ""


def test_what_a_model_does_is_chat_unless_it_is_said() -> None:
    assert parsed().models["default", "m"].tasks == ("Chat",)
    embedding = MODEL | {"tasks": ["Embedding"]}
    assert parsed(models=[embedding]).models["default", "m"].tasks == ("Embedding",)
    assert "`models[0].tasks[0]`" in refused(json.dumps({"models": [MODEL | {"tasks": ["Fly"]}]}).encode())
