"""Requests in line before an endpoint, as clients meet it: turns, moves, deadlines, room."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from covey_api.messages import ClientKey
from covey_api.placement import RequestTimeouts
from covey_gateway.limits import COUNT_SECONDS, MAX_OUTSTANDING_PER_SLOT
from covey_gateway.routing.table import Target
from integration.gateway_rig import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Call,
    Gateway,
    RawClient,
    ScriptedEngine,
    asked,
    chunk,
    connected,
    eventually,
    running_gateway,
    token,
)

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

KEYS = tuple(
    ClientKey(
        namespace="default",
        name=name,
        hash="sha256:" + hashlib.sha256(f"sk-covey-{name}".encode()).hexdigest(),
        priority=priority,
    )
    for name, priority in (("greedy", 0), ("modest", 0), ("urgent", 5), ("idle", -1))
)


def bearer(name: str) -> str:
    return f"authorization: Bearer sk-covey-{name}"


@dataclass
class Turns:
    """An engine that answers one request for each `go_on`, and remembers whose came when."""

    came: list[str] = field(default_factory=list[str])
    _next: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def __call__(self, call: Call) -> None:
        self.came.append(call.content["messages"][0]["content"])
        await self._next.acquire()
        await call.write(STREAM_HEAD, chunk(token("ok")), chunk(DONE), LAST_CHUNK)

    def go_on(self, count: int = 1) -> None:
        for _ in range(count):
            self._next.release()


def one_at_a_time(engine: ScriptedEngine, name: str = "", **changes: Any) -> Target:
    return replace(engine.target(name, slots=1), most_sent=1, **changes)


@asynccontextmanager
async def asking(gateway: Gateway, *words: str, headers: tuple[str, ...] = ()) -> AsyncGenerator[list[RawClient]]:
    """A client for each, whose request is at the gateway."""
    async with AsyncExitStack() as stack:
        clients: list[RawClient] = []
        for each in words:
            before = gateway.in_flight
            clients.append(await stack.enter_async_context(connected(gateway)))
            await clients[-1].ask(*headers, stream=True, messages=[{"role": "user", "content": each}])
            await eventually(lambda before=before: gateway.in_flight == before + 1)
        yield clients


async def test_a_key_with_one_request_waits_for_one_of_a_greedy_one_and_not_for_all() -> None:
    turns = Turns()
    async with ScriptedEngine(turns) as engine, running_gateway() as gateway:
        gateway.route(one_at_a_time(engine), keys=KEYS)
        greedy = asking(gateway, "g0", "g1", "g2", "g3", headers=(bearer("greedy"),))
        async with greedy as many, asking(gateway, "m", headers=(bearer("modest"),)) as (modest,):
            assert turns.came == ["g0"]
            assert gateway.in_flight == 5, "what waits is demand, too"
            turns.go_on(5)
            for client in (*many, modest):
                assert (await client.read_answer()).text == "ok"
    assert turns.came == ["g0", "g1", "m", "g2", "g3"]


async def test_a_keys_priority_goes_before_turns_and_arrival() -> None:
    turns = Turns()
    async with ScriptedEngine(turns) as engine, running_gateway() as gateway, AsyncExitStack() as stack:
        gateway.route(one_at_a_time(engine), keys=KEYS)
        clients: list[RawClient] = []
        for name in ("greedy", "idle", "modest", "urgent"):
            clients += await stack.enter_async_context(asking(gateway, name, headers=(bearer(name),)))
        turns.go_on(4)
        for client in clients:
            assert (await client.read_answer()).text == "ok"
    assert turns.came == ["greedy", "urgent", "modest", "idle"]


async def test_counting_tokens_waits_for_no_slot_and_takes_none() -> None:
    """A tokenizer answers beside what the slots do."""
    came, held = asyncio.Event(), asyncio.Event()

    async def answer(call: Call) -> None:
        if b"input_tokens" in call.head:
            came.set()
            await held.wait()
            await call.write(b"HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n", b'{"input_tokens":12}')
        else:
            await call.stream("ok")

    body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
    head = b"POST /v1/messages/count_tokens HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with (
        ScriptedEngine(answer) as engine,
        running_gateway(one_at_a_time(engine)) as gateway,
        connected(gateway) as counting,
    ):
        await counting.send(head + body)
        await asyncio.wait_for(came.wait(), 60)
        assert (await asked(gateway, stream=True)).text == "ok"
        held.set()
        assert (await counting.read_answer()).content == {"input_tokens": 12}


async def test_who_leaves_while_in_line_is_never_sent() -> None:
    turns = Turns()
    async with ScriptedEngine(turns) as engine, running_gateway(one_at_a_time(engine)) as gateway:
        async with asking(gateway, "1", "2", "3") as (first, second, third):
            second.leave()
            await eventually(lambda: gateway.in_flight == 2)
            turns.go_on(2)
            assert [(await each.read_answer()).text for each in (first, third)] == ["ok", "ok"]
        assert turns.came == ["1", "3"]


async def test_who_is_in_line_before_an_endpoint_that_leaves_the_table_goes_to_another() -> None:
    old, new = Turns(), Turns()
    async with (
        ScriptedEngine(old) as leaving,
        ScriptedEngine(new) as coming,
        running_gateway(one_at_a_time(leaving, "old")) as gateway,
        asking(gateway, "1", "2", "3") as (first, second, third),
    ):
        gateway.route(one_at_a_time(coming, "new"))
        new.go_on(2)
        assert [(await each.read_answer()).text for each in (second, third)] == ["ok", "ok"]
        old.go_on()
        assert (await first.read_answer()).text == "ok"
    assert (old.came, new.came) == (["1"], ["2", "3"])


async def test_who_is_in_line_before_an_endpoint_that_refuses_goes_to_another() -> None:
    async def reset_all(call: Call) -> None:
        came.append(call.content["messages"][0]["content"])
        await are_all_here.wait()
        call.reset()

    came: list[str] = []
    are_all_here = asyncio.Event()
    fine = Turns()
    fine.go_on(3)
    async with (
        ScriptedEngine(reset_all) as broken,
        ScriptedEngine(fine) as working,
        running_gateway(one_at_a_time(broken, "broken")) as gateway,
        asking(gateway, "1") as (first,),
    ):
        gateway.route(one_at_a_time(broken, "broken"), one_at_a_time(working, "working", confirmed=False))
        async with asking(gateway, "2", "3") as more:
            are_all_here.set()
            assert [(await each.read_answer()).text for each in (first, *more)] == ["ok"] * 3
    assert came == ["1"]


async def test_who_has_no_turn_within_queue_seconds_is_told_that() -> None:
    turns = Turns()
    timeouts = RequestTimeouts(queue_seconds=100, first_token_seconds=1000)
    async with (
        ScriptedEngine(turns) as engine,
        running_gateway(one_at_a_time(engine, timeouts=timeouts)) as gateway,
        asking(gateway, "1", "2") as (_, second),
    ):
        gateway.pass_time(101)
        answer = await second.read_answer()
        assert "`queueSeconds` (100 s)" in answer.body.decode()
        assert turns.came == ["1"]
        assert gateway.in_flight == 1


async def test_where_as_many_wait_as_may_who_has_most_makes_room() -> None:
    turns = Turns()
    async with ScriptedEngine(turns) as engine, running_gateway() as gateway:
        gateway.route(one_at_a_time(engine), keys=KEYS)
        words = [f"g{number}" for number in range(MAX_OUTSTANDING_PER_SLOT)]
        async with asking(gateway, *words, headers=(bearer("greedy"),)) as greedy, connected(gateway) as modest:
            async with connected(gateway) as another:
                await another.ask(bearer("greedy"))
                refused = await another.read_answer()
                assert (refused.status, refused.error["code"]) == (503, "overloaded")
            await modest.ask(bearer("modest"), stream=True, messages=[{"role": "user", "content": "m"}])
            displaced = await greedy[-1].read_answer()
            assert (displaced.status, displaced.error["code"]) == (503, "overloaded")
            turns.go_on(3)
            assert (await modest.read_answer()).text == "ok"
            assert turns.came[:3] == ["g0", "g1", "m"]


async def test_what_can_never_fit_into_a_shared_cache_is_refused_with_both_numbers() -> None:
    async with ScriptedEngine() as engine, running_gateway(one_at_a_time(engine, kv_tokens=2000)) as gateway:
        async with connected(gateway) as client:
            await client.ask(max_tokens=1900)
            answer = await client.read_answer()
            assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
            assert "room for 2000" in answer.error["message"]
            await client.ask()
            assert (await client.read_answer()).status == 200
        assert engine.calls[-1].content["max_tokens"] < 2000, "who sets no bound is given one"


class Counting:
    """Answers in one word, and says that every prompt has as many tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.may_count = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        if b"/input_tokens " not in call.head.partition(b"\r\n")[0]:
            await call.stream("ok")
            return
        await self.may_count.wait()
        body = b'{"input_tokens":%d}' % self.tokens
        await call.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


