"""What users of other routers complained about, asked of this gateway. No test here measures time against a clock.

Those about tool calls, usage, cancelling and deadlines are with the tests of these.
"""

import asyncio
import gc
import json
import resource
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest
from covey_api.messages import ModelState
from covey_gateway.wire.openai.chat import parse_chat
from covey_gateway.wire.request import Request, render_request
from integration.gateway_rig import (
    DONE,
    LAST_CHUNK,
    MODEL,
    STREAM_HEAD,
    Call,
    Gateway,
    RawClient,
    ScriptedEngine,
    asked,
    chunk,
    connected,
    eventually,
    request,
    running_gateway,
    token,
)
from integration.test_gateway_bad_input import CALLS, post
from integration.test_gateway_streams import STREAMS, WHOLE, ask, read_error

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def many_files() -> Generator[None]:
    """Client, gateway and engine are one process here: four descriptors a request."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 8192:
        pytest.skip("this system gives a process fewer than 8192 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Held:
    """An engine that says a word to everybody, and the rest when it is let."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("Hel")))
        await self.go_on.wait()
        await call.write(chunk(token("lo") + DONE), LAST_CHUNK)


async def open_stream(gateway: Gateway, content: bytes) -> tuple[RawClient, bytes]:
    """A client, and the first event of its stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    client = RawClient(reader, writer)
    await client.send(content)
    status, _ = await client.read_head()
    assert status == 200
    return client, await client.read_chunk()


async def finish(client: RawClient) -> bytes:
    rest = b""
    while piece := await client.read_chunk():
        rest += piece
    client.leave()
    return rest


@pytest.mark.usefixtures("many_files")
async def test_twelve_hundred_streams_at_once_are_all_served() -> None:
    """A router crashed above a thousand concurrent requests."""
    held = Held()
    async with ScriptedEngine(held) as engine, running_gateway(engine.target(slots=64)) as gateway:
        content = request(stream=True)
        opened: list[tuple[RawClient, bytes]] = []
        for _ in range(12):
            opened += await asyncio.gather(*(open_stream(gateway, content) for _ in range(100)))
        assert gateway.in_flight == 1200
        held.go_on.set()
        rests = await asyncio.gather(*(finish(client) for client, _ in opened))
        assert {first for _, first in opened} == {token("Hel")}
        assert {rest.replace(b": keep-alive\n\n", b"") for rest in rests} == {token("lo") + DONE}
        assert gateway.in_flight == 0


async def test_the_first_tokens_of_256_streams_come_while_all_are_held_open() -> None:
    """A proxy in Python let the first token wait for others: 0.7 s became 9 s at 256 at once.

    No stream goes on before each has had its first token, so one that waited for another would wait for ever.
    """
    held = Held()
    async with ScriptedEngine(held) as engine, running_gateway(engine.target(slots=64)) as gateway:
        opened = await asyncio.gather(*(open_stream(gateway, request(stream=True)) for _ in range(256)))
        assert [first for _, first in opened] == [token("Hel")] * 256
        held.go_on.set()
        await asyncio.gather(*(finish(client) for client, _ in opened))


def least_seconds(work: Callable[[], object]) -> float:
    """Of the processor, of several tries."""
    taken: list[float] = []
    for _ in range(7):
        before = time.process_time()
        for _ in range(5):
            work()
        taken.append(time.process_time() - before)
    return min(taken)


def test_a_prompt_of_220_kb_costs_a_few_readings_of_it_as_json_at_most() -> None:
    """Long prompts added a second to the first token elsewhere; here it is a few milliseconds of the processor."""
    messages = [{"role": "user", "content": f"{number} " + "word " * 40} for number in range(1000)]
    body = json.dumps({"model": "m", "stream": True, "messages": messages}).encode()
    assert len(body) > 220_000

    def relay() -> bytes:
        asked = parse_chat(body)
        assert isinstance(asked, Request)
        return render_request(asked, "m", "LlamaServer")

    gc.collect()
    assert least_seconds(relay) < 4 * least_seconds(lambda: json.dumps(json.loads(body)))


async def test_prompts_of_220_kb_of_150_clients_at_once_reach_the_engine_whole() -> None:
    held = Held()
    prompt = "word " * 44_000
    content = request(stream=True, messages=[{"role": "user", "content": prompt}])
    async with ScriptedEngine(held) as engine, running_gateway(engine.target(slots=64)) as gateway:
        opened = await asyncio.gather(*(open_stream(gateway, content) for _ in range(150)))
        assert {call.content["messages"][0]["content"] for call in engine.calls} == {prompt}
        held.go_on.set()
        await asyncio.gather(*(finish(client) for client, _ in opened))


async def test_a_spike_leaves_nothing_behind() -> None:
    """After a spike every request ended in 408 until the router was started anew."""

    async def hang(call: Call) -> None:
        await call.wait_gone(timeout_seconds=60)

    async with ScriptedEngine(hang) as engine, running_gateway(engine.target(slots=1)) as gateway:
        waiting = [asyncio.ensure_future(asked(gateway)) for _ in range(64)]
        await eventually(lambda: gateway.in_flight == 64)
        assert {(await asked(gateway)).status for _ in range(20)} == {503}
        gateway.pass_time(700)
        gateway.pass_time(1400)  # one had its turn when the first one's ended
        assert {one.status for one in await asyncio.gather(*waiting)} == {504}
        assert gateway.in_flight == 0
        await eventually(lambda: engine.open_connections == 0)
        engine.script = ScriptedEngine().script
        for _ in range(64):
            assert (await asked(gateway)).status == 200


EMPTY = [
    b'data: {"id":"c1","created":1,"choices":[{"index":0,"delta":{"role":"assistant"}}],"_private":{"cache":"x"}}\n\n',
    b'data: {"id":"c1","choices":[{"index":0,"delta":{},"_private_field":1}]}\n\n',
    b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":""}}]}\n\n',
    b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":null,"tool_calls":[]}}]}\n\n',
]


async def speak_with_holes(call: Call) -> None:
    end = token("", finish_reason="stop")
    await call.write(STREAM_HEAD, *(chunk(one + token("x")) for one in EMPTY), chunk(end + DONE), LAST_CHUNK)


@pytest.mark.parametrize("name", ["responses", "messages", "ollama chat"])
async def test_empty_deltas_and_private_fields_are_told_to_nobody(name: str) -> None:
    async with ScriptedEngine(speak_with_holes) as engine, running_gateway(engine.target()) as gateway:
        async with connected(gateway) as client:
            await ask(client, *STREAMS[name])
            streamed = await client.read_answer()
        async with connected(gateway) as client:
            await ask(client, *WHOLE[name])
            whole = await client.read_answer()
    assert b"private" not in streamed.body + whole.body
    deltas = [line for line in streamed.body.split(b"\n") if b'"delta":"' in line or b'"text_delta"' in line]
    lines = [json.loads(line) for line in streamed.body.split(b"\n") if line] if name == "ollama chat" else []
    said = len(deltas) or len([one for one in lines if one["message"]["content"]])
    assert said == len(EMPTY)
    assert len(lines) <= len(EMPTY) + 1
    assert b"xxxx" in whole.body


async def test_an_answer_put_together_has_no_private_fields() -> None:
    async with ScriptedEngine(speak_with_holes) as engine, running_gateway(engine.target()) as gateway:
        answer = await asked(gateway)
        message = answer.content["choices"][0]["message"]
        assert {name: value for name, value in message.items() if value} == {"role": "assistant", "content": "xxxx"}
        assert b"private" not in answer.body


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("is_stream", [True, False])
async def test_an_answer_without_a_word_of_one_is_no_answer(name: str, is_stream: bool) -> None:
    """200 and no delta at all, where the prompt was too long: whoever waits for text must learn that none comes."""

    async def say_nothing(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(b": \n\n"), chunk(DONE), LAST_CHUNK)

    async with (
        ScriptedEngine(say_nothing) as engine,
        running_gateway(engine.target()) as gateway,
        connected(gateway) as client,
    ):
        await ask(client, *(STREAMS if is_stream else WHOLE)[name])
        answer = await client.read_answer()
    if is_stream:
        assert "without a word" in read_error(name, answer)
    else:
        assert answer.status == 502


FORMATS = ["chat", "completions", "responses", "embeddings", "messages", "ollama chat"]


async def answer_any(call: Call) -> None:
    if b"embeddings" in call.head:
        await call.refuse(200, b'{"data":[{"index":0,"embedding":[1]}]}')
    elif b"/v1/completions" in call.head:
        piece = b'data: {"id":"c","choices":[{"index":0,"text":"Hi","finish_reason":"stop"}]}\n\n'
        await call.write(STREAM_HEAD, chunk(piece + DONE), LAST_CHUNK)
    else:
        await call.stream("Hi")


@pytest.mark.parametrize("name", FORMATS)
async def test_the_first_request_to_a_model_that_sleeps_or_loads_is_never_a_fault_of_its_own(name: str) -> None:
    """Scaled to zero the first request got 400; one that waits a moment must be told so, and then be served."""
    spoken, tasks = CALLS[name], ("Chat", "Embedding")
    body = json.dumps({"model": "m"} | spoken.body).encode()

    async with ScriptedEngine(answer_any) as engine, running_gateway() as gateway:
        for state in (ModelState.NOT_PLACED, ModelState.LOADING, ModelState.READY):
            model = MODEL.model_copy(update={"state": state, "tasks": tasks})
            gateway.route(models=(model,))
            refused = await post(gateway, spoken.path, body)
            assert refused.status == 503
            assert spoken.read(refused.content)
            assert ("retry-after" in refused.headers) is (state is not ModelState.NOT_PLACED)
        gateway.route(engine.target(), models=(model,))
        assert (await post(gateway, spoken.path, body)).status == 200


@pytest.mark.parametrize("name", FORMATS)
async def test_a_request_to_a_model_that_sleeps_wakes_it_and_is_answered(name: str) -> None:
    """A gateway answered 503 at once, and whether anything had been started was the client's to guess."""
    spoken = CALLS[name]
    asleep = MODEL.model_copy(
        update={"state": ModelState.NOT_PLACED, "wakes": True, "hold_seconds": 60, "tasks": ("Chat", "Embedding")}
    )
    async with ScriptedEngine(answer_any) as engine, running_gateway() as gateway:
        gateway.route(models=(asleep,))
        told: list[int] = []
        gateway.traffic.watch_news(lambda: told.extend(each.held for each in gateway.traffic.waiting.observe_demand()))
        answer = asyncio.create_task(post(gateway, spoken.path, json.dumps({"model": "m"} | spoken.body).encode()))
        await eventually(lambda: told == [1])
        assert not answer.done()
        gateway.route(engine.target(), models=(asleep.model_copy(update={"state": ModelState.READY}),))
        assert (await answer).status == 200
        assert len(engine.calls) == 1
