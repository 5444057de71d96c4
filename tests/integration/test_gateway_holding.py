"""Requests for models that are not ready: held, told of, delivered in order, and given up in time."""

import asyncio
import hashlib
import json

import pytest
from covey_api.messages import ClientKey, ModelDemand, ModelState, ServedModel
from covey_gateway.limits import MAX_HELD_PER_MODEL, SILENCE_SECONDS
from integration.gateway_rig import (
    MODEL,
    Answer,
    Call,
    Gateway,
    ScriptedEngine,
    asked,
    connected,
    eventually,
    running_gateway,
    target,
)
from integration.test_gateway_bad_input import post
from integration.test_gateway_streams import ask

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

ASLEEP = MODEL.model_copy(update={"state": ModelState.NOT_PLACED, "wakes": True, "hold_seconds": 60})
LOADING = MODEL.model_copy(update={"state": ModelState.LOADING, "hold_seconds": 60, "reason": "EngineStarting"})


def demand(gateway: Gateway) -> ModelDemand | None:
    return next(iter(gateway.traffic.waiting.observe_demand()), None)


def held(gateway: Gateway) -> int:
    found = demand(gateway)
    return found.held if found is not None else 0


@pytest.mark.parametrize("model", [ASLEEP, LOADING])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_held_until_an_endpoint_is_there(model: ServedModel, *, stream: bool) -> None:
    async with ScriptedEngine() as engine, running_gateway() as gateway:
        gateway.route(models=(model,))
        answer = asyncio.create_task(asked(gateway, stream=stream))
        await eventually(lambda: held(gateway) == 1)
        gateway.route(models=(LOADING,))
        await asyncio.sleep(0.05)
        assert not answer.done(), "a table without an endpoint changes nothing"
        gateway.route(engine.target())
        assert (await answer).status == 200
        assert demand(gateway) is None


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
async def test_ollamas_call_that_loads_a_model_starts_it_and_waits(path: str) -> None:
    load, unload = b'{"model":"m"}', b'{"model":"m","keep_alive":0}'
    async with running_gateway() as gateway:
        gateway.route(models=(ASLEEP,))
        answer = await post(gateway, path, unload)
        assert (answer.status, json.loads(answer.body)["done_reason"]) == (200, "unload")
        assert demand(gateway) is None, "it asked for the opposite"
        loading = asyncio.create_task(post(gateway, path, load))
        await eventually(lambda: held(gateway) == 1)
        gateway.route(models=(LOADING,))
        await asyncio.sleep(0.05)
        assert not loading.done()
        gateway.route(target(1))
        answer = await loading
        assert (answer.status, json.loads(answer.body)["done_reason"]) == (200, "load")
        assert demand(gateway) is None


async def test_a_load_that_takes_too_long_is_told_so_and_counts_as_asked_for() -> None:
    async with running_gateway() as gateway, connected(gateway) as client:
        gateway.route(models=(LOADING,))
        await ask(client, "/api/generate", {})
        await eventually(lambda: held(gateway) == 1)
        gateway.pass_time(61)
        answer = await client.read_answer()
        assert (answer.status, json.loads(answer.body)["code"]) == (503, "model_loading")
        found = demand(gateway)
        assert found is not None
        assert (found.held, found.refused_seconds is not None) == (0, True)


async def test_who_came_first_is_delivered_first() -> None:
    order: list[str] = []

    async def note(call: Call) -> None:
        order.append(call.content["messages"][0]["content"])
        await call.stream("x")

    async with ScriptedEngine(note) as engine, running_gateway() as gateway:
        gateway.route(models=(ASLEEP,))
        answers: list[asyncio.Task[object]] = []
        for number in range(4):
            messages = [{"role": "user", "content": str(number)}]
            answers.append(asyncio.create_task(asked(gateway, messages=messages)))
            await eventually(lambda number=number: held(gateway) == number + 1)
        gateway.route(engine.target())
        await asyncio.gather(*answers)
        assert order == ["0", "1", "2", "3"]


