"""The official SDKs of OpenAI, Anthropic and Ollama, unchanged, against a real engine: what they read is checked.

One engine with SmolLM2 for the module, and a second one with an embedding flag.
"""

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from covey_gateway.routing.table import Target
from integration.conformity import conforming
from integration.engine_rig import started_engine
from integration.gateway_rig import (
    DONE,
    LAST_CHUNK,
    MODEL,
    STREAM_HEAD,
    Call,
    Gateway,
    ScriptedEngine,
    chunk,
    running_gateway,
    token,
)
from integration.go_rig import build_client, run_client
from integration.node_rig import install_sdks, run_script

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

WINDOW = 2048
WIDE_WINDOW = 4096
USER: Any = [{"role": "user", "content": "Say hello."}]
GREEDY: Any = {"temperature": 0, "seed": 1}
COLD: Any = {"temperature": 0}
"""This SDK sends it through `extra_body` alone."""
PARAMETERS: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA: Any = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Generator[Target]:
    with started_engine(tmp_path_factory.mktemp("engine"), "-c", str(2 * WINDOW), "--no-kv-unified") as found:
        yield found


@pytest.fixture(scope="module")
def wide_engine(tmp_path_factory: pytest.TempPathFactory) -> Generator[Target]:
    """For sixty tools in one prompt."""
    with started_engine(tmp_path_factory.mktemp("wide"), "-c", str(WIDE_WINDOW), slots=1) as found:
        yield replace(found, context_tokens=WIDE_WINDOW)


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Generator[Target]:
    with started_engine(tmp_path_factory.mktemp("ranker"), "-c", "512", "--reranking", slots=1) as found:
        yield found


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Generator[Target]:
    folder = tmp_path_factory.mktemp("embedder")
    with started_engine(folder, "-c", "512", "--embeddings", "--pooling", "mean", slots=1) as found:
        yield found


