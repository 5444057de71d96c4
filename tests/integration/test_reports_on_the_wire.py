"""Reports on a real connection, by reflex and by the app: the same answers in the order of the calls."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from covey_api.messages import CertificateRole
from integration.fleet_rig import Rig, report, running_fleet

pytestmark = [pytest.mark.anyio, pytest.mark.integration]
ANSWER = {"term": 1, "serial": 1, "resend": False}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop that the controller runs on."""
    return "asyncio", {"use_uvloop": True}


@asynccontextmanager
async def connected(rig: Rig) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection of agent `a`, for bytes as this test cuts them."""
    identity = await rig.join(CertificateRole.AGENT, "a")
    context = ssl.create_default_context(cadata=rig.trust.current.bundle_pem)
    context.load_cert_chain(identity.certificate_path, identity.key_path)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(rig.url.rsplit(":", 1)[1]), ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def call(sequence: int, *, full: bool = False) -> tuple[bytes, bytes]:
    """Head and body of one report."""
    body = report(sequence=sequence, full=full).model_dump_json(by_alias=True, exclude_none=True).encode()
    head = f"POST /fleet/v1/nodes/a/report HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode(), body


async def read_answer(reader: asyncio.StreamReader) -> object:
    head = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    fields = dict(line.split(b": ", 1) for line in head[1:] if line)
    assert (head[0], fields[b"content-type"]) == (b"http/1.1 200 ok", b"application/json")
    return json.loads(await reader.readexactly(int(fields[b"content-length"])))


async def test_report_is_answered_alike_however_its_bytes_arrive(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, asyncio.timeout(30), connected(rig) as (reader, writer):
        writer.write(b"".join(call(1)))
        assert await read_answer(reader) == ANSWER
        assert [each.sequence for _, each in rig.board.beats] == [1]
        head, body = call(2)
        for part in (head[:30], head[30:], body[:10], body[10:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.1)
        assert await read_answer(reader) == ANSWER
        assert [each.sequence for _, each in rig.board.reports] == [2]
        writer.write(b"".join(call(3)))
        assert await read_answer(reader) == ANSWER
        assert [each.sequence for _, each in rig.board.beats] == [1, 3]


async def test_calls_sent_without_waiting_are_answered_each_in_their_order(tmp_path: Path) -> None:
    """A report after one that the app still answers waits for it."""
    async with running_fleet(tmp_path) as rig, asyncio.timeout(30), connected(rig) as (reader, writer):
        writer.write(b"".join((*call(1), *call(2), *call(3, full=True), *call(4), *call(5))))
        assert [await read_answer(reader) for _ in range(5)] == [ANSWER] * 5
        assert [each.sequence for _, each in rig.board.beats] == [1, 2]
        assert [each.sequence for _, each in rig.board.reports] == [3, 4, 5]
        writer.write(b"GET /fleet/v1/nodes/a/assignments HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_report_that_closes_its_connection_is_answered_and_closes_it(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, asyncio.timeout(30), connected(rig) as (reader, writer):
        head, body = call(1)
        writer.write(head.replace(b"host: x", b"host: x\r\nconnection: close") + body)
        assert await read_answer(reader) == ANSWER
        assert await reader.read() == b""


async def test_silence_after_a_reflex_ends_no_connection_that_is_used_again(tmp_path: Path) -> None:
    """The head's deadline is for a head that has begun."""
    async with running_fleet(tmp_path) as rig, asyncio.timeout(60), connected(rig) as (reader, writer):
        for sequence in (1, 2):
            writer.write(b"".join(call(sequence)))
            assert await read_answer(reader) == ANSWER
            await asyncio.sleep(11)
        assert [each.sequence for _, each in rig.board.beats] == [1, 2]


async def test_body_that_is_no_http_is_refused_once_and_reaches_nobody(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as rig, asyncio.timeout(30), connected(rig) as (reader, writer):
        head = b"POST /fleet/v1/nodes/a/report HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"zz\r\n")
        said = await reader.read()
        assert said.startswith(b"HTTP/1.1 400 ")
        assert said.count(b"HTTP/1.1 ") == 1
        assert rig.board.beats == rig.board.reports == []
