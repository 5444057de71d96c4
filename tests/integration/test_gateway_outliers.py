"""One bad endpoint among good ones: it fails at what it is asked, it hangs, its machine vanishes."""

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from covey_api.placement import RequestTimeouts
from covey_gateway.limits import FAILURES_ASIDE, SILENT_ENDPOINT_SECONDS
from covey_gateway.routing import load as load_module
from integration.gateway_rig import (
    LAST_CHUNK,
    STREAM_HEAD,
    Call,
    Gateway,
    Script,
    ScriptedEngine,
    asked,
    chunk,
    connected,
    eventually,
    running_gateway,
    say_hello,
    token,
)
from integration.test_gateway_bad_input import post

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


async def fail(call: Call) -> None:
    await call.refuse(500, b'{"error":{"code":500,"message":"CUDA error: out of memory"}}')


async def break_off(call: Call) -> None:
    await call.write(STREAM_HEAD, chunk(token("a")))
    call.reset()


async def hang(call: Call) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("script", [fail, break_off])
async def test_an_endpoint_that_fails_fast_does_not_draw_the_requests_of_all(
    script: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "ASIDE_FIRST_SECONDS", 300.0)
    async with ScriptedEngine() as good, ScriptedEngine() as bad:
        bad.script = script  # pyright: ignore[reportAttributeAccessIssue]
        async with running_gateway(good.target("a"), bad.target("b")) as gateway:
            statuses = [(await asked(gateway)).status for _ in range(40)]
            assert len(bad.calls) == FAILURES_ASIDE
            assert statuses.count(502) == FAILURES_ASIDE
            # It takes connections: the controller, which looks for those that don't, hears nothing of it.
            assert not any(each.unreachable for each in gateway.traffic.observe_demand())


async def test_a_call_that_an_engine_has_not_got_sets_nothing_aside() -> None:
    async def know_no_such_path(call: Call) -> None:
        await call.refuse(404, b'{"error":{"code":404,"type":"not_found_error","message":"nothing at this path"}}')

    async with (
        ScriptedEngine(know_no_such_path) as one,
        ScriptedEngine(know_no_such_path) as two,
        running_gateway(one.target("a"), two.target("b")) as gateway,
    ):
        for _ in range(2 * FAILURES_ASIDE):
            answer = await post(gateway, "/v1/completions", b'{"model":"m","prompt":"Hi"}')
            assert (answer.status, answer.error["code"]) == (501, "task_not_supported")
        one.script = two.script = say_hello
        assert {(await asked(gateway)).status for _ in range(6)} == {200}
        assert min(len(one.calls), len(two.calls)) > FAILURES_ASIDE


async def test_an_error_that_an_engine_writes_into_its_stream_counts_as_well() -> None:
    async def tell_error(call: Call) -> None:
        error = b'data: {"error":{"code":500,"message":"CUDA error: out of memory"}}\n\n'
        await call.write(STREAM_HEAD, chunk(token("a")), chunk(error), LAST_CHUNK)

    async with ScriptedEngine() as good, ScriptedEngine(tell_error) as bad:
        async with running_gateway(good.target("a"), bad.target("b")) as gateway:
            answers = [await asked(gateway, stream=True) for _ in range(40)]
        assert len(bad.calls) == FAILURES_ASIDE
        assert sum("error" in answer.events[-1] for answer in answers) == FAILURES_ASIDE


def end_times_aside(gateway: Gateway) -> None:
    """As if they had passed."""
    for load in gateway.traffic._loads.values():  # pyright: ignore[reportPrivateUsage]
        if load.aside is not None:
            load.aside = replace(load.aside, until=0.0)


async def test_one_request_tries_it_when_its_time_is_over_and_an_answer_brings_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_module, "ASIDE_FIRST_SECONDS", 300.0)
    monkeypatch.setattr(load_module, "ASIDE_LONGEST_SECONDS", 600.0)
    async with (
        ScriptedEngine() as good,
        ScriptedEngine(fail) as bad,
        running_gateway(good.target("a"), bad.target("b")) as gateway,
    ):
        for _ in range(20):
            await asked(gateway)
        assert len(bad.calls) == FAILURES_ASIDE
        end_times_aside(gateway)
        for _ in range(8):
            await asked(gateway)
        assert len(bad.calls) == FAILURES_ASIDE + 1
        bad.script = say_hello
        end_times_aside(gateway)
        assert {(await asked(gateway)).status for _ in range(8)} == {200}
        assert len(bad.calls) >= FAILURES_ASIDE + 4