class Clients:
    """`Any`: what is given as a plain dict is no overload of the SDKs'."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway = gateway
        self.gateway_url = f"http://127.0.0.1:{gateway.port}"
        self.base = base = f"http://127.0.0.1:{port}"
        self.openai: Any = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="any", max_retries=0)
        self.anthropic: Any = anthropic.AsyncAnthropic(base_url=base, api_key="any", max_retries=0)
        self.ollama: Any = ollama.AsyncClient(host=base)
        self.below: Any = ollama.AsyncClient(host=f"{base}/ollama")


@asynccontextmanager
async def clients(target: Target, *tasks: str) -> AsyncGenerator[Clients]:
    async with running_gateway(target) as gateway:
        if tasks:
            gateway.route(target, models=(MODEL.model_copy(update={"tasks": tasks}),))
        async with conforming(gateway.port) as tap:
            made = Clients(gateway, tap.port)
            try:
                yield made
            finally:
                await made.openai.close()
                await made.anthropic.close()
                await made.ollama.close()
                await made.below.close()


# One answer in all formats


async def test_all_formats_tell_the_same_answer_with_and_without_a_stream(engine: Target) -> None:
    async with clients(engine) as sdk:
        chat = await sdk.openai.chat.completions.create(model="m", messages=USER, max_tokens=12, **GREEDY)
        text = chat.choices[0].message.content
        assert text
        assert chat.usage is not None
        response = await sdk.openai.responses.create(
            model="m", input=USER, max_output_tokens=12, temperature=0, extra_query={"beta": "true"}
        )
        message = await sdk.anthropic.messages.create(model="m", messages=USER, max_tokens=12, extra_body=COLD)
        told = await sdk.ollama.chat("m", USER, options={"num_predict": 12, **GREEDY})
        generated = await sdk.below.generate("m:latest", "Say hello.", options={"num_predict": 12, **GREEDY})
        (block,) = message.content
        assert block.type == "text"
        found = [response.output_text, block.text, told.message.content, generated.response]
        assert found == [text] * 4
        assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (33, 12)
        assert response.usage is not None
        assert (response.usage.input_tokens, response.usage.output_tokens) == (33, 12)
        assert response.usage.total_tokens == 45
        usage = message.usage
        assert (usage.cache_read_input_tokens or 0) + usage.input_tokens == 33
        assert usage.output_tokens == 12
        assert [(one.prompt_eval_count, one.eval_count) for one in (told, generated)] == [(33, 12)] * 2
        assert [chat.choices[0].finish_reason, response.status, message.stop_reason, told.done_reason] == [
            "length",
            "incomplete",
            "max_tokens",
            "length",
        ]
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert {chat.model, response.model, message.model, told.model} == {"m"}
        assert (response.store if hasattr(response, "store") else False) is False
        assert response.id.startswith("resp_")
        assert message.id.startswith("msg_")


async def test_openai_chat_stream_ends_with_usage_and_no_choices(engine: Target) -> None:
    async with clients(engine) as sdk:
        stream = await sdk.openai.chat.completions.create(
            model="m", messages=USER, max_tokens=6, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 6
        assert chunks[-1].usage.prompt_tokens_details is not None
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["length"]
        assert len({chunk.id for chunk in chunks}) == 1
        assert all(chunk.system_fingerprint for chunk in chunks)


async def test_a_stop_sequence_ends_the_answer_before_it_in_every_format(engine: Target) -> None:
    async with clients(engine) as sdk:
        create = sdk.openai.chat.completions.create
        free = await create(model="m", messages=USER, max_tokens=12, **GREEDY)
        words = free.choices[0].message.content.split(" ")
        stop, text = f" {words[2]}", " ".join(words[:2])
        whole = await create(model="m", messages=USER, max_tokens=12, stop=[stop], **GREEDY)
        stream = [each async for each in await create(model="m", messages=USER, stop=stop, stream=True, **GREEDY)]
        spoken = "".join(c.delta.content or "" for each in stream for c in each.choices)
        old = await sdk.openai.completions.create(model="m", prompt="1 2 3 4", max_tokens=16, stop=["7"], **GREEDY)
        message = await sdk.anthropic.messages.create(
            model="m", messages=USER, max_tokens=12, stop_sequences=[stop], extra_body=COLD
        )
        told = await sdk.ollama.chat("m", USER, options={"num_predict": 12, "stop": [stop], **GREEDY})
        assert [whole.choices[0].message.content, spoken, message.content[0].text, told.message.content] == [text] * 4
        assert "7" not in old.choices[0].text
        finish = [c.finish_reason for each in stream for c in each.choices if c.finish_reason]
        ends = [whole.choices[0].finish_reason, *finish, message.stop_reason, told.done_reason]
        assert ends == ["stop", "stop", "end_turn", "stop"]
        assert whole.usage.completion_tokens < free.usage.completion_tokens
        fingerprints = {free.system_fingerprint, *(each.system_fingerprint for each in stream), old.system_fingerprint}
        assert len(fingerprints) == 1, "one engine"
        assert fingerprints != {None}


async def test_openai_completions_count_every_choice_once(engine: Target) -> None:
    async with clients(engine) as sdk:
        create = sdk.openai.completions.create
        whole = await create(model="m", prompt="The sky is", max_tokens=4, n=2, logprobs=2, **GREEDY)
        assert [choice.index for choice in whole.choices] == [0, 1]
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (3, 8, 11)
        for choice in whole.choices:
            assert choice.logprobs is not None
            assert "".join(choice.logprobs.tokens or []) == choice.text
            assert len(choice.logprobs.token_logprobs or []) == 4
            top: Any = choice.logprobs.top_logprobs
            assert [len(one) for one in top] == [2] * 4
        stream = await create(
            model="m", prompt=["A", "B"], max_tokens=3, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (2, 6)
        assert all(chunk.usage is None for chunk in chunks[:-1])
        texts = {0: "", 1: ""}
        for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        both = await create(model="m", prompt=["A", "B"], max_tokens=3, **GREEDY)
        assert [choice.text for choice in both.choices] == [texts[0], texts[1]]
        assert whole.id.startswith("cmpl-")


async def test_responses_stream_is_numbered_and_whole(engine: Target) -> None:
    async with (
        clients(engine) as sdk,
        sdk.openai.responses.stream(
            model="m", input="Say hello.", instructions="Be brief.", max_output_tokens=8, temperature=0
        ) as stream,
    ):
        events = [event async for event in stream]
        last = events[-1]
        assert last.type == "response.incomplete"
        final = last.response
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = [event.type for event in events]
        assert kinds[:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert kinds[-4:-1] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ]
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        (item,) = final.output
        assert item.type == "message"
        assert item.content[0].type == "output_text"
        assert text == item.content[0].text != ""
        assert final.usage is not None
        assert final.usage.output_tokens == 8
        assert final.instructions == "Be brief."


async def test_responses_hold_no_state_and_say_what_to_send(engine: Target) -> None:
    async with clients(engine) as sdk:
        for field, value in (("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("background", True)):
            with pytest.raises(openai.BadRequestError) as caught:
                await sdk.openai.responses.create(model="m", input="Hi", **{field: value})
            assert caught.value.param == field
            assert "send" in str(caught.value) or "stream" in str(caught.value)


async def test_anthropic_stream_tells_the_input_first_and_truly(engine: Target) -> None:
    async with clients(engine) as sdk:
        counted = await sdk.anthropic.messages.count_tokens(model="m", messages=USER, system="Be brief.")
        async with sdk.anthropic.messages.stream(
            model="m", messages=USER, system="Be brief.", max_tokens=8, extra_body=COLD
        ) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_message()
        start = next(event for event in events if event.type == "message_start")
        first = start.message.usage
        assert (first.cache_read_input_tokens or 0) + first.input_tokens == counted.input_tokens
        assert (final.usage.cache_read_input_tokens or 0) + final.usage.input_tokens == counted.input_tokens
        assert final.usage.output_tokens == 8
        kinds = [event.type for event in events if event.type not in ("text", "ping")]
        assert kinds[:2] == ["message_start", "content_block_start"]
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        (block,) = final.content
        assert block.type == "text"
        assert block.text == "".join(event.text for event in events if event.type == "text")


async def test_anthropic_reads_the_prompt_cache(engine: Target) -> None:
    """Long system prompts with markers, and a billing line that changes: the engine's cache is hit all the same."""
    async with clients(engine) as sdk:
        rules = " ".join(f"Rule {number}: be kind." for number in range(60))

        async def ask(nonce: str) -> anthropic.types.Message:
            system: Any = [
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={nonce};"},
                {"type": "text", "text": rules, "cache_control": {"type": "ephemeral"}},
            ]
            return await sdk.anthropic.messages.create(model="m", messages=USER, system=system, max_tokens=1)

        await asyncio.gather(ask("a"), ask("b"))  # both slots know it now
        second = await ask("c")
        cached = second.usage.cache_read_input_tokens or 0
        assert cached > 300
        assert cached + second.usage.input_tokens > cached


