"""What relays get wrong: sizes, heads without bodies, an engine's trailers and early heads, clients that leave."""

import asyncio
import json
import socket

import pytest
from covey_gateway.limits import HEAD_SECONDS, MAX_BODIES_BYTES, MAX_BODY_BYTES
from integration.gateway_rig import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Call,
    ScriptedEngine,
    asked,
    chunk,
    connected,
    eventually,
    running_gateway,
    token,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.mark.parametrize("size", [200_000, 20_000_000])
async def test_bodies_of_any_size_arrive_whole_by_length_and_in_chunks(size: int) -> None:
    text = "0123456789" * (size // 10)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    path = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        async with connected(gateway) as client:
            await client.send(path + b"content-length: %d\r\n\r\n%b" % (len(body), body))
            assert (await client.read_answer()).status == 200
            await client.send(path + b"transfer-encoding: chunked\r\n\r\n")
            for at in range(0, len(body), 65_521):
                await client.send(chunk(body[at : at + 65_521]))
            await client.send(b"0\r\n\r\n")
            assert (await client.read_answer()).status == 200
        for call in engine.calls:
            assert call.content["messages"][0]["content"] == text
        assert gateway.traffic.reserve_body(MAX_BODIES_BYTES)  # nothing of them is held


async def test_bodies_of_all_clients_together_are_bounded_and_the_one_too_many_is_told() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        assert MAX_BODY_BYTES <= MAX_BODIES_BYTES <= 256 * 1024 * 1024
        assert gateway.traffic.reserve_body(MAX_BODIES_BYTES - 100_000)  # of others
        answer = await asked(gateway, user="x" * 200_000)
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "overloaded", "1")
        assert (await asked(gateway, user="x" * 20_000)).status == 200
        assert HEAD_SECONDS <= 10


@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/v1/chat/completions", "/v1/nothing", "/api/version"])
async def test_an_answer_to_head_has_no_body(path: str) -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway, connected(gateway) as client:
        for _ in range(2):
            await client.send(f"HEAD {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            status, _ = await client.read_head()
            assert status in (200, 404, 405)
        # What follows on the connection is the next answer's head.
        await client.ask()
        assert (await client.read_answer()).status == 200


async def test_early_hints_and_trailers_of_an_engine_reach_nobody() -> None:
    async def say_more(call: Call) -> None:
        await call.write(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n")
        await call.write(STREAM_HEAD, chunk(token("a")), chunk(DONE), b"0\r\nx-trailer: secret\r\n\r\n")

    async with ScriptedEngine(say_more) as engine, running_gateway(engine.target()) as gateway:
        for _ in range(3):
            answer = await asked(gateway, stream=True)
            assert (answer.status, answer.body) == (200, token("a") + DONE)
            assert "link" not in answer.headers
        assert (await asked(gateway)).content["choices"][0]["message"]["content"] == "a"
        assert engine.connections == 1


async def test_what_an_engine_writes_behind_a_whole_answer_costs_only_the_connection() -> None:
    async def say_too_much(call: Call) -> None:
        await call.write(
            STREAM_HEAD + chunk(token("a")) + chunk(DONE) + LAST_CHUNK + b"\x00garbage that is no HTTP\r\n\r\n"
        )

    async with ScriptedEngine(say_too_much) as engine, running_gateway(engine.target()) as gateway:
        for count in (1, 2):
            answer = await asked(gateway, stream=True)
            assert (answer.status, answer.body) == (200, token("a") + DONE)
            assert engine.connections == count


async def test_a_client_that_leaves_while_reading_of_it_is_paused_frees_its_slot() -> None:
    """More than is held lies behind its request unread, and it takes nothing: its end is seen nevertheless."""

    async def flood(call: Call) -> None:
        await call.write(STREAM_HEAD)
        while True:
            await call.write(chunk(token("x" * 100_000)))

    async with ScriptedEngine(flood) as engine, running_gateway(engine.target(), send_bytes=4096) as gateway:
        with socket.socket() as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", gateway.port))
            body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"Hi"}]}'
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
            await loop.sock_sendall(client, head % len(body) + body)
            await eventually(lambda: gateway.in_flight == 1)
            try:
                async with asyncio.timeout(1):
                    await loop.sock_sendall(client, b"POST /" + b"x" * 20_000_000)
            except TimeoutError:
                pass
            assert gateway.in_flight == 1
        await eventually(lambda: gateway.in_flight == 0, 3)
        await eventually(lambda: engine.open_connections == 0, 3)
