"""The gateway's connections by a front, to engines that follow a script: kept, ended and lost as plain ones."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contract.test_front import write_identity
from covey_agent.keeper.joining import FrontSettings
from covey_agent.keeper.keepers import ProcessKeepers
from covey_agent.ports import Launch
from covey_api.messages import CertificateRole, render_front_name
from covey_gateway.fronts import Fronts
from covey_gateway.routing.table import Front, Target
from integration.gateway_rig import (
    STREAM_HEAD,
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
from kit.ports import own_address
from kit.vaults import authority_in

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

ID = "00000000000000aa"
ADDRESS = own_address()


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


@asynccontextmanager
async def fronted(folder: Path, engine: ScriptedEngine) -> AsyncGenerator[Gateway]:
    """A gateway that reaches the engine by a front only. The keeper's own child sleeps; what listens is the script."""
    authority = authority_in(folder / "controller", time.time())
    node = write_identity(folder / "agent", authority, CertificateRole.AGENT, "a")
    identity = write_identity(folder / "gateway", authority, CertificateRole.GATEWAY, "gw")
    keepers = ProcessKeepers(folder / "members", 60, lambda: FrontSettings(ADDRESS, node))
    start = keepers.start(ID, 1, engine.port, Launch(("/bin/sleep", "300"), {}, ()))
    # In a loop of its own, as an agent has it: uvloop, which gateways run on, isn't what starts keepers.
    agent = asyncio.Runner()
    process = await asyncio.to_thread(agent.run, start)
    try:
        front = Front(ADDRESS, process.front_port, render_front_name(ID, 1), "a")
        target: Target = replace(engine.target(ID), port=1, front=front)
        async with running_gateway(target, fronts=Fronts(identity)) as gateway:
            yield gateway
    finally:
        await asyncio.to_thread(agent.run, end(keepers))
        await asyncio.to_thread(agent.close)


async def end(keepers: ProcessKeepers) -> None:
    await keepers.stop(ID, 1)
    await keepers.wait_exit(ID)
    await keepers.release(ID)


async def test_connections_are_kept_between_requests(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine, fronted(tmp_path, engine) as gateway:
        for stream in (True, False, True):
            assert (await asked(gateway, stream=stream)).status == 200
        assert (len(engine.calls), engine.connections) == (3, 1)
        gateway.pass_time(60)
        await eventually(lambda: engine.open_connections == 0)
        assert (await asked(gateway)).status == 200
        assert engine.connections == 2


async def test_a_client_that_leaves_ends_the_engines_connection(tmp_path: Path) -> None:
    async def begin(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("a")))
        assert await call.wait_gone() < 30

    async with ScriptedEngine(begin) as engine, fronted(tmp_path, engine) as gateway, connected(gateway) as client:
        await client.ask(stream=True)
        await client.read_head()
        client.leave()
        await eventually(lambda: engine.open_connections == 0)
        assert gateway.in_flight == 0


async def test_an_engine_that_breaks_off_is_an_error_in_the_stream(tmp_path: Path) -> None:
    async def break_off(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("a")))
        await asyncio.sleep(0.1)
        call.reset()

    async with ScriptedEngine(break_off) as engine, fronted(tmp_path, engine) as gateway:
        answer = await asked(gateway, stream=True)
        assert "error" in answer.events[-1]
        assert gateway.in_flight == 0


async def test_an_engine_that_closes_before_it_answers_is_unavailable(tmp_path: Path) -> None:
    async def close(call: Call) -> None:
        call.reset()

    async with ScriptedEngine(close) as engine, fronted(tmp_path, engine) as gateway:
        assert (await asked(gateway, "x-covey-hold: 0")).status == 503


async def test_large_bodies_pass_both_ways(tmp_path: Path) -> None:
    async def repeat(call: Call) -> None:
        await call.stream(call.content["messages"][0]["content"])

    text = "x" * 3_000_000
    async with ScriptedEngine(repeat) as engine, fronted(tmp_path, engine) as gateway:
        answer = await asked(gateway, messages=[{"role": "user", "content": text}], stream=True)
        assert answer.text == text