async def test_ollama_streams_lines_by_default(engine: Target) -> None:
    async with clients(engine) as sdk:
        options: Any = {"num_predict": 6, "num_ctx": WINDOW, **GREEDY}
        parts = [part async for part in await sdk.ollama.chat("m", USER, stream=True, options=options, keep_alive=0)]
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
        assert parts[-1].eval_count == 6
        assert parts[-1].eval_duration
        assert parts[-1].done_reason == "length"
        whole = await sdk.ollama.chat("m", USER, options=options)
        assert "".join(part.message.content or "" for part in parts) == whole.message.content
        raw = await sdk.ollama.generate("m", "The sky is", raw=True, options=options)
        assert (raw.prompt_eval_count, raw.eval_count) == (3, 6)
        assert raw.response
        with pytest.raises(ollama.ResponseError) as caught:
            await sdk.ollama.chat("m", USER, options={"num_ctx": WINDOW + 1})
        assert caught.value.status_code == 400
        assert str(WINDOW) in caught.value.error


async def test_ollama_lists_what_is_declared(engine: Target) -> None:
    async with clients(engine) as sdk:
        for client in (sdk.ollama, sdk.below):
            assert [model.model for model in (await client.list()).models] == ["m:latest"]
            assert [model.model for model in (await client.ps()).models] == ["m:latest"]
            shown = await client.show("m:latest")
            assert shown.capabilities == ["completion", "tools"]
            assert shown.modelinfo is not None
            assert shown.modelinfo["covey.context_length"] == WINDOW
            assert (await client.pull("m")).status == "success"
            assert [one.status async for one in await client.pull("m", stream=True)][-1] == "success"
            assert (await client.chat("m", [])).done_reason == "load"
            assert (await client.generate("m", "")).done_reason == "load"
            with pytest.raises(ollama.ResponseError) as caught:
                await client.pull("other")
            assert caught.value.status_code == 404


