"""The gateway before the real engine with the real model, asked by the official `openai` client.

Both come from the package index by the agent's own code, and stay in the tests' shared cache.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import openai
import pytest
from covey_gateway.routing.table import Target
from integration.engine_rig import KEY, started_engine
from integration.gateway_rig import MODEL, Gateway, asked, connected, running_gateway
from openai.types.chat import ChatCompletion, ChatCompletionChunk

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SLOT_TOKENS = 1024
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@dataclass(frozen=True)
class RealEngine:
    url: str
    target: Target

    async def wait_busy_slots(self, count: int, timeout_seconds: float) -> None:
        """Until that many slots decode; TimeoutError otherwise."""
        async with (
            httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, timeout=30) as client,
            asyncio.timeout(timeout_seconds),
        ):
            busy = -1
            for _ in range(1000):
                slots = (await client.get(f"{self.url}/slots")).json()
                busy = sum(slot["is_processing"] for slot in slots)
                if busy == count:
                    return
                await asyncio.sleep(0.02)
            raise TimeoutError(f"{busy} slots are busy")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Generator[RealEngine]:
    arguments = ("-c", str(2 * SLOT_TOKENS), "--no-kv-unified")
    with started_engine(tmp_path_factory.mktemp("engine"), *arguments) as target:
        yield RealEngine(f"http://127.0.0.1:{target.port}", target)


@asynccontextmanager
async def sdk(engine: RealEngine) -> AsyncGenerator[tuple[openai.AsyncOpenAI, Gateway]]:
    async with running_gateway(engine.target) as gateway:
        url = f"http://127.0.0.1:{gateway.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="not-checked-on-loopback", max_retries=0) as client:
            yield client, gateway


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def complete(client: openai.AsyncOpenAI, **fields: Any) -> ChatCompletion:
    """One answer; what is given as `Any` is no overload of the SDK's."""
    create: Any = client.chat.completions.create
    answer = await create(**{"model": "m", "messages": user("Hi")} | fields)
    assert isinstance(answer, ChatCompletion)
    return answer


async def stream(client: openai.AsyncOpenAI, **fields: Any) -> list[ChatCompletionChunk]:
    create: Any = client.chat.completions.create
    return [event async for event in await create(**{"model": "m", "messages": user("Hi"), "stream": True} | fields)]


def text_of(events: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for event in events for choice in event.choices)


async def test_the_sdk_gets_the_same_answer_with_and_without_a_stream(engine: RealEngine) -> None:
    fields: Any = {"messages": user("Say hello."), "max_tokens": 12, "temperature": 0, "seed": 1}
    async with sdk(engine) as (client, _):
        whole = await complete(client, **fields)
        events = await stream(client, **fields, stream_options={"include_usage": True})
    (choice,) = whole.choices
    assert choice.message.content
    assert choice.message.content == text_of(events)
    assert {choice.finish_reason} == {c.finish_reason for event in events for c in event.choices if c.finish_reason}
    usage = events[-1].usage
    assert whole.usage is not None
    assert usage is not None
    assert whole.usage.completion_tokens == usage.completion_tokens == 12
    assert whole.usage.prompt_tokens == usage.prompt_tokens > 0


async def test_the_answers_model_is_the_models_name_whatever_was_asked(engine: RealEngine) -> None:
    async with sdk(engine) as (client, _):
        assert (await complete(client, model="gpt-4o", max_tokens=1)).model == "m"
        assert {event.model for event in await stream(client, model="gpt-4o", max_tokens=1)} == {"m"}


