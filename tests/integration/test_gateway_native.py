"""llama-server's own Messages and Responses beside what the gateway tells of its chat stream, event by event.

If the two were the same, translating would be work for nothing. They aren't: what follows is every difference, in one
request of each that ends by its limit. Should one go, this fails, and ADR 23 may be looked at again.
"""

import json
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from covey_gateway.routing.table import Target
from covey_gateway.wire.body import is_array, is_object
from integration.engine_rig import KEY, started_engine
from integration.gateway_rig import running_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

USER = [{"role": "user", "content": "Say hello."}]
MESSAGES: Any = ("/v1/messages", {"model": "m", "messages": USER, "max_tokens": 5, "temperature": 0})
RESPONSES: Any = ("/v1/responses", {"model": "m", "input": USER, "max_output_tokens": 5, "temperature": 0})
# Made anew for each answer.
_IDS = ("id", "item_id", "created_at", "completed_at")

UNCOUNTED = ("output_tokens_details", "server_tool_use")
"""Anthropic's document requires them all the same."""

Event = tuple[str, dict[str, Any]]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Generator[Target]:
    with started_engine(tmp_path_factory.mktemp("engine"), "-c", "1024", slots=1) as found:
        yield found


@asynccontextmanager
async def both(engine: Target) -> AsyncGenerator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """The engine itself, and the gateway."""
    headers = {"authorization": f"Bearer {KEY}", "connection": "close"}
    native = httpx.AsyncClient(base_url=f"http://127.0.0.1:{engine.port}", headers=headers, timeout=120)
    async with (
        running_gateway(engine) as gateway,
        native,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", timeout=120) as translated,
    ):
        yield native, translated


async def ask(client: httpx.AsyncClient, call: Any) -> list[Event]:
    """The events of a stream, each as its name and what it has by path."""
    path, body = call
    answer = await client.post(path, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    found: list[Event] = []
    for block in answer.text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((lines["event"], dict(flatten(json.loads(lines["data"]), ""))))
    return found


def flatten(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if is_object(value) and value:
        for name, inner in value.items():
            yield from flatten(inner, f"{path}.{name}".lstrip("."))
    elif is_array(value) and value:
        for inner in value:
            yield from flatten(inner, f"{path}[]")
    elif path.rpartition(".")[2] not in _IDS and not path.startswith("timings"):
        yield path, value


def compare(native: Event, translated: Event) -> set[str]:
    """`-`: natively missing, `+`: only natively, `!`: another value."""
    told, ours = native[1], translated[1]
    differing = {f"!{path}" for path in told.keys() & ours.keys() if told[path] != ours[path]}
    return differing | {f"-{path}" for path in ours.keys() - told.keys()} | {f"+{path}" for path in told.keys() - ours}


async def compare_all(engine: Target, call: Any) -> tuple[list[tuple[str, str]], dict[str, set[str]]]:
    """Names of events where they differ, and what differs in each by its name."""
    async with both(engine) as (native, translated):
        await ask(native, call)  # so that the prompt is in the cache for both
        told, ours = await ask(native, call), await ask(translated, call)
    assert len(told) == len(ours)
    names = [(one[0], other[0]) for one, other in zip(told, ours, strict=True) if one[0] != other[0]]
    found: dict[str, set[str]] = {}
    for one, other in zip(told, ours, strict=True):
        if differences := compare(one, other):
            found.setdefault(other[0], set()).update(differences)
    return names, found


async def test_native_messages_tell_no_input_at_the_end(engine: Target) -> None:
    names, found = await compare_all(engine, MESSAGES)
    assert names == []
    assert found == {
        "message_start": {"-message.usage.cache_creation_input_tokens"}
        | {f"-message.{name}" for name in ("stop_details", "container")}
        | {f"-message.usage.{name}" for name in (*UNCOUNTED, "cache_creation", "inference_geo", "service_tier")},
        "message_delta": {f"-usage.{name}" for name in ("input_tokens", "cache_read_input_tokens", *UNCOUNTED)}
        | {"-usage.cache_creation_input_tokens", "-delta.stop_details", "-delta.container"},
        "content_block_start": {"-content_block.citations"},
    }


async def test_native_responses_call_an_answer_complete_that_was_cut_off(engine: Target) -> None:
    names, found = await compare_all(engine, RESPONSES)
    assert names == [("response.completed", "response.incomplete")]
    assert {"!response.status", "-response.incomplete_details.reason"} <= found.pop("response.incomplete")
    assert {path for paths in found.values() for path in paths if path[0] == "+"} == set()
    changed = {(name, path) for name, paths in found.items() for path in paths if path[0] == "!"}
    assert changed == {("response.output_item.done", "!item.status")}
    unnumbered = {name for name, paths in found.items() if "-sequence_number" in paths}
    assert unnumbered == found.keys() >= {"response.created", "response.output_text.delta"}
    assert "-output_index" in found["response.output_text.delta"]
    assert {"-response.model", "-response.output"} <= found["response.created"]
