"""A real llama-server whose slots share one cache, asked by three gateways for more than fits into it."""

import asyncio
import re
from collections.abc import Generator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from covey_api.messages import Order
from covey_gateway.routing.table import Target, build_table
from integration.engine_rig import started_engine
from integration.gateway_rig import MODEL, Gateway, connected, running_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(1800)]

POOL_TOKENS = 4608
SLOTS = 16
ANSWER_TOKENS = 24
# As many tokens as letters, for a small model knows no such words. What is kept for the template is more than a small
# one needs, so prompts must be long: all slots at a time come to more than the pool.
WORDS = "ZQXJK" * 60
# Each comes to more than 300 tokens: all together to three times the pool, and slots stay full however they arrive.
REQUESTS = 45
NAMES = ("a", "b", "c")
# Some 15,000 tokens of a small model, on a machine that is busy with other things.
DEADLINE_SECONDS = 800


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Generator[Target]:
    arguments = ("-c", str(POOL_TOKENS), "--kv-unified")
    with started_engine(tmp_path_factory.mktemp("engine"), *arguments, slots=SLOTS) as target:
        yield replace(target, context_tokens=POOL_TOKENS, most_sent=SLOTS)


async def ask_all(stack: AsyncExitStack, target: Target) -> list[bytes]:
    """Each of three gateways gets a third of the requests at once."""
    gateways: list[Gateway] = []
    for name in NAMES:
        gateway = await stack.enter_async_context(running_gateway(is_routed=False))
        gateway.apply(build_table(Order(term=1, serial=1), [MODEL], [target], [], NAMES))
        gateway.traffic.name_gateway(name)
        gateways.append(gateway)

    async def ask(number: int) -> bytes:
        message = {"role": "user", "content": f"{number} {WORDS}"}
        fields: dict[str, Any] = {"messages": [message], "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
        async with connected(gateways[number % len(gateways)]) as client:
            await client.ask("connection: close", stream=True, **fields)
            return await client.reader.read()

    async with asyncio.timeout(DEADLINE_SECONDS):
        return await asyncio.gather(*(ask(number) for number in range(REQUESTS)))


def is_whole(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in answer and b'"error"' not in answer


async def test_no_stream_ends_for_want_of_room_in_a_shared_cache(engine: Target) -> None:
    async with AsyncExitStack() as stack:
        answers = await ask_all(stack, replace(engine, kv_tokens=POOL_TOKENS))
    assert all(is_whole(answer) for answer in answers), [answer[-300:] for answer in answers]


async def test_a_prompt_of_more_bytes_than_the_cache_has_tokens_is_counted(engine: Target) -> None:
    pooled = replace(engine, kv_tokens=POOL_TOKENS)
    for words, status in (("the time of the year " * 300, 200), (WORDS * 20, 400)):
        assert len(words) > POOL_TOKENS
        async with running_gateway(pooled) as gateway, connected(gateway) as client:
            message = {"role": "user", "content": words}
            await client.ask(messages=[message], max_tokens=ANSWER_TOKENS)
            answer = await client.read_answer()
        assert answer.status == status, answer.body
    assert "comes to" in answer.error["message"]
    counted = int(re.findall(r"comes to (\d+) tokens", answer.error["message"])[0])
    assert counted > POOL_TOKENS


async def test_without_a_bound_that_is_what_ends_them(engine: Target) -> None:
    """What the test above would see, were nothing reserved."""
    async with AsyncExitStack() as stack:
        answers = await ask_all(stack, engine)
    assert not all(is_whole(answer) for answer in answers)
