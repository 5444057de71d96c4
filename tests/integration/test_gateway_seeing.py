"""What a gateway tells its operator: a record of each request, figures, and both as a process writes them."""

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from covey_api.messages import ClientKey
from covey_gateway.records import Record
from integration.gateway_rig import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Call,
    Gateway,
    ScriptedEngine,
    asked,
    chunk,
    connected,
    eventually,
    request,
    running_gateway,
    token,
)
from integration.test_gateway_bad_input import CALLS, post
from kit.metrics import OPENMETRICS, parse_metrics

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SECRET = "sk-covey-test"
KEY = ClientKey(namespace="default", name="ann", hash="sha256:" + hashlib.sha256(SECRET.encode()).hexdigest())
USAGE = {"prompt_tokens": 11, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


class Records:
    """In the place of a log."""

    dropped = 0

    def __init__(self, gateway: Gateway) -> None:
        self.found: list[Record] = []
        gateway.traffic.ledger.log = self

    def write(self, record: Record) -> None:
        self.found.append(record)

    async def one(self) -> Record:
        await eventually(lambda: bool(self.found))
        (record,) = self.found
        self.found.clear()
        return record


async def answer_counted(call: Call) -> None:
    """As an engine does that tells usage where it is asked for."""
    told = b""
    if call.content.get("stream_options", {}).get("include_usage"):
        told = b'data: {"id":"c1","choices":[],"usage":%b}\n\n' % json.dumps(USAGE).encode()
    await call.write(STREAM_HEAD, chunk(token("Hel")), chunk(token("lo") + told + DONE), LAST_CHUNK)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_written_down_with_the_engines_own_figures(*, stream: bool) -> None:
    async with ScriptedEngine(answer_counted) as engine, running_gateway() as gateway:
        gateway.route(engine.target(), keys=(KEY,))
        records = Records(gateway)
        answer = await asked(gateway, f"authorization: Bearer {SECRET}", "x-request-id: mine", stream=stream)
        assert answer.status == 200
        found = await records.one()
    assert (found.method, found.path, found.format, found.status) == ("POST", "/v1/chat/completions", "openai", 200)
    assert (found.key, found.model, found.request_id) == ("default/ann", "m", "mine")
    assert (found.cost.prompt, found.cost.cached, found.cost.completion) == (11, 4, 2)
    assert not found.cost.is_estimated
    assert found.is_stream is stream
    assert found.request_bytes > 50
    assert found.answer_bytes > len(answer.body)
    assert found.client == "127.0.0.1"
    if stream:
        assert b"usage" not in answer.body, "nobody asked for it"


async def test_usage_that_a_client_asks_for_is_its_own() -> None:
    async with ScriptedEngine(answer_counted) as engine, running_gateway(engine.target()) as gateway:
        answer = await asked(gateway, stream=True, stream_options={"include_usage": True})
    assert [event["usage"] for event in answer.events if event != "[DONE]" and not event["choices"]] == [USAGE]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_499_in_the_log_alone_and_its_tokens_are_estimated(*, stream: bool) -> None:
    async def hang(call: Call) -> None:
        await call.write(STREAM_HEAD, *(chunk(token("x")) for _ in range(6)))
        await call.wait_gone(timeout_seconds=20)

    async with ScriptedEngine(hang) as engine, running_gateway(engine.target()) as gateway:
        records = Records(gateway)
        async with connected(gateway) as client:
            await client.ask(stream=stream)
            await eventually(lambda: bool(engine.calls))
            await asyncio.sleep(0.1)
            client.leave()
            found = await records.one()
        assert (found.status, found.code) == (499, "")
        assert found.cost.is_estimated
        assert found.cost.completion == 5, "one event of six has the role alone"
        assert 0 < found.cost.prompt < found.request_bytes


@pytest.mark.parametrize("name", ["chat", "messages", "ollama chat"])
async def test_an_error_in_a_stream_is_written_down_as_one(name: str) -> None:
    async def break_off(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("x")))
        call.reset()

    spoken = CALLS[name]
    async with ScriptedEngine(break_off) as engine, running_gateway(engine.target()) as gateway:
        records = Records(gateway)
        body = json.dumps({"model": "m", "stream": True} | spoken.body).encode()
        with pytest.raises(json.JSONDecodeError):
            (await post(gateway, spoken.path, body)).content  # noqa: B018  (a stream, which is no JSON)
        found = await records.one()
    assert (found.status, found.code) == (502, "upstream_ended")