async def test_models_are_listed_for_both_sdks(engine: Target) -> None:
    async with clients(engine) as sdk:
        assert [model.id async for model in sdk.openai.models.list()] == ["m"]
        assert (await sdk.openai.models.retrieve("gpt-4o")).id == "gpt-4o"
        assert [model.id async for model in sdk.anthropic.models.list()] == ["m"]
        assert (await sdk.anthropic.models.retrieve("m")).display_name == "m"
        with pytest.raises(openai.NotFoundError):
            await sdk.openai.models.retrieve("other")
        with pytest.raises(anthropic.NotFoundError):
            await sdk.anthropic.models.retrieve("other")


async def test_too_long_a_prompt_has_both_numbers_in_every_format(engine: Target) -> None:
    long: Any = [{"role": "user", "content": "word " * 3000}]
    async with clients(engine) as sdk:
        with pytest.raises(openai.BadRequestError) as chat:
            await sdk.openai.chat.completions.create(model="m", messages=long)
        with pytest.raises(openai.BadRequestError) as response:
            await sdk.openai.responses.create(model="m", input=long)
        with pytest.raises(anthropic.BadRequestError) as message:
            await sdk.anthropic.messages.create(model="m", messages=long, max_tokens=4)
        with pytest.raises(ollama.ResponseError) as told:
            await sdk.ollama.chat("m", long)
        assert (chat.value.code, response.value.code) == ("context_length_exceeded",) * 2
        for words in (str(chat.value), str(response.value), str(message.value), told.value.error):
            assert str(WINDOW) in words
            assert "3031" in words
        assert "prompt is too long" in str(message.value)
        with pytest.raises(openai.BadRequestError) as most:
            await sdk.openai.chat.completions.create(model="m", messages=USER, max_tokens=WINDOW)
        assert most.value.code == "context_length_exceeded"


