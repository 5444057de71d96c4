"""What small models seldom do, captured afresh of the real engine and compared, and told in every format.

SmolLM2 doesn't think and calls no tools by itself. Given a template that has both, a budget for its thoughts and
`tool_choice: required`, llama-server makes it do so: the words are nonsense, but the stream is the engine's own.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from covey_gateway.routing.table import Target
from integration.captured import Capture, check_capture, read_capture
from integration.engine_rig import started_engine
from integration.gateway_rig import LAST_CHUNK, STREAM_HEAD, Call, ScriptedEngine, chunk
from integration.test_gateway_sdks import Clients, clients

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

# As Qwen's and Hermes' models have it.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
For each function call return a json object within <tool_call></tool_call> tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{%- if message.reasoning_content %}
<think>
{{ message.reasoning_content }}
</think>
{%- endif %}
{{ message.content }}{%- if message.tool_calls %}{%- for call in message.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{%- endfor %}{%- endif %}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking %}<think>
{% else %}<think>

</think>

{% endif %}{% endif %}"""
CITY: Any = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("get_weather", "get_time")
]
ROME = '{"city":"Rome"}'


def say(text: str) -> Any:
    return [{"role": "user", "content": text}]


ASKED: dict[str, Any] = {"model": "m", "stream": True, "temperature": 0, "stream_options": {"include_usage": True}}
# It does as it seems to have done before.
BEFORE: list[Any] = [
    *say("Weather and time in Rome?"),
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": f"c{place}", "type": "function", "function": {"name": one["function"]["name"], "arguments": ROME}}
            for place, one in enumerate(TOOLS)
        ],
    },
]
CALLS = ASKED | {
    "messages": [*BEFORE, *BEFORE, *BEFORE, *say("Weather and time in Rome?")],
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": True,
    "max_tokens": 120,
    "cache_prompt": False,
    # Of the token that ends a turn: between 0.2, where it calls one, and 0.9, where it calls three.
    "logit_bias": [[2, -0.55]],
}
THOUGHTS = ASKED | {
    "messages": say("Weather in Paris?"),
    "max_tokens": 14,
    "chat_template_kwargs": {"enable_thinking": True},
}
PROGRESS = ASKED | {"messages": say("Say hello."), "max_tokens": 3, "return_progress": True}
# Two at once, on a window that both share.
EXCEEDED = {"model": "m", "stream": True, "temperature": 0, "messages": say("word " * 270), "ignore_eos": True}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Generator[Target]:
    folder = tmp_path_factory.mktemp("engine")
    (folder / "template").write_text(TEMPLATE)
    arguments = ("-c", "640", "--kv-unified", "--chat-template-file", str(folder / "template"))
    with started_engine(folder, *arguments, "--reasoning-budget", "8") as found:
        yield found


async def capture(engine: Target, request: dict[str, Any], at_once: int = 1) -> Capture:
    headers = {"authorization": f"Bearer {engine.key}", "connection": "close"}
    async with httpx.AsyncClient(headers=headers, timeout=120) as client:
        url = f"http://{engine.host}:{engine.port}/v1/chat/completions"
        answers = await asyncio.gather(*(client.post(url, json=request) for _ in range(at_once)))
        build = (await client.get(f"http://{engine.host}:{engine.port}/props")).json()["build_info"]
    origin = f"llama-server {build} with SmolLM2-135M-Instruct.Q4_1, by test_gateway_captures.py"
    return Capture(origin, request, answers[0].content)


async def test_calls_thoughts_and_progress_are_written_as_when_they_were_captured(
    engine: Target, request: pytest.FixtureRequest
) -> None:
    for name, asked in (("calls", CALLS), ("thoughts", THOUGHTS), ("progress", PROGRESS)):
        fresh = await capture(engine, asked)
        check_capture(f"llama-server-{name}", fresh, request.config)
        pieces = [call for delta in fresh.deltas for call in delta.get("tool_calls", [])]
        begun = [call["index"] for call in pieces if "id" in call]
        assert begun == sorted({call["index"] for call in pieces}) == list(range(len(begun)))


async def test_an_error_in_the_stream_is_written_as_when_it_was_captured(
    engine: Target, request: pytest.FixtureRequest
) -> None:
    check_capture("llama-server-exceeded", await capture(engine, EXCEEDED, at_once=2), request.config)


# The same streams through the gateway, read by the official SDKs


@asynccontextmanager
async def replaying(name: str) -> AsyncGenerator[tuple[Capture, Clients]]:
    kept = read_capture(name)

    async def play(call: Call) -> None:
        events = [each + b"\n\n" for each in kept.stream.split(b"\n\n") if each.strip()]
        end = [] if name.endswith("exceeded") else [LAST_CHUNK]
        await call.write(STREAM_HEAD, *(chunk(each) for each in events), *end)

    async with ScriptedEngine(play) as scripted, clients(scripted.target()) as sdk:
        yield kept, sdk


@pytest.mark.parametrize("name", ["llama-server-thoughts", "LlamaCpp-stream", "Mlx-stream"])
async def test_captured_chat_streams_pass_as_the_published_document_has_them(name: str) -> None:
    asked: Any = {"model": "m", "messages": say("Hi"), "stream": True, "stream_options": {"include_usage": True}}
    async with replaying(name) as (kept, sdk):
        chunks = [each async for each in await sdk.openai.chat.completions.create(**asked)]
        said = "".join(choice.delta.content or "" for each in chunks for choice in each.choices)
        assert said == kept.join("content")
        assert chunks[-1].usage.model_dump(exclude_unset=True) == kept.events[-2]["usage"]


