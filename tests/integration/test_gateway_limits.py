"""Limits of keys, as clients of every format meet them: 429 with what was hit and when it frees, and what is left."""

import asyncio
import hashlib
import json
from typing import Any

import anthropic
import openai
import pytest
from covey_api.messages import ClientKey
from integration.gateway_rig import (
    DONE,
    LAST_CHUNK,
    MODEL,
    STREAM_HEAD,
    Answer,
    Call,
    Gateway,
    ScriptedEngine,
    asked,
    chunk,
    connected,
    eventually,
    running_gateway,
    token,
)
from integration.test_gateway_bad_input import CALLS
from integration.test_gateway_seeing import answer_counted

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SECRET = "sk-covey-test"
HASH = "sha256:" + hashlib.sha256(SECRET.encode()).hexdigest()
BEARER = f"authorization: Bearer {SECRET}"
ALL_TASKS = MODEL.model_copy(update={"tasks": ("Chat", "Embedding", "Rerank")})


def key(**limits: Any) -> ClientKey:
    return ClientKey(namespace="default", name="ann", hash=HASH, **limits)


async def send(gateway: Gateway, name: str) -> Answer:
    spoken = CALLS[name]
    body = json.dumps({"model": "m", "stream": False} | spoken.body).encode()
    head = f"POST {spoken.path} HTTP/1.1\r\nhost: localhost\r\n{BEARER}\r\ncontent-length: {len(body)}\r\n\r\n"
    async with connected(gateway) as client:
        await client.send(head.encode() + body)
        return await client.read_answer()


@pytest.mark.parametrize("name", ["chat", "completions", "responses", "messages", "count_tokens", "ollama chat"])
async def test_the_limit_is_told_in_each_formats_envelope(name: str) -> None:
    async with ScriptedEngine(answer_counted) as engine, running_gateway() as gateway:
        gateway.route(engine.target(), models=(ALL_TASKS,), keys=(key(requests_per_minute=1),))
        await asked(gateway, BEARER)
        refused = await send(gateway, name)
        assert refused.status == 429
        words = CALLS[name].read(refused.content)
        assert "key 'default/ann' may have 1 requests per minute here (`requestsPerMinute`)" in words
        seconds = int(refused.headers["retry-after"])
        assert 1 <= seconds <= 61
        assert f"frees in {seconds} s" in words
        assert len(engine.calls) == 1
        assert (await asked(gateway)).status == 200, "who sends no key on loopback isn't limited"


async def test_what_is_left_is_told_in_the_names_that_sdks_read() -> None:
    async with ScriptedEngine(answer_counted) as engine, running_gateway() as gateway:
        gateway.route(engine.target(), keys=(key(requests_per_minute=9, tokens_per_minute=1000),))
        await asked(gateway, BEARER)
        for stream in (False, True):
            headers = (await asked(gateway, BEARER, stream=stream)).headers
            assert headers["x-ratelimit-limit-requests"] == "9"
            assert headers["x-ratelimit-limit-tokens"] == "1000"
        assert headers["x-ratelimit-remaining-requests"] == "6"
        assert headers["x-ratelimit-remaining-tokens"] == str(1000 - 2 * 13)
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        headers = (await send(gateway, "messages")).headers
        assert headers["anthropic-ratelimit-requests-remaining"] == "5"
        assert headers["anthropic-ratelimit-tokens-limit"] == "1000"
        assert headers["anthropic-ratelimit-tokens-reset"].endswith("Z")
        assert not any(name.startswith("x-ratelimit") for name in (await asked(gateway)).headers)


async def test_sdks_raise_their_own_error_for_it() -> None:
    async with ScriptedEngine(answer_counted) as engine, running_gateway() as gateway:
        gateway.route(engine.target(), keys=(key(requests_per_minute=1),))
        await asked(gateway, BEARER)
        url = f"http://127.0.0.1:{gateway.port}"
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=SECRET, max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as found:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
            assert found.value.code == "rate_limit_exceeded"
            assert found.value.param == "requestsPerMinute"
        async with anthropic.AsyncAnthropic(base_url=url, api_key=SECRET, max_retries=0) as client:
            with pytest.raises(anthropic.RateLimitError):
                await client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("field", "name"), [("tokens_per_minute", "tokensPerMinute"), ("tokens_per_day", "tokensPerDay")]
)
async def test_tokens_are_the_engines_own_and_the_next_request_is_refused_by_them(field: str, name: str) -> None:
    async with ScriptedEngine(answer_counted) as engine, running_gateway() as gateway:
        gateway.route(engine.target(), keys=(key(**{field: 26}),))
        assert [(await asked(gateway, BEARER, stream=True)).status for _ in range(3)] == [200, 200, 429]
        assert (await asked(gateway, BEARER)).error["param"] == name


async def test_requests_at_a_time_free_when_they_end_or_their_client_leaves() -> None:
    go_on = asyncio.Event()

    async def hold(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("x")))
        await go_on.wait()
        await call.write(chunk(DONE), LAST_CHUNK)

    async with ScriptedEngine(hold) as engine, running_gateway() as gateway:
        gateway.route(engine.target(), keys=(key(concurrency=2),))
        first = asyncio.create_task(asked(gateway, BEARER))
        async with connected(gateway) as client:
            await client.ask(BEARER, stream=True)
            await client.read_head()
            await eventually(lambda: gateway.in_flight == 2)
            refused = await asked(gateway, BEARER)
            assert (refused.status, refused.error["param"], refused.headers["retry-after"]) == (
                429,
                "concurrency",
                "1",
            )
            client.leave()
        await eventually(lambda: gateway.in_flight == 1)
        go_on.set()
        assert (await first).status == 200
        for _ in range(3):
            assert (await asked(gateway, BEARER)).status == 200


async def test_a_limit_that_changes_holds_from_the_next_request_on_and_counts_what_was() -> None:
    async with ScriptedEngine() as engine, running_gateway() as gateway:
        gateway.route(engine.target(), keys=(key(requests_per_minute=5),))
        for _ in range(3):
            assert (await asked(gateway, BEARER)).status == 200
        gateway.route(engine.target(), keys=(key(requests_per_minute=3),))
        assert (await asked(gateway, BEARER)).status == 429
        gateway.route(engine.target(), keys=(key(),))
        assert (await asked(gateway, BEARER)).status == 200
        gateway.route(engine.target(), keys=())
        assert (await asked(gateway, BEARER)).status == 401, "it was deleted"


async def test_a_key_asks_for_its_models_alone_and_learns_of_no_other() -> None:
    other = MODEL.model_copy(update={"name": "other", "aliases": ("o",)})
    async with ScriptedEngine() as engine, running_gateway() as gateway:
        gateway.route(engine.target(), models=(MODEL, other), keys=(key(models=("m",)),))
        assert (await asked(gateway, BEARER)).status == 200
        assert (await asked(gateway, BEARER, model="gpt-4o")).status == 200, "by another name of it"
        for name in ("other", "o", "default/other"):
            refused = await asked(gateway, BEARER, model=name)
            assert (refused.status, refused.error["code"]) == (404, "model_not_found")
            assert refused.error["message"].endswith("there is 'm'")
        async with connected(gateway) as client:
            await client.send(f"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{BEARER}\r\n\r\n".encode())
            listed = (await client.read_answer()).content["data"]
            assert [model["id"] for model in listed] == ["m"]
            await client.send(f"GET /v1/models/other HTTP/1.1\r\nhost: localhost\r\n{BEARER}\r\n\r\n".encode())
            assert (await client.read_answer()).status == 404
