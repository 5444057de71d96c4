"""The relay on real sockets, against engines that fail in every way one can."""

import asyncio
import gc
import hashlib
import json
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from covey_api.messages import ClientKey, ModelState, Progress
from covey_api.placement import RequestTimeouts
from covey_gateway.limits import (
    BODY_SILENCE_SECONDS,
    CLIENT_STALL_SECONDS,
    ENGINE_IDLE_SECONDS,
    HEAD_SECONDS,
    KEEP_ALIVE_SECONDS,
    MAX_BODY_BYTES,
    MAX_OUTSTANDING_PER_SLOT,
    MAX_PIPELINED,
)
from covey_gateway.routing import load as load_module
from covey_gateway.routing.access import AccessPolicy
from integration.gateway_rig import (
    DONE,
    LAST_CHUNK,
    MODEL,
    STREAM_HEAD,
    Call,
    RawClient,
    Script,
    ScriptedEngine,
    asked,
    chunk,
    connected,
    eventually,
    raw_request,
    request,
    running_gateway,
    say_hello,
    target,
    token,
)
from pydantic.alias_generators import to_camel

pytestmark = [pytest.mark.anyio]

TIMEOUTS = RequestTimeouts()


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


async def hold(call: Call) -> None:
    """Begin a stream and wait until the gateway leaves."""
    await call.write(STREAM_HEAD, chunk(token("a")))
    await call.wait_gone(60)


async def say_nothing(call: Call) -> None:
    await call.wait_gone(60)


async def reset(call: Call) -> None:
    call.reset()


# Answers


async def test_a_stream_passes_byte_for_byte_under_a_head_of_our_own() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        answer = await asked(gateway, "x-request-id: mine-1", "accept-encoding: gzip", "cookie: secret", stream=True)
        assert (answer.status, answer.body) == (200, token("Hel") + token("lo") + DONE)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["x-request-id"] == "mine-1"
        assert not {"server", "access-control-allow-origin", "keep-alive"} & {name.lower() for name in answer.headers}
        (call,) = engine.calls
        assert b"authorization: Bearer engine-key\r\n" in call.head
        assert b"x-request-id: mine-1\r\n" in call.head
        assert b"cookie" not in call.head
        assert call.content["stream"] is True


async def test_a_client_that_asks_for_no_stream_gets_one_answer() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        answer = await asked(gateway, "connection: close", model="gpt-4o")
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["connection"] == "close"
        assert answer.content["model"] == "m"
        assert answer.content["choices"][0]["message"]["content"] == "Hello"
        assert engine.calls[0].content["stream"] is True
        assert engine.calls[0].content["model"] == "m"


async def test_requests_of_a_connection_are_answered_in_order_though_they_come_at_once() -> None:
    async def say_limit(call: Call) -> None:
        # The first answers last.
        await asyncio.sleep(0.05 * (4 - call.content["max_tokens"]))
        await call.stream(str(call.content["max_tokens"]))

    async with (
        ScriptedEngine(say_limit) as engine,
        running_gateway(engine.target()) as gateway,
        connected(gateway) as client,
    ):
        health = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        await client.send(
            request(max_tokens=1)
            + health
            + request(max_tokens=2, stream=True)
            + request(model="x")
            + request(max_tokens=3)
        )
        first = await client.read_answer()
        assert first.content["choices"][0]["message"]["content"] == "1"
        assert (await client.read_answer()).content == {"status": "ok"}
        assert (await client.read_answer()).text == "2"
        assert (await client.read_answer()).status == 404
        assert (await client.read_answer()).content["choices"][0]["message"]["content"] == "3"


async def test_a_request_that_follows_while_an_answer_runs_waits_for_its_turn() -> None:
    go_on = asyncio.Event()

    async def say_slowly(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("a")))
        await go_on.wait()
        await call.write(chunk(DONE), LAST_CHUNK)

    async with (
        ScriptedEngine(say_slowly) as engine,
        running_gateway(engine.target()) as gateway,
        connected(gateway) as client,
    ):
        await client.ask(stream=True)
        await client.read_head()
        assert await client.read_chunk() == token("a")
        second = request(stream=True)
        await client.send(second[:20])
        await asyncio.sleep(0.05)
        await client.send(second[20:])
        await asyncio.sleep(0.05)
        assert len(engine.calls) == 1
        go_on.set()
        assert await client.read_chunk() == DONE
        assert await client.read_chunk() == b""
        assert (await client.read_answer()).text == "a"