async def test_captured_calls_are_told_in_every_format() -> None:
    async with replaying("llama-server-calls") as (kept, sdk):
        begun = [call for delta in kept.deltas for call in delta.get("tool_calls", []) if "id" in call]
        ids, city = [call["id"] for call in begun], {"city": "Rome"}
        expected = [("get_weather", city), ("get_time", city)]
        usage = kept.events[-2]["usage"]
        asked: Any = {"model": "m", "messages": say("Weather?")}
        tools: Any = [{"name": one["function"]["name"], "input_schema": CITY} for one in TOOLS]
        flat: Any = [{"type": "function", "strict": False} | one["function"] for one in TOOLS]
        whole = (await sdk.openai.chat.completions.create(**asked, tools=TOOLS)).choices[0]
        async with sdk.openai.chat.completions.stream(**asked, tools=TOOLS) as stream:
            streamed = (await stream.get_final_completion()).choices[0]
        for choice in (whole, streamed):
            calls = choice.message.tool_calls
            assert [(one.function.name, json.loads(one.function.arguments)) for one in calls] == expected
            assert ([one.id for one in calls], choice.finish_reason) == (ids, "tool_calls")
        async with sdk.openai.responses.stream(model="m", input="Weather?", tools=flat) as stream:
            response = await stream.get_final_response()
        items = [one for one in response.output if one.type == "function_call"]
        assert [(one.name, json.loads(one.arguments)) for one in items] == expected
        assert [one.call_id for one in items] == ids
        assert (response.usage.input_tokens, response.usage.total_tokens) == (
            usage["prompt_tokens"],
            usage["total_tokens"],
        )
        async with sdk.anthropic.messages.stream(**asked, max_tokens=99, tools=tools) as stream:
            message = await stream.get_final_message()
        uses = [one for one in message.content if one.type == "tool_use"]
        assert [(one.name, one.input) for one in uses] == expected
        assert [one.id for one in uses] == ids
        assert (message.stop_reason, message.usage.output_tokens) == ("tool_use", usage["completion_tokens"])
        told = await sdk.ollama.chat(**asked, tools=TOOLS)
        assert [(one.function.name, dict(one.function.arguments)) for one in told.message.tool_calls] == expected


async def test_captured_thoughts_are_told_apart_in_every_format() -> None:
    async with replaying("llama-server-thoughts") as (kept, sdk):
        thought, said = kept.join("reasoning_content"), kept.join("content")
        assert thought
        assert said
        asked: Any = {"model": "m", "messages": say("Weather?")}
        chat = (await sdk.openai.chat.completions.create(**asked)).choices[0].message
        stream = await sdk.openai.responses.create(model="m", input="Weather?", stream=True)
        last = [event async for event in stream][-1]
        assert last.type == "response.incomplete"  # it was cut off
        response = last.response
        async with sdk.anthropic.messages.stream(**asked, max_tokens=99) as stream:
            thinking, text = (await stream.get_final_message()).content
        parts = [part async for part in await sdk.ollama.chat(**asked, stream=True)]
    told = [
        (chat.reasoning_content, chat.content),
        (response.output[0].content[0].text, response.output_text),
        (thinking.thinking, text.text),
        ("".join(part.message.thinking or "" for part in parts), "".join(part.message.content or "" for part in parts)),
    ]
    assert told == [(thought, said)] * 4


async def test_captured_progress_is_the_input_that_messages_begin_with() -> None:
    async with replaying("llama-server-progress") as (kept, sdk):
        progress = kept.events[0]["prompt_progress"]
        async with sdk.anthropic.messages.stream(model="m", messages=say("Hi"), max_tokens=9) as stream:
            events = [event async for event in stream]
        usage = next(event.message.usage for event in events if event.type == "message_start")
        assert usage.input_tokens + usage.cache_read_input_tokens == progress["total"]


async def test_a_captured_error_in_the_stream_is_an_error_in_every_format() -> None:
    asked: Any = {"model": "m", "messages": say("Weather?")}
    words = "Context size has been exceeded"
    async with replaying("llama-server-exceeded") as (_, sdk):
        with pytest.raises(openai.APIError, match=words):
            _ = [one async for one in await sdk.openai.chat.completions.create(**asked, stream=True)]
        events = [one async for one in await sdk.openai.responses.create(model="m", input="Hi", stream=True)]
        assert [one.type for one in events][-2:] == ["error", "response.failed"]
        with pytest.raises(anthropic.APIStatusError, match=words):
            async with sdk.anthropic.messages.stream(**asked, max_tokens=9) as stream:
                await stream.get_final_message()
        with pytest.raises(ollama.ResponseError, match=words):
            _ = [one async for one in await sdk.ollama.chat(**asked, stream=True)]


async def test_a_stream_with_a_captured_error_is_as_published_to_its_end() -> None:
    """SDKs hang up at the error, and what breaks off is held against no document: these are read whole."""
    asked = {"model": "m", "stream": True, "max_tokens": 9}
    async with replaying("llama-server-exceeded") as (_, sdk), httpx.AsyncClient(base_url=sdk.base) as client:
        chat = await client.post("/v1/chat/completions", json=asked | {"messages": say("Hi")})
        assert chat.content.endswith(b"}\n\n")
        response = {"model": "m", "stream": True, "input": "Hi"}
        assert b"event: response.failed" in (await client.post("/v1/responses", json=response)).content
        heads = {"anthropic-version": "2023-06-01"}
        message = await client.post("/v1/messages", json=asked | {"messages": say("Hi")}, headers=heads)
        assert b"event: error" in message.content