def key_of(name: str, priority: int) -> ClientKey:
    digest = "sha256:" + hashlib.sha256(f"sk-covey-{name}".encode()).hexdigest()
    return ClientKey(namespace="default", name=name, hash=digest, priority=priority)


KEYS = (key_of("low", -1), key_of("plain", 0), key_of("high", 5))


async def ask_as(gateway: Gateway, name: str, text: str = "") -> Answer:
    named = () if name == "nobody" else (f"authorization: Bearer sk-covey-{name}",)
    return await asked(gateway, *named, messages=[{"role": "user", "content": text or name}])


async def test_who_has_a_higher_priority_is_delivered_first_and_equal_ones_as_they_came() -> None:
    order: list[str] = []

    async def note(call: Call) -> None:
        order.append(call.content["messages"][0]["content"])
        await call.stream("x")

    async with ScriptedEngine(note) as engine, running_gateway() as gateway:
        gateway.route(models=(ASLEEP,), keys=KEYS)
        answers: list[asyncio.Task[Answer]] = []
        for number, name in enumerate(("low", "plain", "high", "nobody", "low", "high")):
            answers.append(asyncio.create_task(ask_as(gateway, name, f"{name} {number}")))
            await eventually(lambda number=number: held(gateway) == number + 1)
        gateway.route(engine.target(), keys=KEYS)
        assert {(await each).status for each in answers} == {200}
        assert order == ["high 2", "high 5", "plain 1", "nobody 3", "low 0", "low 4"]


async def test_who_has_a_higher_priority_takes_the_place_of_the_lowest_that_came_last() -> None:
    async with running_gateway() as gateway:
        gateway.route(models=(LOADING,), keys=KEYS)
        first = asyncio.create_task(ask_as(gateway, "low"))
        await eventually(lambda: held(gateway) == 1)
        others = [asyncio.create_task(ask_as(gateway, "plain")) for _ in range(MAX_HELD_PER_MODEL - 2)]
        await eventually(lambda: held(gateway) == MAX_HELD_PER_MODEL - 1)
        last = asyncio.create_task(ask_as(gateway, "low"))
        await eventually(lambda: held(gateway) == MAX_HELD_PER_MODEL)
        assert (await ask_as(gateway, "low")).status == 503, "it displaces none of its own priority"
        assert held(gateway) == MAX_HELD_PER_MODEL
        high = [asyncio.create_task(ask_as(gateway, "high"))]
        answer = await last
        assert (answer.status, answer.error["code"]) == (503, "model_loading")
        assert not first.done()
        high.append(asyncio.create_task(ask_as(gateway, "high")))
        assert (await first).status == 503
        assert not any(each.done() for each in (*others, *high))
        assert held(gateway) == MAX_HELD_PER_MODEL
        gateway.route(models=(), keys=KEYS)
        assert {(await each).status for each in (*others, *high)} == {404}


async def test_who_asks_to_load_a_model_gives_way_like_all_others() -> None:
    async with running_gateway() as gateway, connected(gateway) as loading:
        gateway.route(models=(LOADING,), keys=KEYS)
        others = [asyncio.create_task(ask_as(gateway, "plain")) for _ in range(MAX_HELD_PER_MODEL - 1)]
        await eventually(lambda: held(gateway) == MAX_HELD_PER_MODEL - 1)
        await ask(loading, "/api/generate", {})
        await eventually(lambda: held(gateway) == MAX_HELD_PER_MODEL)
        high = asyncio.create_task(ask_as(gateway, "high"))
        assert (await loading.read_answer()).status == 503
        assert held(gateway) == MAX_HELD_PER_MODEL
        gateway.route(models=(), keys=KEYS)
        assert {(await each).status for each in (*others, high)} == {404}


