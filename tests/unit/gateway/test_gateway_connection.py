"""What one connection keeps of heads that never end, and how it reads offers of an upgrade."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from covey_gateway.connection import ClientConnection
from covey_gateway.limits import MAX_PIPELINED
from covey_gateway.wire.head import MAX_HEADERS
from uvicorn import Config
from uvicorn.server import ServerState

_OFFER = b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 1) if name == "peername" else default

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


class _Connection(ClientConnection):
    """Takes each head for answered, as a request without a key is."""

    heads = 0
    feeds = 0

    def on_headers_complete(self) -> None:
        if not self._is_deaf and not self.parser.should_upgrade():
            self.heads += 1

    def _feed_once(self, data: bytes) -> bytes:
        self.feeds += 1
        return super()._feed_once(data)


def _answer_nothing(*_: object) -> None:
    pass


@contextmanager
def _connect() -> Generator[tuple[_Connection, _Transport]]:
    config = Config(cast("Any", _answer_nothing), interface="asgi3", lifespan="off", log_config=None)
    config.load()
    traffic = SimpleNamespace(ledger=SimpleNamespace(close=_answer_nothing), date=b"now")
    transport = _Transport()

    async def make() -> _Connection:
        connection = _Connection(config, ServerState(), cast("Any", traffic))
        connection.connection_made(transport)
        return connection

    with asyncio.Runner() as runner:
        yield runner.run(make()), transport


@pytest.mark.parametrize("line", [b"aa:bb\r\n" * 36_500, b"a" * 300 + b":" + b"b" * 3000 + b"\r\n"])
def test_head_of_one_read_that_never_ends_keeps_no_more_than_a_head_may_have(line: bytes) -> None:
    lines = line if len(line) > 100_000 else line * 70
    with _connect() as (connection, transport):
        connection.data_received(b"POST /v1/chat/completions HTTP/1.1\r\n" + lines)
        assert len(connection.headers) <= MAX_HEADERS
        assert sum(len(name) + len(value) for name, value in connection.headers) <= 64 * 1024
    assert transport.written.startswith(b"HTTP/1.1 431 ")
    assert b"at most 100 headers" in transport.written


def test_as_many_headers_as_may_be_are_taken() -> None:
    with _connect() as (connection, transport):
        connection.data_received(b"GET /a HTTP/1.1\r\n" + b"aa:bb\r\n" * MAX_HEADERS + b"\r\n")
        assert (connection.heads, len(connection.headers)) == (1, MAX_HEADERS)
    assert transport.written == b""


def test_one_offer_of_an_upgrade_is_taken_without_it() -> None:
    with _connect() as (connection, transport):
        connection.data_received(_OFFER)
        assert (connection.heads, connection.headers) == (1, [(b"host", b"a")])
    assert transport.written == b""


def test_many_offers_of_an_upgrade_at_once_are_refused_after_a_few() -> None:
    with _connect() as (connection, transport):
        connection.data_received(_OFFER * 3500)
        assert connection.feeds <= MAX_PIPELINED + 1
    assert not transport.is_aborted
    assert b"offer an upgrade" in transport.written