LONG = [{"role": "user", "content": "word " * 400}]


async def test_what_does_not_fit_by_its_bytes_is_counted_by_the_engine() -> None:
    counts = Counting(400)
    counts.may_count.set()
    async with ScriptedEngine(counts) as engine, running_gateway(one_at_a_time(engine, kv_tokens=2000)) as gateway:
        async with connected(gateway) as client:
            await client.ask(messages=LONG, temperature=0)
            assert (await client.read_answer()).status == 200
            counted, asked = engine.calls
            assert set(counted.content) == {"model", "messages"}
            assert asked.content["max_tokens"] == 1024
            counts.tokens = 1500
            await client.ask(messages=LONG)
            assert (await client.read_answer()).status == 200
            assert engine.calls[-1].content["max_tokens"] == 2000 - 1508
            await client.ask(messages=LONG, max_tokens=600)
            answer = await client.read_answer()
            assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
            assert answer.error["param"] == "max_tokens"
            counts.tokens = 2345
            await client.ask(messages=LONG)
            answer = await client.read_answer()
            assert (answer.status, answer.error["param"]) == (400, "messages")
            assert "comes to 2345 tokens" in answer.error["message"]
            assert "room for 2000" in answer.error["message"]
            count = len(engine.calls)
            await client.ask(messages=LONG, max_tokens=5000)
            assert (await client.read_answer()).status == 400
            assert len(engine.calls) == count, "whatever its prompt has"
        assert gateway.in_flight == 0