async def test_it_is_given_up_when_its_time_is_over_and_counts_as_asked_for() -> None:
    async with running_gateway() as gateway, connected(gateway) as client:
        gateway.route(models=(LOADING,))
        await client.ask()
        await eventually(lambda: held(gateway) == 1)
        gateway.pass_time(30)
        assert held(gateway) == 1
        gateway.pass_time(61)
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (503, "model_loading")
        assert "retry-after" in answer.headers
        found = demand(gateway)
        assert found is not None
        assert (found.held, found.refused_seconds is not None) == (0, True)


async def test_a_client_that_does_not_want_to_wait_is_answered_at_once() -> None:
    async with running_gateway() as gateway:
        gateway.route(models=(ASLEEP,))
        answer = await asked(gateway, "X-Covey-Hold: 0")
        assert (answer.status, answer.error["code"]) == (503, "model_loading")
        assert answer.error["message"] == "model 'm' is not ready yet: it is started now"
        found = demand(gateway)
        assert found is not None
        assert found.refused_seconds is not None, "it is started for who asks again"
        gateway.route(target(1))
        assert demand(gateway) is None, "what was asked for is there"
        gateway.route(models=(ASLEEP,))
        async with connected(gateway) as client:
            await client.ask("x-covey-hold: 5")
            await eventually(lambda: held(gateway) == 1)
            gateway.pass_time(6)
            assert (await client.read_answer()).status == 503
        assert (await asked(gateway, "x-covey-hold: soon")).status == 400


async def test_one_that_is_not_held_by_its_placement_or_not_placed_at_all_is_told_so() -> None:
    async with running_gateway() as gateway:
        gateway.route(models=(ASLEEP.model_copy(update={"hold_seconds": 0}),))
        assert (await asked(gateway)).error["code"] == "model_loading"
        gateway.route(models=(MODEL.model_copy(update={"state": ModelState.NOT_PLACED}),))
        assert (await asked(gateway)).error["code"] == "model_unavailable"


async def test_who_waits_hears_at_once_that_waiting_does_not_help_any_more() -> None:
    gone = MODEL.model_copy(update={"state": ModelState.UNAVAILABLE, "reason": "NotPlaced", "message": "too large"})
    async with running_gateway() as gateway:
        gateway.route(models=(LOADING,))
        answer = asyncio.create_task(asked(gateway))
        await eventually(lambda: held(gateway) == 1)
        gateway.route(models=(gone,))
        assert (await answer).error["code"] == "model_unavailable"
        gateway.route(models=(LOADING,))
        answer = asyncio.create_task(asked(gateway))
        await eventually(lambda: held(gateway) == 1)
        gateway.route(models=())
        assert (await answer).error["code"] == "model_not_found"


async def test_a_held_stream_says_that_it_lives_and_still_gets_its_answer() -> None:
    async with ScriptedEngine() as engine, running_gateway() as gateway, connected(gateway) as client:
        gateway.route(models=(LOADING,))
        await client.ask(stream=True)
        await eventually(lambda: held(gateway) == 1)
        gateway.pass_time(SILENCE_SECONDS + 1)
        status, headers = await client.read_head()
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert (await client.read_chunk()).startswith(b":")
        gateway.route(engine.target())
        chunks = b""
        while piece := await client.read_chunk():
            chunks += piece
        assert chunks.endswith(b"data: [DONE]\n\n")


async def test_a_client_that_leaves_waits_no_more() -> None:
    async with running_gateway() as gateway, connected(gateway) as client:
        gateway.route(models=(LOADING,))
        await client.ask()
        await eventually(lambda: held(gateway) == 1)
        client.leave()
        await eventually(lambda: demand(gateway) is None)


async def test_no_more_wait_than_an_endpoint_takes() -> None:
    async with running_gateway() as gateway:
        gateway.route(models=(LOADING,))
        waiting = [asyncio.create_task(asked(gateway)) for _ in range(MAX_HELD_PER_MODEL)]
        await eventually(lambda: held(gateway) == MAX_HELD_PER_MODEL)
        assert (await asked(gateway)).status == 503
        gateway.route(models=())
        assert {(await each).status for each in waiting} == {404}
