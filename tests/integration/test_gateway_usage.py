"""Usage of keys against the engine's own counters, and limits over two gateways that know nothing of each other."""

import asyncio
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from covey_api.access_key import AccessKey, AccessKeySpec
from covey_api.messages import CertificateRole, ClientKey, Endpoint, Endpoints, ModelState, ServedModel
from covey_api.meta import ObjectMeta
from covey_controller.board import FleetBoard
from covey_controller.reconcile.plan import plan
from covey_gateway.routing.table import Target
from integration.engine_rig import KEY as ENGINE_KEY
from integration.engine_rig import started_engine
from integration.fleet_rig import running_fleet
from integration.gateway_rig import ScriptedEngine, asked, connected, eventually, running_gateway
from integration.test_gateway_fleet import linked
from integration.test_gateway_seeing import answer_counted
from kit import worlds

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SECRET = "sk-covey-test"
HASH = "sha256:" + hashlib.sha256(SECRET.encode()).hexdigest()
BEARER = f"authorization: Bearer {SECRET}"
REQUESTS = int(os.environ.get("COVEY_USAGE_REQUESTS", "24"))
"""A quarter of them leave early."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@dataclass(frozen=True)
class Counted:
    prompt: float
    completion: float


def read_counters(port: int) -> Counted:
    headers = {"authorization": f"Bearer {ENGINE_KEY}"}
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", headers=headers, timeout=30).text
    lines = (line.partition(" ") for line in text.splitlines() if not line.startswith("#"))
    found = {name: float(value) for name, _, value in lines}
    prompt = found["llamacpp:prompt_tokens_total"] + found.get("llamacpp:prompt_tokens_cached_total", 0.0)
    return Counted(prompt, found["llamacpp:tokens_predicted_total"])


async def read_counters_at_rest(port: int) -> Counted:
    """Once the engine has ended what was left too."""
    async with asyncio.timeout(60), httpx.AsyncClient(headers={"authorization": f"Bearer {ENGINE_KEY}"}) as client:
        while any(slot["is_processing"] for slot in (await client.get(f"http://127.0.0.1:{port}/slots")).json()):  # noqa: ASYNC110 - only polling sees it
            await asyncio.sleep(0.1)
    return await asyncio.to_thread(read_counters, port)


@pytest.fixture
def engine(tmp_path: Path) -> Generator[Target]:
    with started_engine(tmp_path, "-c", "2048", "--no-kv-unified", "--metrics") as target:
        yield target


async def test_usage_is_what_the_engine_counted_also_of_requests_that_were_left(engine: Target) -> None:
    draw, target = random.Random(7), engine
    async with running_gateway(target) as gateway:
        gateway.route(target, keys=(ClientKey(namespace="default", name="ann", hash=HASH),))
        leave = asyncio.Semaphore(2)

        async def ask(number: int) -> None:
            words = " ".join(draw.choice(("red", "green", "harbour", "window")) for _ in range(20 + number % 60))
            messages = [{"role": "user", "content": words}]
            fields: dict[str, Any] = {"messages": messages, "max_tokens": 12, "ignore_eos": True}
            async with leave, connected(gateway) as client:
                if number % 4:
                    await client.ask(BEARER, stream=bool(number % 2), **fields)
                    assert (await client.read_answer()).status == 200
                    return
                await client.ask(BEARER, stream=True, **fields | {"max_tokens": 400})
                await client.read_head()
                for _ in range(4 + number % 7):
                    await client.read_chunk()
                client.leave()

        await asyncio.gather(*(ask(number) for number in range(REQUESTS)))
        await eventually(lambda: gateway.in_flight == 0)
        (usage,) = gateway.traffic.accounts.observe_usage()
        counted = await read_counters_at_rest(target.port)
    assert (usage.requests, usage.estimated_requests) == (REQUESTS, REQUESTS // 4)
    print(f"prompts {usage.prompt_tokens} of {counted.prompt:.0f}, ", end="")
    print(f"answers {usage.completion_tokens} of {counted.completion:.0f}")
    assert usage.tokens == pytest.approx(counted.prompt + counted.completion, rel=0.02)


def table(engine: ScriptedEngine, **limits: Any) -> Endpoints:
    endpoint = Endpoint(
        instance_id="0" * 16,
        instance="default/m-0",
        namespace="default",
        model="m",
        node="a",
        host="127.0.0.1",
        port=engine.port,
        key="engine-key",
        engine="",
        slots=4,
        context_tokens=2048,
    )
    model = ServedModel(namespace="default", name="m", tasks=("Chat",), state=ModelState.READY)
    key = ClientKey(namespace="default", name="ann", hash=HASH, **limits)
    gateways = ("gw-a", "gw-b")
    return Endpoints(term=1, serial=0, models=(model,), endpoints=(endpoint,), keys=(key,), gateways=gateways)


async def test_two_gateways_keep_a_keys_limits_together_also_without_the_controller(tmp_path: Path) -> None:
    board = FleetBoard(asyncio.get_running_loop().time)
    board.begin(1)
    for name in "ab":
        (tmp_path / name).mkdir()
    daily = AccessKey(
        metadata=ObjectMeta(name="ann", namespace="default", uid="u", generation=1),
        spec=AccessKeySpec(hash=HASH, tokens_per_day=104),
    )
    async with (
        ScriptedEngine(answer_counted) as engine,
        running_fleet(tmp_path / "c", board) as rig,  # pyright: ignore[reportArgumentType]
        linked(tmp_path / "a", rig.url, await rig.token(CertificateRole.GATEWAY), "gw-a") as one,
        linked(tmp_path / "b", rig.url, await rig.token(CertificateRole.GATEWAY), "gw-b") as other,
    ):

        def applied(name: str) -> int:
            """The newest table that the board knows this gateway has."""
            demand = board.observed.gateways[name].demand
            return demand.applied.serial if demand is not None and demand.applied is not None else 0

        # By the minute: shares.
        board.publish({}, table(engine, requests_per_minute=5))
        await eventually(lambda: one.traffic.has_table and other.traffic.has_table, 20)
        found = [[(await asked(gateway, BEARER)).status for _ in range(5)] for gateway in (one, other)]
        assert found == [[200, 200, 200, 429, 429], [200, 200, 429, 429, 429]]

        # Of the day: what all have spent, 13 tokens a request, of which 65 are spent already.
        await eventually(lambda: len(board.usages.observe()) == 2, 20)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        world = worlds.world(daily, timestamp=now, usage=board.usages.observe())
        board.usages.remember(plan(world, 100.0).spending)
        board.publish({}, table(engine, tokens_per_day=104))
        await eventually(lambda: other.traffic.table.order.serial == one.traffic.table.order.serial == 2, 20)
        assert [(await asked(one, BEARER)).status for _ in range(2)] == [200, 200]
        await eventually(lambda: {each.tokens for each in board.usages.spent()} == {91}, 20)
        board.publish({}, table(engine, tokens_per_day=104, tokens_per_minute=10_000))  # it reports, and is answered
        await eventually(lambda: applied("gw-b") == 3, 20)
        assert [(await asked(other, BEARER)).status for _ in range(2)] == [200, 429]

        # Without the controller: the last shares.
        board.publish({}, table(engine, concurrency=2))
        await eventually(lambda: other.traffic.table.order.serial == 4, 20)
        rig.server.cancel()
        await asyncio.gather(rig.server, return_exceptions=True)
        assert (await asked(other, BEARER)).status == 200


def has_applied(board: FleetBoard, name: str) -> bool:
    found = board.observed.gateways.get(name)
    return found is not None and found.demand is not None and found.demand.applied is not None


async def test_a_gateway_that_is_stopped_tells_what_it_served_last(tmp_path: Path) -> None:
    board = FleetBoard(asyncio.get_running_loop().time)
    board.begin(1)
    async with (
        ScriptedEngine(answer_counted) as engine,
        running_fleet(tmp_path / "c", board) as rig,  # pyright: ignore[reportArgumentType]
    ):
        board.publish({}, table(engine))
        (tmp_path / "token").write_text(await rig.token(CertificateRole.GATEWAY))
        flags = ("--controller", rig.url, "--token-file", str(tmp_path / "token"), "--state", str(tmp_path / "state"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "covey_gateway", *flags, "--listen", "127.0.0.1:0", "--name", "gw-a"),
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(60):
                while b" listening on " not in (line := await process.stderr.readline()):
                    assert line, "it ended before it listened"
                url = line.decode().split()[-1]
            await eventually(lambda: has_applied(board, "gw-a"), 20)
            await asyncio.sleep(0.3)  # the report of the table and the one that follows it are over
            async with httpx.AsyncClient(headers={"authorization": f"Bearer {SECRET}"}, timeout=30) as client:
                body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
                assert (await client.post(f"{url}/v1/chat/completions", json=body)).status_code == 200
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 60) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        (usages,) = board.usages.observe().values()
        assert usages[HASH].requests == 1
