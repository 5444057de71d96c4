"""Two processes under one gateway's name: the first is heard, whatever the other does; a restart is heard at once."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest
from covey_api.messages import NODE_SILENCE_SECONDS, Endpoints
from covey_controller.fleet_api.gateway_claims import GatewayClaims
from covey_controller.name_claims import NameTaken


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def tables() -> AsyncIterator[Endpoints | None]:
    while True:
        yield Endpoints(term=1, serial=1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def claims(clock: Clock) -> GatewayClaims:
    return GatewayClaims(clock)


async def opened(claims: GatewayClaims, boot: str) -> AsyncGenerator[Endpoints | None]:
    stream = claims.follow("g", boot, tables())
    assert await anext(stream) is not None
    return stream


def test_a_copy_is_refused_while_the_first_streams(claims: GatewayClaims, clock: Clock) -> None:
    async def run() -> None:
        async with aclosing(await opened(claims, "first")):
            claims.hear("g", "first")
            for _ in range(30):
                clock.now += 1
                with pytest.raises(NameTaken, match=r"is connected as gateway 'g'.*stop the gateway of the other"):
                    claims.hear("g", "copy")
                with pytest.raises(NameTaken):
                    claims.follow("g", "copy", tables())
                claims.hear("g", "first")
            claims.hear("other", "copy")

    asyncio.run(run())


def test_a_restart_is_heard_at_once_and_a_lost_machines_successor_after_its_silence(
    claims: GatewayClaims, clock: Clock
) -> None:
    async def run() -> None:
        async with aclosing(await opened(claims, "first")):
            claims.hear("g", "first")
        async with aclosing(await opened(claims, "second")):
            claims.hear("g", "second")
            clock.now += NODE_SILENCE_SECONDS - 1
            with pytest.raises(NameTaken):
                claims.hear("g", "third")
            clock.now += 1
            claims.hear("g", "third")
            claims.follow("g", "third", tables())

    asyncio.run(run())


def test_who_does_not_say_its_boot_is_believed(claims: GatewayClaims) -> None:
    async def run() -> None:
        async with aclosing(await opened(claims, "")), aclosing(await opened(claims, "")):
            claims.hear("g", "")
            claims.hear("g", "first")
            claims.hear("g", "")

    asyncio.run(run())
