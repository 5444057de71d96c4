"""Clients of a scenario: they ask at an even rate, of the first gateway that is there, and give up in the end."""

import asyncio
from functools import partial

from covey_simulator.accounts import Accounts
from covey_simulator.gateway import Gateway, Request
from covey_simulator.scenario import SteadyRequests
from covey_simulator.world import World

# People and programs wait a minute.
PATIENCE_SECONDS = 60.0
NO_GATEWAY, GATEWAY_ENDED = "no gateway took it", "its gateway ended"
SILENT, CUT = "no answer within 60 s", "cut off in mid-answer"


async def ask_steadily(world: World, asked: SteadyRequests, accounts: Accounts) -> None:
    """Until its time ends, or the run does; those that were asked are waited for."""
    await asyncio.sleep(max(0.0, asked.from_seconds - accounts.now()))
    count = 0
    async with asyncio.TaskGroup() as group:
        while True:
            at = asked.from_seconds + count * 60.0 / asked.per_minute
            if asked.until_seconds is not None and at >= asked.until_seconds:
                return
            await asyncio.sleep(max(0.0, at - accounts.now()))
            if accounts.ended_at is not None:
                return
            # Every other one wants its answer as a stream.
            group.create_task(_ask(world, asked.model, wants_stream=count % 2 == 0, accounts=accounts))
            count += 1


async def _ask(world: World, model: str, *, wants_stream: bool, accounts: Accounts) -> None:
    gateway = _find_gateway(world)
    outcome = NO_GATEWAY if gateway is None else await _ask_gateway(world, gateway, model, wants_stream)
    accounts.on_outcome(model, outcome)


def _find_gateway(world: World) -> Gateway | None:
    found = [world.gateways[name] for name in world.gateway_names if name in world.gateways]
    return next((each for each in found if each.process.has_begun and not each.process.is_dying), None)


async def _ask_gateway(world: World, gateway: Gateway, model: str, wants_stream: bool) -> str:
    request = Request(model, world.now())
    context = gateway.process.context
    exchange = context.run(partial(gateway.ask, request, wants_stream=wants_stream))
    deadline = world.now() + PATIENCE_SECONDS
    while not request.answered.is_set():
        if gateway.process.is_dying:
            return GATEWAY_ENDED
        if world.now() >= deadline:
            context.run(exchange.abandon)
            return SILENT
        try:
            async with asyncio.timeout(1.0):
                await request.answered.wait()
        except TimeoutError:
            continue
    return CUT if request.outcome == "200 cut" else request.outcome
