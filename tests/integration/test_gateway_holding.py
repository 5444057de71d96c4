"""Requests for models that are not ready: held, told of, delivered in order, and given up in time."""

import asyncio

import pytest
from covey_api.messages import ModelDemand, ModelState, ServedModel
from covey_gateway.limits import MAX_HELD_PER_MODEL, SILENCE_SECONDS
from integration.gateway_rig import (
    MODEL,
    Call,
    Gateway,
    ScriptedEngine,
    asked,
    connected,
    eventually,
    running_gateway,
    target,
)

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
