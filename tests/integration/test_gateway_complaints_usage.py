"""What users of other routers complained about of usage: it is lost, or keeps arguments back."""

import asyncio
import json
from typing import Any

import pytest
from integration.gateway_rig import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Call,
    ScriptedEngine,
    chunk,
    connected,
    request,
    running_gateway,
    token,
)
from integration.test_gateway_complaints import finish, open_stream
from integration.test_gateway_streams import STREAMS, WHOLE, ask

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


COUNTED = {
    "prompt_tokens": 30,
    "completion_tokens": 2,
    "total_tokens": 32,
    "prompt_tokens_details": {"cached_tokens": 7},
}


async def count_beside_choices(call: Call) -> None:
    """Usage in the chunk that ends the choice, and in none of its own."""
    end: dict[str, Any] = {
        "id": "c1",
        "created": 1,
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        "usage": COUNTED,
    }
    await call.write(
        STREAM_HEAD, chunk(token("Hi")), chunk(b"data: %b\n\n" % json.dumps(end).encode() + DONE), LAST_CHUNK
    )


def read_usage(name: str, content: Any) -> tuple[int, int, int | None]:
    """Prompt with what was cached of it, output, cached; Ollama's have no such field."""
    if name.startswith("ollama"):
        return content["prompt_eval_count"], content["eval_count"], None
    usage = content["usage"]
    if name == "chat":
        return usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    if name == "responses":
        return usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, usage["output_tokens"], cached


@pytest.mark.parametrize("name", ["chat", "responses", "messages", "ollama chat"])
async def test_usage_beside_choices_and_cached_tokens_are_told_in_every_format(name: str) -> None:
    """Usage was lost where the last chunk has choices, and cached tokens were dropped."""
    expected = (30, 2, None if name.startswith("ollama") else 7)
    async with ScriptedEngine(count_beside_choices) as engine, running_gateway(engine.target()) as gateway:
        async with connected(gateway) as client:
            await ask(client, *WHOLE[name])
            whole = await client.read_answer()
        path, body = STREAMS[name]
        more: dict[str, Any] = {"stream_options": {"include_usage": True}} if name == "chat" else {}
        async with connected(gateway) as client:
            await ask(client, path, body | more)
            streamed = await client.read_answer()
    assert read_usage(name, whole.content) == expected
    lines = [line.removeprefix(b"data: ") for line in streamed.body.split(b"\n") if line.startswith((b"data: {", b"{"))]
    told = [json.loads(line) for line in lines]
    last = next(one for one in reversed(told) if name != "messages" or one["type"] == "message_delta")
    assert read_usage(name, last["response"] if name == "responses" else last) == expected


async def test_arguments_come_piece_by_piece_though_usage_is_asked_for() -> None:
    """Asked for usage, a router kept a call's arguments back until all were there."""
    go_on = asyncio.Event()

    def piece(**call: Any) -> bytes:
        return chunk(token("", delta={"tool_calls": [{"index": 0} | call]}))

    async def call_slowly(call: Call) -> None:
        begun = piece(id="a", type="function", function={"name": "f", "arguments": ""})
        await call.write(STREAM_HEAD, begun, piece(function={"arguments": '{"x":'}))
        await go_on.wait()
        await call.write(
            piece(function={"arguments": "1}"}), chunk(token("", finish_reason="tool_calls") + DONE), LAST_CHUNK
        )

    async with ScriptedEngine(call_slowly) as engine, running_gateway(engine.target()) as gateway:
        content = request(stream=True, stream_options={"include_usage": True})
        client, told = await open_stream(gateway, content)
        while b'{\\"x\\":' not in told:
            told += await client.read_chunk()
        go_on.set()
        assert b"1}" in await finish(client)