async def test_choices_logprobs_and_a_schema_pass(engine: RealEngine) -> None:
    async with sdk(engine) as (client, _):
        whole = {"extra_body": {"ignore_eos": True}}  # however soon a sample would end
        answer = await complete(client, max_completion_tokens=3, n=2, logprobs=True, top_logprobs=2, **whole)
        assert [choice.index for choice in answer.choices] == [0, 1]
        for choice in answer.choices:
            assert choice.logprobs is not None
            assert choice.logprobs.content is not None
            assert len(choice.logprobs.content) == 3
            assert len(choice.logprobs.content[0].top_logprobs) == 2
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 6
        chunks = await stream(client, max_tokens=3, n=2, stream_options={"include_usage": True})
        (told,) = (each.usage for each in chunks if each.usage is not None)
        assert chunks[-1].choices == []
        assert (told.prompt_tokens, told.completion_tokens) == (answer.usage.prompt_tokens, 6)
        assert told.total_tokens == told.prompt_tokens + 6
        schema: Any = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        answer = await complete(
            client,
            messages=user("Answer in JSON."),
            max_tokens=40,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
        assert answer.choices[0].message.content is not None
        assert answer.choices[0].message.content.lstrip().startswith("{")


async def test_tools_are_taken_with_and_without_a_stream(engine: RealEngine) -> None:
    fields: Any = {"messages": user("Weather in Paris?"), "tools": [TOOL], "tool_choice": "auto"}
    async with sdk(engine) as (client, _):
        (choice,) = (await complete(client, **fields, max_tokens=8, temperature=0)).choices
        assert choice.message.content or choice.message.tool_calls
        assert text_of(await stream(client, **fields, max_tokens=8, temperature=0)) == (choice.message.content or "")


@pytest.mark.parametrize("is_stream", [True, False])
async def test_too_long_a_prompt_is_refused_before_a_byte(engine: RealEngine, is_stream: bool) -> None:
    async with sdk(engine) as (client, gateway):
        with pytest.raises(openai.BadRequestError) as caught:
            await complete(client, messages=user("word " * 3000), stream=is_stream)
        assert caught.value.code == "context_length_exceeded"
        assert str(SLOT_TOKENS) in str(caught.value)
        assert "3031" in str(caught.value)
        answer = await asked(gateway, messages=user("word " * 3000), stream=is_stream)
        assert answer.status == 400


async def test_a_length_that_does_not_fit_beside_the_prompt_is_refused_with_counts(engine: RealEngine) -> None:
    """llama-server would answer until its window is full, and call it `length`."""
    target = replace(engine.target, engine="LlamaServer", context_tokens=SLOT_TOKENS)
    digits = iter("123456789")

    def fresh() -> Any:
        """As long each time, and another."""
        return user(f"{next(digits)} " + "word " * (SLOT_TOKENS - 46))

    async with sdk(engine) as (client, gateway):
        gateway.route(target)
        told = await complete(client, messages=fresh(), max_tokens=1)
        assert told.usage is not None
        left = SLOT_TOKENS - told.usage.prompt_tokens
        assert 2 <= left <= 40
        endless = {"temperature": 0, "extra_body": {"ignore_eos": True}}
        for most in (left - 1, left):
            whole = await complete(client, messages=fresh(), max_tokens=most, **endless)
            assert whole.usage is not None
            assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (most, "length")
            events = await stream(client, messages=fresh(), max_tokens=most, **endless)
            assert {choice.finish_reason for event in events for choice in event.choices} == {None, "length"}
            assert not [event for event in events if event.model_extra and "prompt_progress" in event.model_extra]
        counts = f"{told.usage.prompt_tokens} + {left + 1} > {SLOT_TOKENS}"
        for is_stream in (True, False):
            for field in ("max_tokens", "max_completion_tokens"):
                answer = await asked(gateway, messages=fresh(), stream=is_stream, **{field: left + 1})
                assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
                assert answer.error["param"] == field
                assert counts in answer.error["message"]
        write: Any = client.completions.create
        texts = [f"{digit} " + "word " * (SLOT_TOKENS - 24) for digit in "123"]
        text: Any = {"model": "m", "extra_body": {"ignore_eos": True}}
        used: int = (await write(**text, prompt=texts[0], max_tokens=1)).usage.prompt_tokens
        left = SLOT_TOKENS - used
        assert (await write(**text, prompt=texts[1], max_tokens=left)).usage.completion_tokens == left
        with pytest.raises(openai.BadRequestError) as caught:
            await write(**text, prompt=texts[2], max_tokens=left + 1)
        assert f"{used} + {left + 1} > {SLOT_TOKENS}" in str(caught.value)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot_within_a_second(engine: RealEngine, is_stream: bool) -> None:
    async with running_gateway(engine.target) as gateway, connected(gateway) as client:
        await client.ask(messages=user("Count."), max_tokens=900, ignore_eos=True, stream=is_stream)
        await engine.wait_busy_slots(1, timeout_seconds=20)
        client.leave()
        # All 900 tokens would take it longer.
        await engine.wait_busy_slots(0, timeout_seconds=4)
        assert gateway.in_flight == 0


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_request_that_is_cancelled_by_its_id_frees_its_slot_within_a_second(
    engine: RealEngine, is_stream: bool
) -> None:
    async with (
        running_gateway(engine.target) as gateway,
        connected(gateway) as client,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", timeout=30) as canceller,
    ):
        asking = {"messages": user("Count."), "max_tokens": 900, "ignore_eos": True, "stream": is_stream}
        await client.ask("x-request-id: long-one", **asking)
        await engine.wait_busy_slots(1, timeout_seconds=20)
        answer = await canceller.post("/v1/cancel/long-one")
        await engine.wait_busy_slots(0, timeout_seconds=4)
        assert (answer.status_code, answer.json()["cancelled"]) == (200, 1)
        told = await client.read_answer()
        assert told.headers["x-request-id"] == "long-one"
        error = told.events[-1]["error"] if is_stream else told.error
        assert error["code"] == "request_cancelled"
        assert gateway.in_flight == 0


async def test_the_engines_own_way_with_requests_cannot_be_reached(engine: RealEngine) -> None:
    async with sdk(engine) as (client, _):
        for name in ("id_slot", "cache_prompt", "n_predict", "lora"):
            with pytest.raises(openai.BadRequestError) as caught:
                await complete(client, extra_body={name: 1})
            assert (caught.value.code, caught.value.param) == ("unsupported_field", name)
        with pytest.raises(openai.NotFoundError):
            await complete(client, model="other")
        assert [model.id async for model in client.models.list()] == ["m"]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


async def test_what_an_engine_fails_at_though_the_request_is_to_blame_is_400(engine: RealEngine) -> None:
    """An image for a model that was declared to see and has no eyes; a prompt of no text; a format of nothing."""
    async with sdk(engine) as (_, gateway):
        gateway.route(engine.target, models=(MODEL.model_copy(update={"tasks": ("Chat", "Vision")}),))
        bad: list[dict[str, Any]] = [
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            {"reasoning_format": "unheard-of"},
            {"messages": [{"role": "tool", "content": "x"}, {"role": "function", "content": None}]},
            {"response_format": {"type": "unheard-of"}},
            {"json_schema": {"type": "unheard-of"}},
            {"n": 10_000},
            {"samplers": [{}]},
            {"logit_bias": {"x": "y"}},
            {"stop": [""] * 4, "top_logprobs": -1, "logprobs": True},
        ]
        found = [(fields, await asked(gateway, **({"max_tokens": 1} | fields))) for fields in bad]
        wrong = [(fields, answer) for fields, answer in found if answer.status not in (200, 400)]
        assert wrong == []
        assert [answer.status for _, answer in found[:2]] == [400, 400]
        assert (await asked(gateway, max_tokens=1)).status == 200


async def test_more_requests_than_slots_are_all_answered(engine: RealEngine) -> None:
    async with sdk(engine) as (client, gateway):
        calls = [complete(client, messages=user(f"{n}"), max_tokens=4) for n in range(8)]
        answers = await asyncio.gather(*calls)
        assert all(answer.usage and answer.usage.completion_tokens for answer in answers)
        assert gateway.in_flight == 0
