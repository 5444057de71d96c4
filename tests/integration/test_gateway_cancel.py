"""A request ended by its id: who may, at which gateway, and what its client is told in each format."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from covey_api.messages import CertificateRole, ClientKey, Endpoint, Endpoints, ModelState, ServedModel
from covey_controller.board import FleetBoard
from covey_gateway.routing.access import AccessPolicy
from integration.fleet_rig import running_fleet
from integration.gateway_rig import (
    STREAM_HEAD,
    Answer,
    Call,
    Gateway,
    ScriptedEngine,
    chunk,
    connected,
    eventually,
    running_gateway,
    token,
)
from integration.test_gateway_bad_input import CALLS, Spoken
from integration.test_gateway_fleet import linked

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

KEYED = AccessPolicy(needs_local_origin=False, needs_key=True)
ANN, BOB = "sk-covey-ann", "sk-covey-bob"


def key(name: str, text: str) -> ClientKey:
    return ClientKey(namespace="default", name=name, hash=f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")


KEYS = (key("ann", ANN), key("bob", BOB))


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


async def say_a_word_and_hang(call: Call) -> None:
    await call.write(STREAM_HEAD, chunk(token("Hel")))
    await call.wait_gone()


async def hang(call: Call) -> None:
    await call.wait_gone()


async def send_cancel(gateway: Gateway, id_: str, *headers: str) -> Answer:
    lines = [f"POST /v1/cancel/{id_} HTTP/1.1", "host: localhost", "content-length: 0", *headers, "", ""]
    async with connected(gateway) as client:
        await client.send("\r\n".join(lines).encode())
        return await client.read_answer()


def render(spoken: Spoken, *headers: str, **fields: Any) -> bytes:
    body = json.dumps({"model": "m"} | spoken.body | fields).encode()
    lines = [f"POST {spoken.path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize("name", ["chat", "completions", "responses", "messages", "ollama chat", "embeddings"])
async def test_a_cancelled_request_is_told_so_in_its_own_format(name: str) -> None:
    spoken = CALLS[name]
    model = ServedModel(namespace="default", name="m", tasks=("Chat", "Embedding"), state=ModelState.READY)
    fields: dict[str, Any] = {"stream": False} if name == "ollama chat" else {}
    async with ScriptedEngine(hang) as engine, running_gateway() as gateway, connected(gateway) as client:
        gateway.route(engine.target(), models=(model,))
        await client.send(render(spoken, "x-request-id: mine", **fields))
        await eventually(lambda: len(engine.calls) == 1)
        assert (await send_cancel(gateway, "mine")).content == {
            "id": "mine",
            "object": "request.cancellation",
            "cancelled": 1,
            "gateways_told": 0,
        }
        answer = await client.read_answer()
        assert answer.status == 410
        assert "cancelled" in spoken.read(answer.content)
        await eventually(lambda: engine.open_connections == 0)
        assert gateway.in_flight == 0
        assert (await send_cancel(gateway, "mine")).status == 404


@pytest.mark.parametrize("name", ["chat", "responses", "messages", "ollama chat"])
async def test_a_cancelled_stream_ends_with_an_error_of_its_own_kind(name: str) -> None:
    async with ScriptedEngine(say_a_word_and_hang) as engine, running_gateway(engine.target()) as gateway:
        async with connected(gateway) as client:
            await client.send(render(CALLS[name], "x-request-id: mine", stream=True))
            await client.read_head()
            first = b""
            while b"Hel" not in first:
                first += await client.read_chunk()
            assert (await send_cancel(gateway, "mine")).status == 200
            rest = b""
            while piece := await client.read_chunk():
                rest += piece
        assert b"request_cancelled" in rest
        assert b"[DONE]" not in rest
        await eventually(lambda: engine.open_connections == 0)


async def test_all_requests_of_one_id_are_cancelled_and_no_other() -> None:
    async with (
        ScriptedEngine(hang) as engine,
        running_gateway(engine.target()) as gateway,
        connected(gateway) as one,
        connected(gateway) as two,
        connected(gateway) as other,
    ):
        await one.ask("x-request-id: twins")
        await two.ask("x-request-id: twins")
        await other.ask("x-request-id: twin")
        await eventually(lambda: gateway.in_flight == 3)
        assert (await send_cancel(gateway, "twins")).content["cancelled"] == 2
        assert [(await client.read_answer()).status for client in (one, two)] == [410, 410]
        assert gateway.in_flight == 1


async def test_only_its_own_key_cancels_a_request() -> None:
    async with ScriptedEngine(hang) as engine, running_gateway(policy=KEYED) as gateway, connected(gateway) as client:
        gateway.route(engine.target(), keys=KEYS)
        await client.ask("x-request-id: anns", f"authorization: Bearer {ANN}")
        await eventually(lambda: gateway.in_flight == 1)
        assert (await send_cancel(gateway, "anns")).status == 401
        refused = await send_cancel(gateway, "anns", f"authorization: Bearer {BOB}")
        unknown = await send_cancel(gateway, "nobodys", f"authorization: Bearer {BOB}")
        assert (refused.status, unknown.status, gateway.in_flight) == (404, 404, 1)
        assert refused.error["message"].replace("anns", "nobodys") == unknown.error["message"]
        assert (await send_cancel(gateway, "anns", f"authorization: Bearer {ANN}")).status == 200
        assert (await client.read_answer()).status == 410


async def test_who_is_at_the_gateways_own_machine_cancels_any_request() -> None:
    async with ScriptedEngine(hang) as engine, running_gateway() as gateway, connected(gateway) as client:
        gateway.route(engine.target(), keys=KEYS)
        await client.ask("x-request-id: anns", f"authorization: Bearer {ANN}")
        await eventually(lambda: gateway.in_flight == 1)
        assert (await send_cancel(gateway, "anns")).status == 200
        assert (await client.read_answer()).status == 410


@pytest.mark.parametrize("id_", ["", "a" * 129, "a%20b", "%0a", "a/b"])
async def test_what_can_be_no_id_is_refused(id_: str) -> None:
    async with running_gateway() as gateway:
        assert (await send_cancel(gateway, id_)).status == 400


async def test_any_gateway_of_the_fleet_cancels_through_the_controller(tmp_path: Path) -> None:
    """The request is at one gateway, the wish comes to another; keys count there as here."""
    board: Any = FleetBoard(asyncio.get_running_loop().time)
    board.begin(1)
    for name in "ab":
        (tmp_path / name).mkdir()
    async with (
        ScriptedEngine(hang) as engine,
        running_fleet(tmp_path / "c", board) as rig,
        linked(tmp_path / "a", rig.url, await rig.token(CertificateRole.GATEWAY), "gw-a") as asked,
        linked(tmp_path / "b", rig.url, await rig.token(CertificateRole.GATEWAY), "gw-b") as other,
    ):
        board.publish({}, table(engine))
        await eventually(lambda: asked.traffic.has_table and other.traffic.has_table, 20)
        order = other.traffic.table.order
        async with connected(asked) as anns, connected(asked) as keyless:
            await anns.ask("x-request-id: anns", f"authorization: Bearer {ANN}")
            await keyless.ask("x-request-id: keyless")
            await eventually(lambda: asked.in_flight == 2)
            for headers in ((), (f"authorization: Bearer {BOB}",)):
                answer = await send_cancel(other, "anns", *headers)
                assert (answer.status, answer.content["gateways_told"]) == (202, 1)
            assert (await send_cancel(other, "keyless")).status == 202
            assert (await keyless.read_answer()).status == 410
            assert asked.in_flight == 1
            assert (await send_cancel(other, "anns", f"authorization: Bearer {ANN}")).status == 202
            assert (await anns.read_answer()).status == 410
        assert other.traffic.table.order == order
        rig.server.cancel()
        await asyncio.gather(rig.server, return_exceptions=True)
        for _ in range(200):
            answer = await send_cancel(other, "anns")
            if "controller is not reached" in answer.error["message"]:
                break
            await asyncio.sleep(0.05)
        assert (answer.status, answer.error["code"]) == (503, "upstream_unavailable")


def table(engine: ScriptedEngine) -> Endpoints:
    endpoint = Endpoint(
        instance_id="0" * 16,
        instance="default/m-0",
        namespace="default",
        model="m",
        node="a",
        host="127.0.0.1",
        port=engine.port,
        key="engine-key",
        engine="LlamaServer",
        slots=4,
        context_tokens=2048,
    )
    model = ServedModel(namespace="default", name="m", tasks=("Chat",), state=ModelState.READY)
    return Endpoints(term=1, serial=0, models=(model,), endpoints=(endpoint,), keys=KEYS)