async def test_schemas_bind_the_answer_in_every_format(engine: Target) -> None:
    async with clients(engine) as sdk:
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
        chat = await sdk.openai.chat.completions.create(
            model="m", messages=USER, max_tokens=40, response_format=form, **GREEDY
        )
        text: Any = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
        response = await sdk.openai.responses.create(
            model="m", input=USER, max_output_tokens=40, text=text, temperature=0
        )
        message = await sdk.anthropic.messages.create(
            model="m",
            messages=USER,
            max_tokens=40,
            extra_body=COLD | {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        )
        told = await sdk.ollama.chat("m", USER, format=SCHEMA, options={"num_predict": 40, **GREEDY})
        assert message.content[0].type == "text"
        texts = [chat.choices[0].message.content, response.output_text, message.content[0].text, told.message.content]
        for found in texts:
            assert isinstance(json.loads(found or "")["ok"], bool)


async def test_request_ids_come_back(engine: Target) -> None:
    async with clients(engine) as sdk:
        headers = {"x-request-id": "my-own-id"}
        chat = await sdk.openai.chat.completions.create(model="m", messages=USER, max_tokens=1, extra_headers=headers)
        assert chat._request_id == "my-own-id"
        message = await sdk.anthropic.messages.create(model="m", messages=USER, max_tokens=1, extra_headers=headers)
        assert message._request_id == "my-own-id"


# Embeddings


async def test_embeddings_are_equal_as_numbers_packed_and_in_ollamas_shape(embedder: Target) -> None:
    texts = ["a cat", "a dog", "an invoice"]
    async with clients(embedder, "Embedding") as sdk:
        packed = await sdk.openai.embeddings.create(model="m", input=texts)
        plain = await sdk.openai.embeddings.create(model="m", input=texts, encoding_format="float")
        told = await sdk.ollama.embed("m", texts)
        older = await sdk.ollama.embeddings("m", texts[0])
        assert [one.index for one in packed.data] == [0, 1, 2]
        for index in range(3):
            vector = plain.data[index].embedding
            assert len(vector) == 576
            assert packed.data[index].embedding == pytest.approx(vector, rel=1e-5)
            assert list(told.embeddings[index]) == pytest.approx(vector, rel=1e-5)
        assert list(older.embedding) == pytest.approx(plain.data[0].embedding, rel=1e-5)
        assert plain.usage.prompt_tokens == plain.usage.total_tokens == told.prompt_eval_count > 0
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.openai.chat.completions.create(model="m", messages=USER)
        assert caught.value.code == "task_not_supported"
        with pytest.raises(openai.BadRequestError):
            await sdk.openai.embeddings.create(model="m", input="a", dimensions=64)


async def test_too_long_a_text_for_an_encoder_has_both_numbers(embedder: Target) -> None:
    async with clients(embedder, "Embedding") as sdk:
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.openai.embeddings.create(model="m", input="word " * 900)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        assert "512" in str(caught.value)
        assert "90" in str(caught.value)


async def test_a_real_engines_ranking_is_told_in_both_shapes(ranker: Target) -> None:
    """Of a chat model's weights, so its scores mean nothing; shapes, order, usage and refusals are the engine's."""
    documents = ["a kitten", "the stock market", "a dog"]
    asked = {"model": "m", "query": "a cat", "documents": documents}
    scored = {"model": "m", "text_1": "a cat", "text_2": documents}
    async with clients(ranker, "Rerank") as sdk, httpx.AsyncClient(timeout=60) as http:
        heads = {"authorization": f"Bearer {ranker.key}"}
        url = f"http://127.0.0.1:{ranker.port}/v1/rerank"
        own = (await http.post(url, json=asked, headers=heads)).json()
        ranked = (await http.post(f"{sdk.gateway_url}/v1/rerank", json=asked | {"top_n": 2})).json()
        score = (await http.post(f"{sdk.gateway_url}/v1/score", json=scored)).json()
        long = await http.post(f"{sdk.gateway_url}/v1/rerank", json=asked | {"documents": ["word " * 900]})
        by_index = {one["index"]: one["relevance_score"] for one in own["results"]}
        assert {one["index"]: one["score"] for one in score["data"]} == pytest.approx(by_index, rel=1e-4)
        best = [one["relevance_score"] for one in ranked["results"]]
        assert best == sorted(best, reverse=True)
        assert best == pytest.approx([by_index[one["index"]] for one in ranked["results"]], rel=1e-4)
        assert len(best) == 2
        assert [ranked["usage"], score["usage"]] == [own["usage"]] * 2
        assert own["usage"]["total_tokens"] > 0
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
        await sdk.openai.models.list()


async def test_a_chat_model_embeds_nothing(engine: Target) -> None:
    async with clients(engine) as sdk:
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.openai.embeddings.create(model="m", input="a")
        assert caught.value.code == "task_not_supported"


# Tools. No model that fits a test calls them through llama-server (Qwen2.5-Coder-0.5B writes calls as plain text, also
# when one is required), so the engine is a script: two calls, in chunks of the shape that llama-server 7e4c0a9 writes.


def call_delta(index: int, **delta: Any) -> bytes:
    one: Any = {"index": 0, "delta": {"tool_calls": [{"index": index} | delta]}, "finish_reason": None}
    return chunk(token("", **one))


ROLE = chunk(token("", delta={"role": "assistant", "content": None}))


async def call_tools(call: Call) -> None:
    """Two calls at once; words when one's result is there."""
    if call.content["messages"][-1]["role"] == "tool":
        await call.write(STREAM_HEAD, chunk(token("It is ")), chunk(token("18.", finish_reason="stop")), *END)
        return
    await call.write(
        STREAM_HEAD,
        ROLE,
        call_delta(0, id="call_a", type="function", function={"name": "get_weather", "arguments": ""}),
        call_delta(0, function={"arguments": '{"city":'}),
        call_delta(0, function={"arguments": '"Paris"}'}),
        call_delta(1, id="call_b", type="function", function={"name": "get_time", "arguments": "{}"}),
        chunk(token("", delta={}, finish_reason="tool_calls")),
        *END,
    )


COUNTED = {"prompt_tokens": 30, "completion_tokens": 20, "total_tokens": 50}
USAGE = b"data: %b\n\n" % json.dumps({"id": "c1", "created": 1, "choices": [], "usage": COUNTED}).encode()
END = (chunk(USAGE), chunk(DONE), LAST_CHUNK)
WEATHER: Any = [{"role": "user", "content": "Weather and time in Paris?"}]
TOOLS: Any = [{"name": name, "parameters": PARAMETERS} for name in ("get_weather", "get_time", "send_mail")]
EXPECTED: list[tuple[str, dict[str, Any]]] = [("get_weather", {"city": "Paris"}), ("get_time", {})]


@asynccontextmanager
async def tool_clients() -> AsyncGenerator[tuple[Clients, ScriptedEngine]]:
    async with ScriptedEngine(call_tools) as scripted, clients(scripted.target()) as sdk:
        yield sdk, scripted


async def test_openai_reads_parallel_calls_with_and_without_a_stream() -> None:
    fields: Any = {"model": "m", "messages": WEATHER, "tools": [{"type": "function", "function": one} for one in TOOLS]}
    async with tool_clients() as (sdk, _):
        whole = await sdk.openai.chat.completions.create(**fields)
        calls: Any = whole.choices[0].message.tool_calls
        assert [(one.function.name, json.loads(one.function.arguments)) for one in calls] == EXPECTED
        assert [one.id for one in calls] == ["call_a", "call_b"]
        assert whole.choices[0].finish_reason == "tool_calls"
        async with sdk.openai.chat.completions.stream(**fields) as stream:
            final = await stream.get_final_completion()
        streamed: Any = final.choices[0].message.tool_calls
        assert [(one.id, one.function.name, one.function.arguments) for one in streamed] == [
            (one.id, one.function.name, one.function.arguments) for one in calls
        ]
        turns: Any = [*WEATHER, whole.choices[0].message.model_dump(exclude_none=True)]
        turns += [{"role": "tool", "tool_call_id": one.id, "content": "18"} for one in calls]
        answer = await sdk.openai.chat.completions.create(**fields | {"messages": turns})
        assert answer.choices[0].message.content == "It is 18."


async def test_responses_call_tools_and_take_their_results() -> None:
    tools: Any = [{"type": "function", "strict": False} | one for one in TOOLS]
    async with tool_clients() as (sdk, engine):
        async with sdk.openai.responses.stream(model="m", input=WEATHER, tools=tools) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        output: Any = final.output
        assert [(one.type, one.name, json.loads(one.arguments)) for one in output] == [
            ("function_call", name, arguments) for name, arguments in EXPECTED
        ]
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert deltas == ['{"city":', '"Paris"}', "{}"]
        assert final.status == "completed"
        assert final.usage is not None
        assert final.usage.total_tokens == 50
        results: Any = [{"type": "function_call_output", "call_id": one.call_id, "output": "18"} for one in output]
        turns: Any = [*WEATHER, *(one.model_dump(exclude_none=True) for one in output), *results]
        answer = await sdk.openai.responses.create(model="m", input=turns, tools=tools)
        assert answer.output_text == "It is 18."
        sent = engine.calls[-1].content["messages"]
        assert [one["role"] for one in sent] == ["user", "assistant", "tool", "tool"]
        assert [one["id"] for one in sent[1]["tool_calls"]] == ["call_a", "call_b"]


async def test_anthropic_calls_tools_and_takes_their_results() -> None:
    tools: Any = [{"name": one["name"], "input_schema": PARAMETERS} for one in TOOLS]
    fields: Any = {"model": "m", "tools": tools, "max_tokens": 60}
    async with tool_clients() as (sdk, engine):
        whole = await sdk.anthropic.messages.create(messages=WEATHER, **fields)
        blocks: Any = whole.content
        assert [(one.type, one.name, one.input) for one in blocks] == [("tool_use", *one) for one in EXPECTED]
        assert whole.stop_reason == "tool_use"
        async with sdk.anthropic.messages.stream(messages=WEATHER, **fields) as stream:
            final = await stream.get_final_message()
        streamed: Any = final.content
        assert [(one.id, one.name, one.input) for one in streamed] == [(one.id, one.name, one.input) for one in blocks]
        assert (final.stop_reason, final.usage.input_tokens, final.usage.output_tokens) == ("tool_use", 30, 20)
        results: Any = [{"type": "tool_result", "tool_use_id": one.id, "content": "18"} for one in blocks]
        turns: Any = [*WEATHER, {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
        answer = await sdk.anthropic.messages.create(messages=turns, **fields)
        text: Any = answer.content[0]
        assert text.text == "It is 18."
        assert [one["role"] for one in engine.calls[-1].content["messages"]] == ["user", "assistant", "tool", "tool"]


async def test_ollama_parses_the_arguments_of_calls() -> None:
    tools: Any = [{"type": "function", "function": one} for one in TOOLS]
    async with tool_clients() as (sdk, _):
        whole = await sdk.ollama.chat("m", WEATHER, tools=tools)
        parts = [part async for part in await sdk.ollama.chat("m", WEATHER, tools=tools, stream=True)]
        told: list[Any] = [part.message.tool_calls for part in parts if part.message.tool_calls]
        whole_calls: Any = whole.message.tool_calls
        both: list[Any] = [whole_calls, [call for calls in told for call in calls]]
        for calls in both:
            assert [(one.function.name, dict(one.function.arguments)) for one in calls] == EXPECTED
        assert parts[-1].eval_count == 20


# The same SDKs in JavaScript

# What fills a prompt, and how tokens of it come: several bytes each, several to a letter, long runs, tools.
FILLERS = {
    "chinese": "模型在桌子下面的机器上运行。" * 40,
    "spaces": " " * 10_000,
    "emoji": "🦜🧑‍🚀🏳️‍🌈" * 30,
    "base64": base64.b64encode(bytes(range(256)) * 3).decode(),
    "tools": "Use a tool.",
}
MANY_TOOLS = [{"type": "function", "function": {"name": f"tool_{number}"}} for number in range(60)]


def fill_prompt(engine: Target, kind: str, tokens: int) -> dict[str, Any]:
    """A request whose prompt has exactly that many tokens, as the engine itself counts them."""
    url = f"http://{engine.host}:{engine.port}/v1/chat/completions/input_tokens"
    body: dict[str, Any] = {"model": "m", "max_tokens": 1} | ({"tools": MANY_TOOLS} if kind == "tools" else {})
    words = missing = 0
    for _ in range(4):  # a word more is a token more, but for where two meet
        body["messages"] = [{"role": "user", "content": FILLERS[kind] + " a" * words}]
        answer = httpx.post(url, json=body, headers={"authorization": f"Bearer {engine.key}"}, timeout=120)
        missing = tokens - int(answer.raise_for_status().json()["input_tokens"])
        if not missing:
            return body
        words += missing
    raise AssertionError(f"{missing} tokens are missing of {tokens}")


async def check_last_token(engine: Target, window: int, kind: str) -> None:
    """Never by an estimate: one token less than the window leaves room for one of an answer."""
    most = window - 1
    async with running_gateway(engine) as gateway, httpx.AsyncClient(timeout=600) as http:
        for tokens in (most - 1, most, most + 1, most + 2):
            body = fill_prompt(engine, kind, tokens)
            answer = await http.post(f"http://127.0.0.1:{gateway.port}/v1/chat/completions", json=body)
            if tokens <= most:
                assert answer.status_code == 200, answer.text
                assert answer.json()["usage"]["prompt_tokens"] == tokens
            else:
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
                assert {tokens, window} <= {int(number) for number in re.findall(r"\d+", error["message"])}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [each for each in FILLERS if each != "tools"])
async def test_prompts_are_taken_up_to_the_last_token_that_fits(engine: Target, kind: str) -> None:
    await check_last_token(engine, WINDOW, kind)


@pytest.mark.timeout(900)
async def test_sixty_tools_are_taken_up_to_the_last_token_that_fits(wide_engine: Target) -> None:
    await check_last_token(wide_engine, WIDE_WINDOW, "tools")


@pytest.fixture(scope="module")
def node_folder() -> Path:
    """Where the SDKs are installed; once for all runs of these tests."""
    return install_sdks()


async def test_the_sdks_in_javascript_read_the_same(engine: Target, node_folder: Path) -> None:
    async with running_gateway(engine) as gateway, conforming(gateway.port) as tap:
        found = await run_script("node_sdks.mjs", node_folder, f"http://127.0.0.1:{tap.port}")
    text = found["chat"]["text"]
    assert text
    assert {found[name]["text"] for name in ("stream", "response", "responseStream", "ollama")} == {text}
    assert found["message"]["text"]
    assert found["chat"]["usage"]["completion_tokens"] == found["stream"]["usage"]["completion_tokens"] == 8
    assert found["stream"]["lastChoices"] == 0
    assert found["chat"]["id"].startswith("req-")
    assert (found["response"]["status"], found["responseStream"]["last"]) == ("incomplete", "response.incomplete")
    assert found["responseStream"]["numbers"] == list(range(len(found["responseStream"]["numbers"])))
    usage = found["message"]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == found["counted"] == 33
    assert (found["message"]["stop"], found["ollama"]["count"]) == ("max_tokens", 8)
    assert found["ollama"]["done"][-1] is True
    assert found["tags"] == ["m:latest"]
    stop = found["stop"]
    assert stop["texts"] == [stop["expected"]] * 4
    assert stop["ends"] == ["stop", "stop", "end_turn", "stop"]
    assert len(stop["fingerprints"]) == 1
    assert stop["fingerprints"][0]
    assert [type(json.loads(each)["ok"]) for each in found["schema"]] == [bool] * 4
    assert [each[0] for each in found["choices"]] == [0, 1]
    assert [(text == tokens, top) for _, text, tokens, top in found["choices"]] == [(True, 2)] * 2
    for status, message in found["errors"].values():
        assert status == 404
        assert "'other' is not declared here" in message


async def test_ollamas_client_in_go_reads_the_same(engine: Target, embedder: Target) -> None:
    program = build_client()
    async with running_gateway(engine) as gateway, running_gateway() as other:
        other.route(embedder, models=(MODEL.model_copy(update={"tasks": ("Embedding",)}),))
        found = await run_client(program, *(f"http://127.0.0.1:{each.port}" for each in (gateway, other)))
    text = found["chat"]["text"]
    assert text
    assert {found[name]["text"] for name in ("chat_whole", "generate", "generate_whole")} == {text}
    assert {found[name]["tokens"] for name in ("chat", "chat_whole", "generate", "generate_whole")} == {8}
    assert (found["chat"]["pieces"] > 2, found["chat_whole"]["pieces"], found["generate_whole"]["pieces"]) == (
        True,
        1,
        1,
    )
    assert (found["chat"]["reason"], found["chat"]["prompt"], found["chat"]["role"]) == ("length", 33, "assistant")
    assert found["chat"]["made"]
    assert found["chat"]["timed"]
    assert isinstance(json.loads(found["format"])["ok"], bool)
    assert found["load"] == {"done": True, "reason": "load"}
    assert found["version"]
    assert found["list"]["name"] == found["ps"]["name"] == "m:latest"
    assert len(found["list"]["digest"]) == 64
    assert (found["ps"]["context"], found["ps"]["expires"]) == (WINDOW, True)
    assert "completion" in found["show"]["capabilities"]
    assert found["pull"][-1] == "success"
    assert (found["embed"]["count"], found["embed"]["width"], found["embeddings"]) == (2, 576, 576)
    assert [found[f"unknown_{name}"]["status"] for name in ("show", "chat", "pull")] == [404] * 3
    assert found["too_long"]["status"] == 400
    assert [found[name]["status"] for name in ("delete", "copy", "create")] == [501] * 3
