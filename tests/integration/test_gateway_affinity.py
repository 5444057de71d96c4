"""Conversations find the engine that has them in its cache, through a real gateway."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from integration.gateway_rig import Call, ScriptedEngine, asked, connected, eventually, running_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

LONG = "Be brief. " * 200


def talk(first: str, turns: int) -> list[dict[str, str]]:
    told = [{"role": "system", "content": LONG}, {"role": "user", "content": first}]
    for turn in range(turns):
        told += [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": f"And {turn}?"}]
    return told


async def test_turns_of_a_conversation_meet_one_engine_and_conversations_meet_all() -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine()) for _ in range(4)]
        gateway = await stack.enter_async_context(running_gateway(*(engine.target() for engine in engines)))
        for turn in range(3):
            for number in range(8):
                assert (await asked(gateway, messages=talk(f"Question {number}?", turn))).status == 200
        homes: dict[str, set[int]] = {}
        for engine in engines:
            for call in engine.calls:
                homes.setdefault(call.content["messages"][1]["content"], set()).add(engine.port)
        assert len(homes) == 8
        assert all(len(ports) == 1 for ports in homes.values())
        # FEW: as many conversations as slots are never too many for an engine.
        assert all(len(engine.calls) <= 4 * 3 for engine in engines)


async def test_a_session_by_its_name_keeps_to_one_engine_though_its_text_is_short() -> None:
    async with ScriptedEngine() as one, ScriptedEngine() as two, running_gateway(one.target(), two.target()) as gateway:
        for _ in range(6):
            await asked(gateway, "x-session-id: ann-7")
        assert sorted((len(one.calls), len(two.calls))) == [0, 6]
        for call in (*one.calls, *two.calls):
            assert b"session" not in call.head.lower()
        before = len(one.calls)
        for _ in range(6):
            await asked(gateway)
        assert len(one.calls) - before == 3


async def test_a_conversation_goes_on_elsewhere_when_its_engine_is_gone() -> None:
    async with ScriptedEngine() as one, ScriptedEngine() as two, running_gateway(one.target(), two.target()) as gateway:
        await asked(gateway, messages=talk("How?", 0))
        home, other = (one, two) if one.calls else (two, one)

        async def reset(call: Call) -> None:
            call.reset()

        home.script = reset
        for turn in range(1, 4):
            assert (await asked(gateway, messages=talk("How?", turn))).status == 200
        assert len(other.calls) == 3


async def test_one_conversation_asked_by_many_at_once_is_shared_out() -> None:
    async with AsyncExitStack() as stack:
        held: list[Call] = []

        async def hold(call: Call) -> None:
            held.append(call)

        engines = [await stack.enter_async_context(ScriptedEngine(hold)) for _ in range(2)]
        gateway = await stack.enter_async_context(running_gateway(*(engine.target(slots=2) for engine in engines)))
        fields: dict[str, Any] = {"messages": talk("How?", 0), "stream": True}
        for _ in range(8):
            client = await stack.enter_async_context(connected(gateway))
            await client.ask(**fields)
        await eventually(lambda: len(held) == 8)
        assert max(len(engine.calls) for engine in engines) <= 5