async def test_a_request_cut_in_its_body_behind_another_is_read_on_when_its_turn_comes() -> None:
    go_on = asyncio.Event()

    async def say_when(call: Call) -> None:
        await go_on.wait()
        await call.stream(call.content["user"])

    async with (
        ScriptedEngine(say_when) as engine,
        running_gateway(engine.target()) as gateway,
        connected(gateway) as client,
    ):
        first, second = request(user="1", stream=True), request(user="2" * 1000, stream=True)
        await client.send(first + second[:-500])
        await eventually(lambda: len(engine.calls) == 1)
        await client.send(second[-500:-200])
        await asyncio.sleep(0.05)
        await client.send(second[-200:] + request(user="3", stream=True))
        await asyncio.sleep(0.05)
        go_on.set()
        assert [(await client.read_answer()).text for _ in range(3)] == ["1", "2" * 1000, "3"]


async def test_a_body_arrives_whole_in_whatever_pieces() -> None:
    long = "x" * 300_000
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        async with connected(gateway) as client:
            await client.ask(user=long)
            assert (await client.read_answer()).status == 200
            body = json.dumps({"model": "m", "messages": [{"role": "user"}], "user": long}).encode()
            await client.send(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for at in range(0, len(body), 70_000):
                await client.send(chunk(body[at : at + 70_000]))
            await client.send(b"0\r\ntrailer: dropped\r\n\r\n")
            assert (await client.read_answer()).status == 200
            for piece in request(user="y"):
                await client.send(bytes((piece,)))
            assert (await client.read_answer()).status == 200
        assert [len(call.content["user"]) for call in engine.calls] == [300_000, 300_000, 1]


async def test_a_client_that_waits_for_100_continue_gets_it_or_the_refusal() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        async with connected(gateway) as client:
            head, _, body = request("expect: 100-continue").partition(b"\r\n\r\n")
            await client.send(head + b"\r\n\r\n")
            assert await client.read_head() == (100, {})
            await client.send(body)
            assert (await client.read_answer()).status == 200
        async with connected(gateway) as client:
            await client.send(head.replace(b"localhost", b"evil.example") + b"\r\n\r\n")
            assert (await client.read_answer()).status == 403
            assert await client.is_closed()


async def test_http_1_0_gets_a_stream_that_ends_with_the_connection() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway, connected(gateway) as client:
        await client.send(request(stream=True).replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await client.read_answer()
        assert "transfer-encoding" not in answer.headers
        assert answer.text == "Hello"


async def test_an_offer_of_h2c_is_declined_by_answering_in_http_1_1() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway, connected(gateway) as client:
        offer = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__")
        await client.ask(*offer)
        assert (await client.read_answer()).status == 200
        await client.ask()
        assert (await client.read_answer()).status == 200


async def test_an_engine_that_ends_its_body_with_the_connection_is_understood() -> None:
    async def say_plainly(call: Call) -> None:
        await call.write(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", token("a"), DONE)
        call.writer.close()

    async with ScriptedEngine(say_plainly) as engine, running_gateway(engine.target()) as gateway:
        assert (await asked(gateway, stream=True)).text == "a"
        assert (await asked(gateway)).status == 200


async def test_an_engine_may_say_100_continue_first() -> None:
    async def say_continue(call: Call) -> None:
        await call.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await call.stream("a")

    async with ScriptedEngine(say_continue) as engine, running_gateway(engine.target()) as gateway:
        assert (await asked(gateway, stream=True)).text == "a"


# Refusals


@pytest.mark.parametrize("stream", [True, False])
async def test_too_long_a_prompt_is_refused_with_both_numbers_before_a_byte(stream: bool) -> None:
    async def refuse(call: Call) -> None:
        detail = {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 3031, "n_ctx": 1024}
        await call.refuse(400, json.dumps({"error": detail}).encode())

    async with ScriptedEngine(refuse) as engine, running_gateway(engine.target()) as gateway:
        answer = await asked(gateway, stream=stream)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        assert "3031" in answer.error["message"]
        assert "1024" in answer.error["message"]


async def test_an_engine_that_is_full_is_passed_on_with_its_wait() -> None:
    async def refuse(call: Call) -> None:
        await call.write(b"HTTP/1.1 503 X\r\nretry-after: 7\r\ncontent-length: 2\r\n\r\n{}")

    async with ScriptedEngine(refuse) as engine, running_gateway(engine.target()) as gateway:
        answer = await asked(gateway)
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "overloaded", "7")


async def test_an_engine_that_answers_without_a_stream_has_failed() -> None:
    async def say_json(call: Call) -> None:
        await call.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    async with ScriptedEngine(say_json) as engine, running_gateway(engine.target()) as gateway:
        for stream in (True, False):
            answer = await asked(gateway, stream=stream)
            assert (answer.status, answer.error["code"]) == (502, "upstream_error")


async def test_models_that_cannot_be_asked_are_refused_by_their_state() -> None:
    progress = Progress(step="model", done_bytes=1, total_bytes=2)
    states = {
        "loading": MODEL.model_copy(
            update={"name": "loading", "aliases": (), "state": ModelState.LOADING, "progress": progress}
        ),
        "failed": MODEL.model_copy(
            update={"name": "failed", "aliases": (), "state": ModelState.UNAVAILABLE, "message": "why"}
        ),
        "embedder": MODEL.model_copy(update={"name": "embedder", "aliases": (), "tasks": ("Embed",)}),
    }
    async with running_gateway() as gateway:
        gateway.route(models=tuple(states.values()))
        loading = await asked(gateway, "X-Covey-Hold: 0", model="loading")
        assert (loading.status, loading.error["code"], loading.headers["retry-after"]) == (503, "model_loading", "5")
        assert (loading.error["loading"]["doneBytes"], loading.error["loading"]["totalBytes"]) == (1, 2)
        failed = await asked(gateway, model="failed")
        assert (failed.status, failed.error["code"]) == (503, "model_unavailable")
        assert "why" in failed.error["message"]
        unknown = await asked(gateway, model="unknown")
        assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
        assert "'loading'" in unknown.error["message"]
        assert (await asked(gateway, model="embedder")).error["code"] == "task_not_supported"


async def test_too_large_a_body_is_refused_without_reading_it() -> None:
    async with running_gateway() as gateway, connected(gateway) as client:
        head = raw_request(b"").replace(b"content-length: 0", b"content-length: %d" % (MAX_BODY_BYTES + 1))
        await client.send(head + b"x" * 100_000)
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        await client.send(b"x" * 1_000_000)
        assert await client.is_closed()


async def test_too_large_a_chunked_body_is_refused_when_it_is() -> None:
    async with running_gateway() as gateway:
        async with connected(gateway) as client:
            await client.send(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            piece = chunk(b" " * 2**20)

            async def send() -> None:
                for _ in range(MAX_BODY_BYTES // 2**20 + 1):
                    await client.send(piece)

            sending = asyncio.ensure_future(send())
            assert (await client.read_answer()).status == 413
            await sending
        await eventually(lambda: gateway.traffic.reserve_body(256 * 2**20))


async def test_a_key_is_needed_where_the_policy_says_so() -> None:
    secret = "sk-covey-test"
    key = ClientKey(namespace="default", name="k", hash="sha256:" + hashlib.sha256(secret.encode()).hexdigest())
    policy = AccessPolicy(needs_local_origin=False, needs_key=True)
    async with ScriptedEngine() as engine, running_gateway(policy=policy) as gateway:
        gateway.route(engine.target(), keys=(key,))
        assert (await asked(gateway)).error["code"] == "invalid_api_key"
        assert (await asked(gateway, "authorization: Bearer wrong")).status == 401
        assert (await asked(gateway, f"authorization: Bearer {secret}")).status == 200
        assert (await asked(gateway, f"x-api-key: {secret}")).status == 200
        async with connected(gateway) as client:
            await client.send(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await client.read_answer()).status == 401
            await client.send(f"GET /v1/models HTTP/1.1\r\nhost: a\r\nx-api-key: {secret}\r\n\r\n".encode())
            assert [one["id"] for one in (await client.read_answer()).content["data"]] == ["m"]
            await client.send(b"GET /readyz HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await client.read_answer()).status == 200


async def test_a_page_of_another_origin_is_refused_on_every_path() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        assert (await asked(gateway, "origin: https://evil.example")).error["code"] == "forbidden_origin"
        assert (await asked(gateway, "origin: http://localhost:3000")).status == 200
        async with connected(gateway) as client:
            await client.send(b"GET /v1/models HTTP/1.1\r\nhost: rebound.example\r\n\r\n")
            assert (await client.read_answer()).status == 403


async def test_cold_paths_answer_in_openais_shape() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway, connected(gateway) as client:

        async def get(path: str, method: str = "GET") -> Any:
            await client.send(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            return await client.read_answer()

        (model,) = (await get("/v1/models")).content["data"]
        assert (model["id"], model["object"], model["covey"]["ready"]) == ("m", "model", True)
        assert (await get("/v1/models/gpt-4o")).content["id"] == "gpt-4o"
        assert (await get("/v1/models/m:latest")).status == 200
        assert (await get("/v1/models/org/none")).error["code"] == "model_not_found"
        assert (await get("/nothing")).error["code"] == "not_found"
        assert (await get("/v1/models", "DELETE")).error["code"] == "method_not_allowed"
        refused = await get("/v1/chat/completions")
        assert (refused.status, refused.headers["allow"]) == (405, "POST")
        assert (await get("/healthz")).status == 200
        assert (await get("/readyz")).status == 200


# Smuggling and malformed input


CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    "data",
    [
        CHAT + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        CHAT + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        CHAT + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        CHAT + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
        CHAT + b"content-length: +3\r\n\r\nabc",
        CHAT + b"content-length : 3\r\n\r\nabc",
        CHAT + b"x: a\r\n folded\r\ncontent-length: 2\r\n\r\n{}",
        CHAT + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        CHAT + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        CHAT + b"transfer-encoding: chunked\r\n\r\n-1\r\n",
        CHAT + b"transfer-encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
        CHAT + b"transfer-encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n",
        CHAT + b"host: evil.example\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST http://evil.example/v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\nhost: localhost\n\n",
        b"POST /v1/chat/completions HTTP/3.0\r\nhost: localhost\r\n\r\n",
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
async def test_an_ambiguous_request_is_refused_and_never_reaches_an_engine(data: bytes) -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        async with connected(gateway) as client:
            await client.send(data)
            answer = await client.read_answer()
            assert answer.status == 400
            assert answer.error["code"] == "invalid_request"
        assert not engine.calls


async def test_connect_is_not_a_method_here() -> None:
    async with running_gateway() as gateway, connected(gateway) as client:
        await client.send(b"CONNECT a:80 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await client.read_answer()).status == 405


async def test_what_follows_connection_close_is_not_a_request() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        async with connected(gateway) as client:
            await client.send(request("connection: close") + request())
            assert (await client.read_answer()).status == 200
            assert await client.is_closed()
        assert len(engine.calls) == 1


async def test_garbage_behind_a_request_is_refused_after_its_answer() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway, connected(gateway) as client:
        await client.send(request() + b"garbage\r\n\r\n")
        assert (await client.read_answer()).status == 200
        assert await client.is_closed()


async def test_requests_read_ahead_are_bounded() -> None:
    async with (
        ScriptedEngine(hold) as engine,
        running_gateway(engine.target()) as gateway,
        connected(gateway) as client,
    ):
        await client.send(request(stream=True) * (MAX_PIPELINED + 10))
        await client.read_head()
        assert len(engine.calls) == 1


@pytest.mark.parametrize("line", [b"x: " + b"y" * 300_000, b"GET /" + b"y" * 300_000, b"x: y\r\n" * 60_000])
async def test_an_endless_head_is_refused(line: bytes) -> None:
    async with running_gateway() as gateway, connected(gateway) as client:
        await client.send(CHAT if not line.startswith(b"GET") else b"")

        async def send() -> None:
            for at in range(0, len(line), 10_000):
                await client.send(line[at : at + 10_000])

        sending = asyncio.ensure_future(send())
        assert (await client.read_answer()).status == 431
        await asyncio.gather(sending, return_exceptions=True)


# Deadlines


async def test_a_slow_head_a_slow_body_and_an_idle_connection_end() -> None:
    async with running_gateway() as gateway:
        async with connected(gateway) as client:
            await client.send(b"POST /v1/chat")
            await asyncio.sleep(0.05)
            gateway.pass_time(HEAD_SECONDS / 2)
            gateway.pass_time(HEAD_SECONDS + 1)
            assert (await client.read_answer()).status == 408
        async with connected(gateway) as client:
            await client.send(request()[:-1])
            await asyncio.sleep(0.05)
            gateway.pass_time(BODY_SILENCE_SECONDS + 1)
            assert (await client.read_answer()).status == 408
        async with connected(gateway) as client:
            await client.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await client.read_answer()
            gateway.pass_time(KEEP_ALIVE_SECONDS / 2)
            assert not await client.is_closed(0.1)
            gateway.pass_time(KEEP_ALIVE_SECONDS + 1)
            assert await client.is_closed()


async def test_an_engine_that_never_answers_times_out() -> None:
    async with (
        ScriptedEngine(say_nothing) as engine,
        running_gateway(engine.target()) as gateway,
        connected(gateway) as client,
    ):
        await client.ask()
        await eventually(lambda: len(engine.calls) == 1)
        gateway.pass_time(TIMEOUTS.first_token_seconds / 2)
        assert gateway.in_flight == 1
        gateway.pass_time(TIMEOUTS.first_token_seconds + 1)
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
        assert "`firstTokenSeconds` (600 s)" in answer.error["message"]
        assert gateway.in_flight == 0


async def test_an_engine_that_falls_silent_ends_the_stream_with_an_error() -> None:
    async with (
        ScriptedEngine(hold) as engine,
        running_gateway(engine.target()) as gateway,
        connected(gateway) as client,
    ):
        await client.ask(stream=True)
        await client.read_head()
        assert await client.read_chunk() == token("a")
        gateway.pass_time(TIMEOUTS.between_tokens_seconds + 1)
        event = await client.read_chunk()
        error = json.loads(event.removeprefix(b"data: "))["error"]
        assert error["code"] == "upstream_timeout"
        assert "`betweenTokensSeconds` (300 s)" in error["message"]
        assert await client.read_chunk() == b""
        await eventually(lambda: engine.open_connections == 0)


@pytest.mark.parametrize(
    ("field", "play"), [("first_token_seconds", say_nothing), ("between_tokens_seconds", hold), ("total_seconds", hold)]
)
async def test_a_placements_own_deadline_ends_an_answer_and_is_named(field: str, play: Script) -> None:
    timeouts = RequestTimeouts(first_token_seconds=40, between_tokens_seconds=40, total_seconds=50)
    timeouts = timeouts.model_copy(update={field: 20})
    async with (
        ScriptedEngine(play) as engine,
        running_gateway(replace(engine.target(), timeouts=timeouts)) as gateway,
        connected(gateway) as client,
    ):
        await client.ask(stream=False)
        await eventually(lambda: len(engine.calls) == 1)
        await asyncio.sleep(0.1)  # the first token has come, where one comes
        gateway.pass_time(5)
        assert gateway.in_flight == 1
        gateway.pass_time(21)
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
        assert f"`{to_camel(field)}` (20 s)" in answer.error["message"]


async def hold_the_first(call: Call) -> None:
    if call.content["messages"][0]["content"] == "first":
        await hold(call)
    else:
        await say_nothing(call)


async def test_what_waits_for_a_slot_has_a_deadline_of_its_own_and_uses_up_no_other() -> None:
    timeouts = RequestTimeouts(queue_seconds=100, first_token_seconds=40, between_tokens_seconds=1000)
    async with (
        ScriptedEngine(hold_the_first) as engine,
        running_gateway(replace(engine.target(slots=1), timeouts=timeouts)) as gateway,
        connected(gateway) as first,
        connected(gateway) as second,
        connected(gateway) as third,
    ):
        await first.ask(stream=True, messages=[{"role": "user", "content": "first"}])
        await first.read_head()
        await second.ask()
        await eventually(lambda: gateway.in_flight == 2)
        await third.ask()
        await eventually(lambda: gateway.in_flight == 3)
        gateway.pass_time(60)
        assert gateway.in_flight == 3
        first.leave()
        await eventually(lambda: gateway.in_flight == 2)
        gateway.pass_time(0)  # the second one's turn is noticed
        gateway.pass_time(20)
        assert gateway.in_flight == 2
        gateway.pass_time(41)
        answer = await second.read_answer()
        assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
        assert "`firstTokenSeconds` (40 s)" in answer.error["message"]
        assert gateway.in_flight == 1


async def test_what_had_no_slot_for_too_long_is_told_that() -> None:
    timeouts = RequestTimeouts(queue_seconds=100, first_token_seconds=1000, between_tokens_seconds=1000)
    async with (
        ScriptedEngine(hold_the_first) as engine,
        running_gateway(replace(engine.target(slots=1), timeouts=timeouts)) as gateway,
        connected(gateway) as first,
        connected(gateway) as second,
    ):
        await first.ask(stream=True, messages=[{"role": "user", "content": "first"}])
        await first.read_head()
        await second.ask(stream=True)
        await eventually(lambda: len(engine.calls) == 2)
        gateway.pass_time(101)
        error = (await second.read_answer()).error
        assert error["code"] == "upstream_timeout"
        assert "`queueSeconds` (100 s)" in error["message"]
        assert gateway.in_flight == 1


async def test_a_client_that_takes_nothing_pauses_the_engine_and_ends_after_a_while() -> None:
    written = 0

    async def flood(call: Call) -> None:
        nonlocal written
        event = token("x" * 100_000)
        await call.write(STREAM_HEAD)
        while written < 500_000_000:
            await call.write(chunk(event))
            written += len(event)

    async with ScriptedEngine(flood) as engine, running_gateway(engine.target()) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        try:
            writer.write(request(stream=True))
            await reader.readuntil(b"\r\n\r\n")
            before = -1
            while before != written:
                before = written
                await asyncio.sleep(0.3)
            assert written < 100_000_000
            gateway.pass_time(1)
            assert gateway.in_flight == 1
            gateway.pass_time(CLIENT_STALL_SECONDS + 1)
            await eventually(lambda: gateway.in_flight == 0)
            await eventually(lambda: engine.open_connections == 0)
        finally:
            writer.transport.abort()


async def test_a_slow_client_gets_everything() -> None:
    async def flood(call: Call) -> None:
        await call.write(STREAM_HEAD, *(chunk(token("x" * 100_000)) for _ in range(200)), chunk(DONE), LAST_CHUNK)

    async with ScriptedEngine(flood) as engine, running_gateway(engine.target()) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        client = RawClient(reader, writer)
        await client.ask(stream=True)
        await asyncio.sleep(0.5)
        assert len((await client.read_answer()).text) == 20_000_000
        writer.transport.abort()


async def test_a_connection_that_was_paused_at_the_end_of_an_answer_serves_the_next_one() -> None:
    async def burst(call: Call) -> None:
        texts = ["x" * 100] if len(engine.calls) > 1 else ["x" * 100] * 1000
        await call.write(STREAM_HEAD + b"".join(chunk(token(text)) for text in texts) + chunk(DONE) + LAST_CHUNK)

    # So little room on the way to the client that the answer's last bytes find it stalled.
    async with ScriptedEngine(burst) as engine, running_gateway(engine.target(), send_bytes=4096) as gateway:
        with socket.socket() as narrow:
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            narrow.connect(("127.0.0.1", gateway.port))
            reader, writer = await asyncio.open_connection(sock=narrow, limit=1024)
            client = RawClient(reader, writer)
            await client.ask(stream=True)
            assert len((await client.read_answer()).text) == 100_000
            writer.transport.abort()
        assert len((await asked(gateway, stream=True)).text) == 100
        assert engine.connections == 1


# Failures


async def test_a_request_goes_elsewhere_when_an_endpoint_takes_no_connection() -> None:
    async with ScriptedEngine() as gone:
        pass
    async with ScriptedEngine() as engine, running_gateway(target(gone.port, "a"), engine.target("b")) as gateway:
        for _ in range(4):
            assert (await asked(gateway, stream=True)).text == "Hello"
        assert len(engine.calls) == 4
        unreachable = [each.instance_id for each in gateway.traffic.observe_demand() if each.unreachable]
        assert unreachable == ["a"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_goes_elsewhere_when_an_endpoint_resets_before_a_byte(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "ASIDE_FIRST_SECONDS", 300.0)
    async with (
        ScriptedEngine(reset) as bad,
        ScriptedEngine() as good,
        running_gateway(bad.target("a"), good.target("b")) as gateway,
    ):
        for _ in range(4):
            assert (await asked(gateway, stream=stream)).status == 200
        assert (len(bad.calls), len(good.calls)) == (1, 4)


async def test_a_request_goes_elsewhere_only_once() -> None:
    async with ScriptedEngine(reset) as one, ScriptedEngine(reset) as two, ScriptedEngine(reset) as three:
        targets = [one.target("a"), two.target("b"), three.target("c")]
        async with running_gateway(*targets) as gateway:
            answer = await asked(gateway)
            assert (answer.status, answer.error["code"]) == (502, "upstream_unavailable")
            assert len(one.calls) + len(two.calls) + len(three.calls) == 2


async def test_the_only_endpoint_is_tried_again_when_its_time_aside_is_over() -> None:
    async with ScriptedEngine(reset) as engine, running_gateway(engine.target()) as gateway:
        answer = await asked(gateway)
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (
            503,
            "upstream_unavailable",
            "1",
        )
        engine.script = say_hello
        await asyncio.sleep(1.05)
        assert (await asked(gateway)).status == 200
        assert (await asked(gateway)).status == 200


async def test_a_reset_in_the_stream_is_an_error_event_and_the_connection_serves_on() -> None:
    async def break_off(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("a")), b"40\r\ndata: {half an ev")
        await asyncio.sleep(0.05)
        call.reset()

    async with ScriptedEngine(break_off) as engine, running_gateway(engine.target()) as gateway:
        async with connected(gateway) as client:
            await client.ask(stream=True)
            answer = await client.read_answer()
            assert answer.body.startswith(token("a") + b'data: {"error":')
            assert answer.events[-1]["error"]["code"] == "upstream_ended"
            # The head promised to keep the connection: a client's next request may be under way already.
            await client.ask()
            single = await client.read_answer()
            assert (single.status, single.error["code"]) == (502, "upstream_ended")
        assert gateway.in_flight == 0


async def test_a_stream_without_its_end_mark_gets_an_error_event() -> None:
    async def stop_early(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("a")), LAST_CHUNK)

    async with ScriptedEngine(stop_early) as engine, running_gateway(engine.target()) as gateway:
        answer = await asked(gateway, stream=True)
        assert answer.events[-1]["error"]["code"] == "upstream_ended"
        assert (await asked(gateway)).error["code"] == "upstream_ended"


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}\n\n',
        b'error: {"code":500,"message":"Context size has been exceeded.","type":"server_error"}\n\n',
        b'data: {"object":"error","message":"Context size has been exceeded.","code":500}\n\n',
        b'data: {"error":{"message":"Context size has been exceeded."}}\n\ndata: [DONE]\n\n',
    ],
)
async def test_an_error_event_of_the_engine_is_told_once_in_our_envelope_and_ends_the_stream(event: bytes) -> None:
    async def fail(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("a")), chunk(event), LAST_CHUNK)

    async with ScriptedEngine(fail) as engine, running_gateway(engine.target()) as gateway:
        answer = await asked(gateway, stream=True)
        assert answer.body.startswith(token("a"))
        (error,) = (told["error"] for told in answer.events if "error" in told)
        assert answer.events[-1] == {"error": error}
        assert (error["code"], error["type"], error["param"]) == ("upstream_error", "server_error", None)
        assert "Context size" in error["message"]
        assert DONE not in answer.body
        single = await asked(gateway)
        assert (single.status, single.error["code"]) == (502, "upstream_error")
        assert "Context size" in single.error["message"]


async def test_an_engine_that_speaks_no_http_has_failed() -> None:
    async def babble(call: Call) -> None:
        await call.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    async with ScriptedEngine(babble) as engine, running_gateway(engine.target()) as gateway:
        assert (await asked(gateway)).status == 502


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine_within_a_second(stream: bool) -> None:
    left: list[float] = []

    async def time_it(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("a")))
        left.append(await call.wait_gone())

    async with ScriptedEngine(time_it) as engine, running_gateway(engine.target()) as gateway:
        async with connected(gateway) as client:
            await client.ask(stream=stream)
            await eventually(lambda: len(engine.calls) == 1)
            client.leave()
            await eventually(lambda: bool(left), 1)
        assert gateway.in_flight == 0


async def test_a_client_that_leaves_before_the_engine_answers_frees_it_too() -> None:
    async with ScriptedEngine(say_nothing) as engine, running_gateway(engine.target()) as gateway:
        async with connected(gateway) as client:
            await client.ask()
            await eventually(lambda: len(engine.calls) == 1)
            await client.send(request())
            client.leave()
            await eventually(lambda: engine.open_connections == 0, 1)
        assert gateway.in_flight == 0


# Connections to engines


async def test_connections_are_reused_and_closed_before_the_engine_would() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        for _ in range(3):
            await asked(gateway, stream=True)
        assert engine.connections == 1
        gateway.pass_time(ENGINE_IDLE_SECONDS / 2)
        await asked(gateway)
        assert engine.connections == 1
        gateway.pass_time(ENGINE_IDLE_SECONDS + 0.1)
        await eventually(lambda: engine.open_connections == 0)
        await asked(gateway)
        assert engine.connections == 2


async def test_one_idle_connection_per_slot_is_kept() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        answers = await asyncio.gather(*(asked(gateway, stream=True) for _ in range(12)))
        assert all(answer.text == "Hello" for answer in answers)
        await eventually(lambda: engine.open_connections <= engine.target().slots)


async def test_of_several_gateways_each_keeps_its_share_of_idle_connections() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        slots = engine.target().slots

        async def ask_all() -> None:
            answers = await asyncio.gather(*(asked(gateway, stream=True) for _ in range(2 * slots)))
            assert all(answer.text == "Hello" for answer in answers)

        await ask_all()
        await eventually(lambda: engine.open_connections == slots)
        gateway.engines.share(2)
        await eventually(lambda: engine.open_connections == slots // 2)
        await ask_all()
        await eventually(lambda: engine.open_connections == slots // 2)
        gateway.engines.share(100)
        await ask_all()
        await eventually(lambda: engine.open_connections == 1)
        gateway.engines.share(1)
        await ask_all()
        await eventually(lambda: engine.open_connections == slots)


async def test_a_reused_connection_that_the_engine_closed_is_replaced_unnoticed() -> None:
    async def answer_once(call: Call) -> None:
        await call.stream("a")
        # The next request finds the connection open and sees it close.
        await call.reader.readuntil(b"\r\n\r\n")
        call.reset()

    async with ScriptedEngine(answer_once) as engine, running_gateway(engine.target()) as gateway:
        for _ in range(3):
            assert (await asked(gateway, stream=True)).text == "a"
        (demand,) = gateway.traffic.observe_demand()
        assert (demand.in_flight, demand.unreachable) == (0, False)


async def test_bytes_nobody_asked_for_are_never_an_answer() -> None:
    async def say_twice(call: Call) -> None:
        await call.stream("a")
        await call.stream("smuggled")

    async with ScriptedEngine(say_twice) as engine, running_gateway(engine.target()) as gateway:
        for _ in range(3):
            answer = await asked(gateway, stream=True)
            assert answer.text == "a"
            await asyncio.sleep(0.02)
        assert engine.connections == 3


async def test_an_endpoint_takes_no_more_than_its_bound() -> None:
    async with ScriptedEngine(hold) as engine, running_gateway(engine.target(slots=1)) as gateway:
        clients: list[RawClient] = []
        for _ in range(MAX_OUTSTANDING_PER_SLOT):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            clients.append(RawClient(reader, writer))
            await clients[-1].ask(stream=True)
        await eventually(lambda: gateway.in_flight == MAX_OUTSTANDING_PER_SLOT)
        answer = await asked(gateway)
        assert (answer.status, answer.error["code"]) == (503, "overloaded")
        for client in clients:
            client.leave()
        await eventually(lambda: gateway.in_flight == 0)


async def test_an_endpoint_that_leaves_the_table_finishes_what_it_has() -> None:
    go_on = asyncio.Event()
    told: list[bool] = []

    async def wait(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("old")))
        await go_on.wait()
        await call.write(chunk(DONE), LAST_CHUNK)

    async with ScriptedEngine(wait) as old, ScriptedEngine() as new, running_gateway(old.target("a")) as gateway:
        gateway.traffic.watch_news(lambda: told.append(True))
        async with connected(gateway) as client:
            await client.ask(stream=True)
            await client.read_head()
            gateway.route(new.target("b"))
            assert (await asked(gateway, stream=True)).text == "Hello"
            assert not told
            go_on.set()
            assert await client.read_chunk() == token("old")
            assert await client.read_chunk() == DONE
            await eventually(lambda: told == [True])
        assert len(old.calls) == 1


async def test_draining_lets_streams_end_and_tells_those_that_do_not() -> None:
    go_on = asyncio.Event()

    async def be_slow(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("a")))
        await go_on.wait()
        await call.write(chunk(DONE), LAST_CHUNK)

    async with (
        ScriptedEngine(be_slow) as slow,
        ScriptedEngine(hold) as endless,
        running_gateway(slow.target("a"), endless.target("b")) as gateway,
        connected(gateway) as one,
        connected(gateway) as two,
        connected(gateway) as idle,
    ):
        await one.ask(stream=True)
        await eventually(lambda: gateway.in_flight == 1)
        await two.ask(stream=True)
        await eventually(lambda: gateway.in_flight == 2)
        draining = asyncio.ensure_future(gateway.server.drain(5.0))
        assert await idle.is_closed()
        go_on.set()
        answers = [await one.read_answer(), await two.read_answer()]
        await draining
        ends = sorted("[DONE]" if a.events[-1] == "[DONE]" else a.events[-1]["error"]["message"] for a in answers)
        assert ends == ["[DONE]", "the gateway is stopping"]
        with pytest.raises(ConnectionError):
            await asked(gateway)


@pytest.mark.parametrize("turns", range(5))
async def test_a_client_that_comes_as_the_gateway_stops_is_let_go(turns: int) -> None:
    """In whichever turn of the loop it stops: the client waits, is accepted, has its transport, is told of."""
    async with running_gateway() as gateway:
        client = socket.create_connection(("127.0.0.1", gateway.port), 5)  # the loop stands still meanwhile
        for _ in range(turns):
            await asyncio.sleep(0)
    with client, suppress(ConnectionResetError):
        assert client.recv(1) == b""
    gc.collect()  # what was lost is told now, and fails this test


async def test_a_field_that_nobody_knows_reaches_the_engine_only_where_the_placement_says_so() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        answer = await asked(gateway, vendor_option={"a": 1})
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            400,
            "unsupported_field",
            "vendor_option",
        )
        assert engine.calls == []
        gateway.route(engine.target(), models=(MODEL.model_copy(update={"passes_unknown_fields": True}),))
        assert (await asked(gateway, vendor_option={"a": 1})).status == 200
        assert json.loads(engine.calls[-1].body)["vendor_option"] == {"a": 1}
        answer = await asked(gateway, vendor_option=1, id_slot=0)
        assert (answer.status, answer.error["param"]) == (400, "id_slot")
