"""Traces from client to engine, and spans at a receiver that speaks OTLP over HTTP."""

import asyncio
import hashlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from integration.gateway_rig import Call, ScriptedEngine, asked, eventually, running_gateway
from kit.ports import free_port
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
SECRET = "sk-covey-test"
BODY = {"model": "m", "messages": [{"role": "user", "content": "secret words"}]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def header_of(call: Call, name: str) -> str | None:
    lines = call.head.decode().split("\r\n")
    found = [line.partition(": ")[2] for line in lines if line.lower().startswith(f"{name}: ")]
    assert len(found) < 2
    return found[0] if found else None


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_hears_the_clients_own_trace(*, stream: bool) -> None:
    async with ScriptedEngine() as engine, running_gateway(engine.target()) as gateway:
        await asked(gateway, f"traceparent: {PARENT}", "tracestate: a=1", "tracestate: b=2", stream=stream)
        await asked(gateway, "traceparent: nonsense", "tracestate: a=1", stream=stream)
        await asked(gateway, stream=stream)
        found = [(header_of(call, "traceparent"), header_of(call, "tracestate")) for call in engine.calls]
    assert found == [(PARENT, "a=1,b=2"), (None, None), (None, None)]


class Receiver:
    """A server of OTLP over HTTP: it keeps the spans that it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.raw = b""
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                assert head.startswith("post /v1/traces http/1.1\r\n"), head
                body = await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
                self.raw += body
                asked = cast(Any, ExportTraceServiceRequest.FromString(body))
                for resource in asked.resource_spans:
                    named = {each.key: each.value.string_value for each in resource.resource.attributes}
                    self.services.add(named["service.name"])
                    self.spans += [span for scope in resource.scope_spans for span in scope.spans]
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


@asynccontextmanager
async def traced(
    folder: Path, engine_port: int, receiver: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str, list[str]]]:
    """A gateway that tells its spans there: its process, its address, the lines of its log."""
    key = {"name": "ann", "hash": "sha256:" + hashlib.sha256(SECRET.encode()).hexdigest()}
    refusing = {"url": f"http://127.0.0.1:{free_port()}"}
    table = {
        "models": [
            {"name": "m", "endpoints": [{"url": f"http://127.0.0.1:{engine_port}"}]},
            {"name": "broken", "endpoints": [refusing]},
        ],
        "keys": [key],
    }
    (folder / "table.json").write_text(json.dumps(table))
    flags = ("--table", str(folder / "table.json"), "--listen", "127.0.0.1:0", "--otlp-endpoint", receiver)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "covey_gateway",
        *flags,
        "--access-log",
        str(folder / "access.log"),
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    lines: list[str] = []

    async def read(stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            lines.append(line.decode())

    reading = asyncio.create_task(read(process.stderr))
    try:
        # Who asks before the library is loaded is served, and not traced.
        await eventually(lambda: sum("listening on" in line or "spans of" in line for line in lines) == 2, 60)
        (url,) = (line.split()[-1] for line in lines if "listening on" in line)
        yield process, url, lines
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await reading


async def test_spans_of_a_request_are_below_the_clients_and_above_the_engines(tmp_path: Path) -> None:
    receiver = Receiver()
    async with (
        ScriptedEngine() as engine,
        receiver.running(),
        traced(tmp_path, engine.port, f"http://127.0.0.1:{receiver.port}") as (process, url, _),
    ):
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            named = {"traceparent": PARENT, "tracestate": "a=1", "authorization": f"Bearer {SECRET}"}
            assert (await client.post("/v1/chat/completions", json=BODY, headers=named)).status_code == 200
            assert (await client.post("/v1/messages", json=BODY | {"max_tokens": 9})).status_code == 200
            unsampled = {"traceparent": f"00-{TRACE}-{SPAN}-00"}
            assert (await client.post("/v1/chat/completions", json=BODY, headers=unsampled)).status_code == 200
            assert (await client.post("/v1/chat/completions", json=BODY | {"model": "broken"})).status_code == 503
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0
    parents = [header_of(call, "traceparent") or "" for call in engine.calls]
    whole, messages, failed = (span for span in receiver.spans if span.name.startswith("POST "))
    assert (whole.name, messages.name) == ("POST /v1/chat/completions", "POST /v1/messages")
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, SPAN)
    assert parents[0] == f"00-{TRACE}-{whole.span_id.hex()}-01"
    assert header_of(engine.calls[0], "tracestate") == "a=1"
    assert parents[1].startswith(f"00-{messages.trace_id.hex()}-{messages.span_id.hex()}-")
    assert int(parents[1][-2:], 16) & 1, "it is kept"
    assert messages.trace_id.hex() != TRACE
    assert not messages.parent_span_id
    assert parents[2].startswith(f"00-{TRACE}-")
    assert parents[2].endswith("-00"), "whoever began the trace decided that it isn't kept"
    parts = {span.name: span for span in receiver.spans if span.parent_span_id == whole.span_id}
    assert set(parts) == {"queue", "first byte"}
    times = [whole.start_time_unix_nano, parts["queue"].end_time_unix_nano, parts["first byte"].end_time_unix_nano]
    assert times == sorted(times)
    assert whole.end_time_unix_nano >= times[-1] - 1_000_000
    told = attributes(whole)
    assert (told["http.response.status_code"], told["gen_ai.request.model"]) == (200, "m")
    assert told["covey.key"] == "default/ann"
    assert (failed.status.code, attributes(failed)["error.type"]) == (2, "upstream_unavailable")
    assert receiver.services == {"covey-gateway"}
    assert b"secret words" not in receiver.raw
    assert SECRET.encode() not in receiver.raw
    lines = [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
    assert [line["trace_id"] for line in lines][:2] == [TRACE, messages.trace_id.hex()]


async def test_a_receiver_that_is_away_or_silent_costs_no_request_and_is_told_of_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        for receiver in (f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{silent.getsockname()[1]}"):
            async with ScriptedEngine() as engine, traced(tmp_path, engine.port, receiver) as (process, url, lines):
                async with httpx.AsyncClient(base_url=url, timeout=20) as client:
                    for _ in range(3):
                        assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200
                process.terminate()
                assert await asyncio.wait_for(process.wait(), 30) == 0
                assert sum("spans can't be sent" in line for line in lines) <= 1, lines
                assert not any("Traceback" in line for line in lines), lines