async def refuse_for_now(call: Call) -> None:
    await call.refuse(503, b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}')


async def limit_rates(call: Call) -> None:
    await call.write(b"HTTP/1.1 429 X\r\nretry-after: 25\r\ncontent-length: 2\r\n\r\n{}")


@pytest.mark.parametrize("script", [refuse_for_now, limit_rates])
async def test_an_engine_that_takes_nothing_for_now_is_spared_while_another_takes_it(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "ASIDE_FIRST_SECONDS", 300.0)
    async with (
        ScriptedEngine() as good,
        ScriptedEngine(script) as bad,
        running_gateway(good.target("a"), bad.target("b")) as gateway,
    ):
        assert {(await asked(gateway)).status for _ in range(20)} == {200}
        assert len(bad.calls) == 1
        end_times_aside(gateway)
        assert {(await asked(gateway, stream=True)).status for _ in range(8)} == {200}
        assert len(bad.calls) == 2, "one tried whether it takes any again"
        bad.script = say_hello
        end_times_aside(gateway)
        assert {(await asked(gateway)).status for _ in range(8)} == {200}
        assert len(bad.calls) >= 5


async def test_an_engine_that_takes_nothing_answers_itself_where_no_other_does() -> None:
    async with (
        ScriptedEngine(refuse_for_now) as one,
        ScriptedEngine(refuse_for_now) as two,
        running_gateway(one.target("a"), two.target("b")) as gateway,
    ):
        answers = [await asked(gateway) for _ in range(10)]
        assert {(each.status, each.error["code"]) for each in answers} == {(503, "overloaded")}
        assert "Loading model" in answers[-1].error["message"]


async def test_what_fails_everywhere_leaves_endpoints_to_ask() -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine(fail)) for _ in range(4)]
        gateway = await stack.enter_async_context(running_gateway(*(engine.target() for engine in engines)))
        answers = [await asked(gateway) for _ in range(60)]
        assert {answer.error["code"] for answer in answers} == {"upstream_error"}
        for engine in engines:
            engine.script = say_hello
        assert (await asked(gateway)).status == 200


WORDS = b'{"error":{"message":"no room for \'my prompt\'"}}'


async def refuse_by_words(call: Call) -> None:
    await call.refuse(500, WORDS)


async def refuse_for_now_by_words(call: Call) -> None:
    await call.refuse(503, WORDS)


async def break_off_by_words(call: Call) -> None:
    await call.write(STREAM_HEAD, chunk(token("a")), chunk(b"data: " + WORDS + b"\n\n"))


