"""A machine without power or network: what gateways would hear of its engines, they hear when it is back, or never."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

from covey_simulator.engine import Engine, EngineTransport
from covey_simulator.loop import Process, SimLoop


class Heard(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""
        self.has_lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_lost = True


async def stand_still(process: Process) -> None:
    await asyncio.Event().wait()


async def ask() -> tuple[Engine, EngineTransport, Heard, Process]:
    """A request that its engine is answering."""
    loop = asyncio.get_running_loop()
    engine = Engine("i", 1, 1, 20_000, "key", 0.0, {}, loop.create_future())
    gateway, heard = Process("gateway g", stand_still), Heard()
    transport = EngineTransport(engine, heard, gateway, Random(1))
    await asyncio.sleep(0)
    transport.writelines([b"POST / HTTP/1.1\r\nauthorization: Bearer key\r\n\r\n"])
    return engine, transport, heard, gateway


def run(story: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        runner.run(story)


def test_frozen_engine_says_nothing_and_what_it_said_comes_after_the_thaw() -> None:
    async def story() -> None:
        engine, _, heard, gateway = await ask()
        engine.held = []
        await asyncio.sleep(60.0)
        assert heard.data == b""
        engine.end(-9, 60.0)
        await asyncio.sleep(1.0)
        assert not heard.has_lost
        held, engine.held = engine.held, None
        for hear in held:
            hear()
        await asyncio.sleep(1.0)
        assert heard.has_lost
        await gateway.kill()

    run(story())


def test_gateway_that_gives_up_on_a_frozen_engine_is_rid_of_it_at_once() -> None:
    async def story() -> None:
        engine, transport, heard, gateway = await ask()
        engine.held = []
        transport.close()
        await asyncio.sleep(0.1)
        assert heard.has_lost
        assert engine.transports == []
        await gateway.kill()

    run(story())


def test_wedged_engine_takes_the_request_and_never_answers() -> None:
    async def story() -> None:
        engine, _, heard, gateway = await ask()
        engine.is_wedged = True
        await asyncio.sleep(600.0)
        assert (heard.data, heard.has_lost, engine.is_alive) == (b"", False, True)
        await gateway.kill()

    run(story())