async def test_what_never_became_a_request_and_what_has_no_body_are_written_down_too() -> None:
    async with running_gateway() as gateway:
        records = Records(gateway)
        async with connected(gateway) as client:
            await client.send(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await client.read_answer()
            found = await records.one()
            assert (found.method, found.path, found.status) == ("GET", "/v1/models", 200)
            await client.send(b"GET /nowhere?key=sk-x HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await client.read_answer()
            found = await records.one()
            assert (found.path, found.status) == ("/nowhere", 404)
            await client.send(b"nonsense\r\n\r\n")
            await client.read_answer()
            assert (await records.one()).status == 400


async def scraped(gateway: Gateway) -> dict[str, float]:
    async with httpx.AsyncClient(timeout=30) as client:
        url = f"http://127.0.0.1:{gateway.port}/metrics"
        answer = await client.get(url, headers={"accept": OPENMETRICS})
    assert answer.status_code == 200
    return parse_metrics(answer.text)


async def test_figures_add_up() -> None:
    async with ScriptedEngine(answer_counted) as engine, running_gateway(engine.target()) as gateway:
        for _ in range(3):
            await asked(gateway)
        await asked(gateway, model="none")
        found = await scraped(gateway)
    assert found['covey_gateway_requests_total{code="200",format="openai",model="m"}'] == 3
    assert found['covey_gateway_requests_total{code="404",format="openai",model=""}'] == 1
    figures = {
        name: found[f'covey_gateway_{name}_total{{model="m"}}']
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens")
    }
    assert figures == {"prompt_tokens": 33, "cached_tokens": 12, "completion_tokens": 6}
    for name in ("first_token", "request", "held", "token_interval"):
        assert found[f'covey_gateway_{name}_seconds_count{{model="m"}}'] == 3
        assert found[f'covey_gateway_{name}_seconds_bucket{{le="+Inf",model="m"}}'] == 3
    assert found['covey_gateway_in_flight_requests{model="m"}'] == 0
    assert found["covey_gateway_ready"] == 1
    assert found['covey_gateway_limited_requests_total{limit="concurrency"}'] == 0


async def test_models_that_clients_make_up_make_no_series() -> None:
    async with running_gateway() as gateway:
        for number in range(20):
            await asked(gateway, model=f"made-up-{number}")
        found = await scraped(gateway)
    assert found['covey_gateway_requests_total{code="404",format="openai",model=""}'] == 20
    assert not any("made-up" in name for name in found)


async def test_figures_are_not_told_to_who_sends_a_key() -> None:
    """They name models of all namespaces."""
    async with running_gateway() as gateway, connected(gateway) as client:
        gateway.route(keys=(KEY,))
        await client.send(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nx-api-key: %b\r\n\r\n" % SECRET.encode())
        refused = await client.read_answer()
        assert refused.status == 404
        assert "--metrics-listen" in refused.error["message"]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_process_writes_its_log_and_tells_figures_on_a_port_of_their_own(tmp_path: Path) -> None:
    async with ScriptedEngine(answer_counted) as engine:
        table = {"models": [{"name": "m", "endpoints": [{"url": f"http://127.0.0.1:{engine.port}"}]}]}
        (tmp_path / "table.json").write_text(json.dumps(table))
        log = tmp_path / "access.log"
        flags = ("--table", str(tmp_path / "table.json"), "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "covey_gateway", *flags, "--access-log", str(log), stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        try:
            addresses: list[str] = []
            async with asyncio.timeout(30):
                while len(addresses) < 2:
                    line = (await process.stderr.readline()).decode()
                    addresses += [word.strip("'") for word in line.split() if "http://" in word]
            url, figures = sorted(addresses, key=lambda address: "/metrics" in address)
            async with httpx.AsyncClient(timeout=30) as client:
                body = {"model": "m", "messages": [{"role": "user", "content": "secret words"}]}
                answer = await client.post(f"{url}/v1/chat/completions", json=body)
                assert answer.status_code == 200
                found = parse_metrics((await client.get(figures, headers={"accept": OPENMETRICS})).text)
                assert (await client.get(f"{figures.removesuffix('/metrics')}/v1/models")).status_code == 404
            assert found['covey_gateway_requests_total{code="200",format="openai",model="m"}'] == 1
            await eventually(lambda: bool(log.read_text()))
            (line,) = lines_of(log)
            assert (line["status"], line["model"], line["prompt_tokens"]) == (200, "m", 11)
            assert "secret" not in log.read_text()
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 10) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_stream_that_ends_well_is_200_however_long_it_was() -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway, connected(gateway) as client:
        records = Records(gateway)
        await client.send(request(stream=True) + request(stream=True))
        for _ in range(2):
            await client.read_answer()
        await eventually(lambda: len(records.found) == 2)
        assert {record.status for record in records.found} == {200}


def with_body(head: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def with_error(body: bytes) -> bytes:
    error = {"error": {"code": 500, "message": body.decode()}}
    return STREAM_HEAD + chunk(b"data: %b\n\n" % json.dumps(error).encode())


ECHOES: dict[str, Callable[[bytes], bytes]] = {
    "refuses": lambda body: with_body(b"500 X", body),
    "blames": lambda body: with_body(b"400 X", body),
    "breaks": with_error,
    "is no HTTP": lambda body: body,
    "is no stream": lambda body: with_body(b"200 OK\r\ncontent-type: text/plain", body),
    "is no JSON": lambda body: STREAM_HEAD + chunk(b"data: %b\n\n" % body[1:]),
}


async def test_no_log_has_a_key_or_a_word_of_a_body_however_a_request_ends(tmp_path: Path) -> None:
    """Engines that repeat what they were asked in each of their failures; clients that put a key where none belongs."""
    key, word = "sk-covey-hunter2hunter2", "xyzzy-prompt"
    scripts = iter([*ECHOES.values()] * 4)

    async def echo(call: Call) -> None:
        await call.write(next(scripts)(call.body))
        call.writer.close()

    async with ScriptedEngine(echo) as engine:
        table = {
            "models": [{"name": "m", "endpoints": [{"url": f"http://127.0.0.1:{engine.port}"}]}],
            "keys": [{"name": "ann", "hash": "sha256:" + hashlib.sha256(key.encode()).hexdigest()}],
        }
        (tmp_path / "table.json").write_text(json.dumps(table))
        log = tmp_path / "access.log"
        flags = ("--table", str(tmp_path / "table.json"), "--listen", "127.0.0.1:0", "--access-log", str(log))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "covey_gateway", *flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        said = b""
        try:
            async with asyncio.timeout(60):
                while b"listening on" not in said:
                    said += await process.stderr.readline()
            url = said.split()[-1].decode()
            body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": word}]}
            named = {"authorization": f"Bearer {key}", "x-request-id": f"of-{key}", "x-session-id": word}
            statuses: set[int] = set()
            async with httpx.AsyncClient(base_url=url, timeout=30, headers=named) as client:
                for path, more in (("/v1/chat/completions", {}), ("/v1/messages", {"max_tokens": 5})):
                    for stream in (False, True):
                        for _ in ECHOES:
                            asked_for = body | more | {"stream": stream}
                            answer = await client.post(path, json=asked_for, params={"key": key})
                            statuses.add(answer.status_code)
                for content in (
                    b'{"model": "m", "%b' % word.encode(),
                    json.dumps(body | {word: key, "model": key}).encode(),
                ):
                    statuses.add((await client.post("/v1/chat/completions", content=content)).status_code)
                statuses.add((await client.get(f"/v1/models/{key}?key={key}")).status_code)
                statuses.add(
                    (await client.get("/v1/models", headers={"x-api-key": key[:-1], "authorization": ""})).status_code
                )
            assert {400, 401, 404, 502} <= statuses, statuses
            process.terminate()
            out, rest = await asyncio.wait_for(process.communicate(), 30)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert len(lines_of(log)) == 28, "each is written down"
    for text in ((said + rest).decode(), out.decode(), log.read_text()):
        assert word not in text
        assert "hunter2" not in text