@pytest.mark.parametrize("script", [refuse_by_words, refuse_for_now_by_words, break_off_by_words])
async def test_words_of_an_engine_and_an_id_that_is_a_key_are_nowhere_in_the_log(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    # What another endpoint takes is told to nobody.
    other = script if script is refuse_for_now_by_words else say_hello
    async with (
        ScriptedEngine(other) as good,
        ScriptedEngine(script) as bad,
        running_gateway(good.target("a"), bad.target("b")) as gateway,
    ):
        answers = [await asked(gateway, "x-request-id: sk-covey-hunter2") for _ in range(3 * FAILURES_ASIDE)]
    told = [answer.error["message"] for answer in answers if answer.status >= 500]
    assert all("my prompt" in message for message in told)
    assert len(told) >= FAILURES_ASIDE
    assert caplog.text.count("request sk-…: 50") == len(told)
    assert ("in a row, upstream_error: the engine's words" in caplog.text) is (script is not refuse_for_now_by_words)
    for secret in ("my prompt", "hunter2"):
        assert secret not in caplog.text


async def test_requests_that_are_to_blame_themselves_set_nothing_aside() -> None:
    async def blame(call: Call) -> None:
        await call.refuse(500, b'{"error":{"code":500,"message":"Failed to parse messages: no"}}')

    async with (
        ScriptedEngine(blame) as one,
        ScriptedEngine(blame) as two,
        running_gateway(one.target("a"), two.target("b")) as gateway,
    ):
        assert {(await asked(gateway)).status for _ in range(20)} == {400}
        assert len(one.calls) == len(two.calls) == 10


async def test_a_hung_endpoint_delays_no_one_else() -> None:
    async with (
        ScriptedEngine() as good,
        ScriptedEngine(hang) as hung,
        running_gateway(good.target("a"), hung.target("b")) as gateway,
        connected(gateway) as first,
        connected(gateway) as second,
    ):
        await first.ask()
        await second.ask()
        await eventually(lambda: len(hung.calls) == 1)
        await asyncio.sleep(SILENT_ENDPOINT_SECONDS + 0.1)
        gateway.pass_time(0)
        answers = await asyncio.gather(*(asked(gateway) for _ in range(40)))
        assert {answer.status for answer in answers} == {200}
        assert len(hung.calls) == 1


async def test_who_waits_in_vain_after_another_adds_to_what_the_endpoint_owes() -> None:
    async with ScriptedEngine(hang) as hung, running_gateway(hung.target()) as gateway:
        async with connected(gateway) as first:
            await first.ask()
            await eventually(lambda: len(hung.calls) == 1)
            await asyncio.sleep(1.0)
        await eventually(lambda: gateway.in_flight == 0)
        async with connected(gateway) as second:
            await second.ask()
            await eventually(lambda: len(hung.calls) == 2)
            (told,) = gateway.traffic.observe_demand()
            assert (told.oldest_silent_seconds or 0.0) >= 1.0


async def test_an_endpoint_that_hangs_is_set_aside_with_the_request_it_let_time_out() -> None:
    timeouts = RequestTimeouts(first_token_seconds=6)
    async with ScriptedEngine() as good, ScriptedEngine(hang) as hung:
        targets = [replace(engine.target(name), timeouts=timeouts) for engine, name in ((good, "a"), (hung, "b"))]
        async with running_gateway(*targets) as gateway, connected(gateway) as first, connected(gateway) as second:
            await first.ask()
            await second.ask()
            await eventually(lambda: len(hung.calls) == 1)
            for _ in range(65):
                await asyncio.sleep(0.1)
                gateway.pass_time(0)
            assert {(await first.read_answer()).status, (await second.read_answer()).status} == {200, 504}
            assert {(await asked(gateway)).status for _ in range(8)} == {200}
            assert len(hung.calls) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's own table")
async def test_connections_to_other_machines_are_asked_by_the_kernel_whether_they_live() -> None:
    def has_timer(port: int) -> bool:
        """Whether the side that connected has a keep-alive timer."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        found = [row[5][:2] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]
        assert found, "no connection"
        return found == ["02"]

    async with ScriptedEngine() as near, running_gateway(near.target()) as gateway:
        await asked(gateway)
        assert not has_timer(near.port)
    async with ScriptedEngine() as far, running_gateway(replace(far.target(), host="localhost")) as gateway:
        await asked(gateway)
        assert has_timer(far.port)


async def test_an_endpoint_that_reads_a_prompt_on_without_its_client_is_asked_last() -> None:
    """Its slot is busy, whoever left; a byte to somebody else says that it is free again."""

    async def read_long(call: Call) -> None:
        if call.content["messages"][0]["content"] == "long":
            await call.wait_gone()
        else:
            await say_hello(call)

    async with (
        ScriptedEngine(read_long) as one,
        ScriptedEngine(read_long) as other,
        running_gateway(one.target("a", slots=1), other.target("b", slots=1)) as gateway,
    ):
        async with connected(gateway) as client:
            await client.ask(stream=True, messages=[{"role": "user", "content": "long"}])
            await eventually(lambda: len(one.calls) + len(other.calls) == 1)
        busy, free = (one, other) if one.calls else (other, one)
        await eventually(lambda: gateway.in_flight == 0)
        for _ in range(6):
            assert (await asked(gateway)).status == 200
        assert (len(busy.calls), len(free.calls)) == (1, 6)
        # Two at a time: the second one finds a busy slot at either.
        for _ in range(4):
            await asyncio.gather(asked(gateway), asked(gateway))
        assert len(busy.calls) > 1
        before = len(busy.calls)
        for _ in range(6):
            await asked(gateway)
        assert len(busy.calls) >= before + 2, "it gets its share again"
