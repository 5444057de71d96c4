"""What no model that fits a test can do, read by the official SDKs: parallel calls, reasoning, streams that break.

The engine is a script, in chunks of the shape that llama-server 7e4c0a9 writes: tool calls by `index` with `id` and
`name` on the first alone (its `tools/server/tests/unit/test_tool_call.py`), reasoning in `reasoning_content`.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest
from covey_api.messages import ModelState, ServedModel
from integration.conformity import conforming
from integration.gateway_rig import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Call,
    Gateway,
    ScriptedEngine,
    chunk,
    eventually,
    running_gateway,
    token,
)
from integration.node_rig import install_sdks, run_script
from integration.test_gateway_sdks import ROLE, call_tools, clients

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

EXPECTED = [["get_weather", '{"city":"Paris"}'], ["get_time", "{}"]]
IMAGE = "data:image/png;base64,AAAA"
THOUGHT = ["Hm.", "Yes."]
MODEL = ServedModel(namespace="default", name="m", tasks=("Chat", "Embedding", "Vision"), state=ModelState.READY)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def node_folder() -> Path:
    return install_sdks()


async def play(call: Call) -> None:
    """What the user's words ask for."""
    if b"/v1/embeddings" in call.head:
        data = [{"index": index, "embedding": [index, 0.5]} for index, _ in enumerate(call.content["input"])]
        await call.refuse(200, json.dumps({"data": data, "usage": {"prompt_tokens": 2}}).encode())
        return
    if b"/v1/completions" in call.head:
        piece = json.dumps({"id": "c", "choices": [{"index": 0, "text": "Hello", "finish_reason": "stop"}]})
        await call.write(STREAM_HEAD, chunk(b"data: %b\n\n" % piece.encode() + DONE), LAST_CHUNK)
        return
    *before, last = call.content["messages"]
    if last["role"] == "tool":
        (called,) = before[-1]["tool_calls"]
        assert called["id"] == last["tool_call_id"]
        await call.stream(f"{called['function']['name']} {called['function']['arguments']}", f" {last['content']}")
        return
    match last["content"]:
        case [*parts]:
            await call.stream("|".join(part.get("text") or part["image_url"]["url"] for part in parts))
        case "tools":
            await call_tools(call)
        case "think":
            thought = token("", delta={"reasoning_content": THOUGHT[0]})
            end = token("", delta={}, finish_reason="stop")
            await call.write(STREAM_HEAD, ROLE, chunk(thought), chunk(token(THOUGHT[1]) + end + DONE), LAST_CHUNK)
        case "break":
            await call.write(STREAM_HEAD, ROLE, chunk(token("Hel")))
            call.reset()
        case "hang":
            await call.write(STREAM_HEAD, ROLE, chunk(token("Hel")))
            await call.wait_gone(60)
        case _:
            await call.stream("Hel", "lo")


@asynccontextmanager
async def played() -> AsyncGenerator[tuple[Gateway, ScriptedEngine, str]]:
    async with ScriptedEngine(play) as engine, running_gateway() as gateway:
        gateway.route(engine.target(), models=(MODEL,))
        async with conforming(gateway.port) as tap:
            yield gateway, engine, f"http://127.0.0.1:{tap.port}"


async def test_the_sdks_in_javascript_read_calls_thoughts_errors_and_vectors(node_folder: Path) -> None:
    async with played() as (gateway, engine, url):
        found = await run_script("node_scripted.mjs", node_folder, url)
        await eventually(lambda: engine.open_connections == 0 or gateway.in_flight == 0)
    assert found["tools"] == dict.fromkeys(("chat", "chatStream", "responses", "messages", "ollama"), EXPECTED)
    assert found["thinking"] == dict.fromkeys(("chat", "responses", "responseStream", "messages", "ollama"), THOUGHT)
    assert {tuple(sorted(each.split("|"))) for each in found["images"]} == {("What?", IMAGE)}
    assert found["results"] == ["get_time {} noon"] * 4
    assert len(found["broken"]) == 4
    assert [words for words in found["broken"].values() if "ended the answer early" not in words] == []
    assert found["embeddings"] == found["embed"] == [[0, 0.5], [1, 0.5]]
    assert (found["generated"], found["completion"]) == ("Hello", "Hello")
    assert (found["models"], found["model"], found["anthropicModels"]) == (["m"], "m", ["m"])
    assert "completion" in found["shown"]
    assert (found["left"], found["cancelled"]) == (True, [410, "request_cancelled"])


def say(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def test_the_sdks_in_python_read_thoughts_apart_from_the_text() -> None:
    async with ScriptedEngine(play) as engine, clients(engine.target()) as sdk:
        chat = (await sdk.openai.chat.completions.create(model="m", messages=say("think"))).choices[0].message
        response = await sdk.openai.responses.create(model="m", input=say("think"))
        async with sdk.openai.responses.stream(model="m", input=say("think")) as stream:
            gathered = await stream.get_final_response()
        async with sdk.anthropic.messages.stream(model="m", max_tokens=9, messages=say("think")) as stream:
            thinking, text = (await stream.get_final_message()).content
        parts = [part async for part in await sdk.ollama.chat("m", say("think"), stream=True)]
    told = "".join(part.message.thinking or "" for part in parts), "".join(part.message.content for part in parts)
    found = [
        (chat.reasoning_content, chat.content),
        (response.output[0].content[0].text, response.output_text),
        (gathered.output[0].content[0].text, gathered.output_text),
        (thinking.thinking, text.text),
        told,
    ]
    assert found == [tuple(THOUGHT)] * 5


async def test_the_sdks_in_python_send_images() -> None:
    text = {"type": "text", "text": "What?"}
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    async with ScriptedEngine(play) as engine, clients(engine.target(), "Chat", "Vision") as sdk:
        image: Any = [text, {"type": "image_url", "image_url": {"url": IMAGE}}]
        chat = await sdk.openai.chat.completions.create(model="m", messages=[{"role": "user", "content": image}])
        parts: Any = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": IMAGE}]
        response = await sdk.openai.responses.create(model="m", input=[{"role": "user", "content": parts}])
        blocks: Any = [{"type": "image", "source": source}, text]
        message = await sdk.anthropic.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": blocks}]
        )
        told = await sdk.ollama.chat("m", [{"role": "user", "content": "What?", "images": ["AAAA"]}])
    texts = [chat.choices[0].message.content, response.output_text, message.content[0].text, told.message.content]
    assert {tuple(sorted(each.split("|"))) for each in texts} == {("What?", IMAGE)}


async def test_the_sdks_in_python_raise_where_a_stream_breaks() -> None:
    early = "ended the answer early"
    asked: Any = {"model": "m", "messages": say("break")}
    async with ScriptedEngine(play) as engine, clients(engine.target()) as sdk:
        with pytest.raises(openai.APIError, match=early):
            _ = [one async for one in await sdk.openai.chat.completions.create(**asked, stream=True)]
        stream = await sdk.openai.responses.create(model="m", input=say("break"), stream=True)
        assert [one.type async for one in stream][-2:] == ["error", "response.failed"]  # this SDK hands them on
        with pytest.raises(anthropic.APIStatusError, match=early):
            async with sdk.anthropic.messages.stream(**asked, max_tokens=9) as stream:
                await stream.get_final_message()
        with pytest.raises(ollama.ResponseError, match=early):
            _ = [one async for one in await sdk.ollama.chat(**asked, stream=True)]