async def test_a_client_that_leaves_while_its_prompt_is_counted_leaves_nothing_behind() -> None:
    counts = Counting(400)
    async with ScriptedEngine(counts) as engine, running_gateway(one_at_a_time(engine, kv_tokens=2000)) as gateway:
        async with connected(gateway) as client:
            await client.ask(messages=LONG)
            await eventually(lambda: len(engine.calls) == 1)
            client.leave()
        await eventually(lambda: gateway.in_flight == 0)
        await engine.calls[0].wait_gone()
        counts.may_count.set()
        async with connected(gateway) as client:
            await client.ask()
            assert (await client.read_answer()).status == 200


async def test_an_engine_that_never_counts_holds_nobody_for_ever() -> None:
    async with (
        ScriptedEngine(Counting(400)) as engine,
        running_gateway(one_at_a_time(engine, kv_tokens=2000)) as gateway,
        connected(gateway) as client,
    ):
        await client.ask(messages=LONG)
        await eventually(lambda: len(engine.calls) == 1)
        gateway.pass_time(COUNT_SECONDS + 1)
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        assert "may come to" in answer.error["message"]


async def test_who_finds_nobody_to_count_goes_elsewhere() -> None:
    counts = Counting(400)
    counts.may_count.set()
    async with ScriptedEngine(counts) as engine:
        gone = replace(one_at_a_time(engine, kv_tokens=2000), id="a", instance_id="a", port=1)
        there = replace(one_at_a_time(engine, kv_tokens=2000), id="b", instance_id="b")
        async with running_gateway(gone, there) as gateway:
            for _ in range(3):
                async with connected(gateway) as client:
                    await client.ask(messages=LONG)
                    assert (await client.read_answer()).status == 200
