"""The short way of a plain chat request against the general one: whatever an engine writes, in whatever pieces, clients
are told the same and the same is counted. Real protocols on transports without a socket."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest
from covey_api.messages import Cancel, ClientKey, ModelState, Order, ServedModel
from covey_gateway import handing
from covey_gateway.images import Images
from covey_gateway.records import Record
from covey_gateway.relay import Relay
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.table import Target, build_table, parse_key
from covey_gateway.server import GatewayServer
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import EngineConnection, Engines
from covey_gateway.wire.errors import invalid_request
from hypothesis import given, settings
from hypothesis import strategies as st

KEY = "sk-covey-0123456789abcdef"
HEAD = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False
        self.is_paused = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: tuple[bytes, ...]) -> None:
        self.written += b"".join(pieces)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default


class Dialled(Engines):
    """Connects without a network."""

    connections: list[EngineConnection]

    async def _create_connection(self, target: Target) -> EngineConnection:
        connection = EngineConnection(target, self)
        connection.connection_made(cast(asyncio.BaseTransport, Transport()))
        self.connections.append(connection)
        return connection


@dataclass
class Rig:
    """A gateway before one endpoint, and a client of it."""

    traffic: Traffic
    engines: Dialled
    client: Relay
    transport: Transport
    records: list[Record] = field(default_factory=list[Record])
    dropped: int = 0

    def write(self, record: Record) -> None:
        self.records.append(record)

    async def send(self, request: bytes) -> EngineConnection:
        self.client.data_received(request)
        for _ in range(5):
            await asyncio.sleep(0)
        return self.engines.connections[-1]

    @property
    def is_short(self) -> bool:
        """Whether the request that is answered goes the short way."""
        return type(self.client._answering).__name__ == "Express"  # pyright: ignore[reportPrivateUsage] # nobody else's to know

    def check_rest(self) -> None:
        """Nothing is under way and nothing is kept."""
        assert self.traffic.observe_figures(0, 0).in_flight == {("default", "m"): 0}
        demand = self.traffic.observe_demand()
        assert all(each.in_flight == 0 and each.oldest_silent_seconds is None for each in demand)
        assert self.traffic.lines.count_waiting("e") == 0
        assert self.traffic.reserve_body(256 * 1024 * 1024)
        self.traffic.free_body(256 * 1024 * 1024)
        assert self.traffic.accounts.begin("default/k") is None  # its only one at a time
        self.traffic.accounts.end("default/k")


async def make_rig(engine: str = "") -> Rig:
    loop = asyncio.get_running_loop()
    traffic = Traffic(AccessPolicy(needs_local_origin=True, needs_key=False), loop.time)
    target = Target("e", "e", "default", "m", "127.0.0.1", 1, "", 2, 1, 2048, confirmed=True, engine=engine)
    model = ServedModel(namespace="default", name="m", state=ModelState.READY)
    digest = "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()
    key = parse_key(ClientKey(namespace="default", name="k", hash=digest, expiry=None, concurrency=1))
    traffic.apply_table(build_table(Order(term=0, serial=0), [model], [target], [key]))
    engines = Dialled(loop, cast(Any, loop.create_task))
    engines.connections = []
    server = GatewayServer(traffic, engines, Images(cast(Any, loop.create_task)))
    server.check_deadlines(0.0, loop.time())
    client = server._accept(100)  # pyright: ignore[reportPrivateUsage] # what a socket would be given
    transport = Transport()
    client.connection_made(cast(asyncio.Transport, transport))
    rig = Rig(traffic, engines, client, transport)
    traffic.ledger.log = rig
    return rig


def render(*, stream: bool, general: bool, **more: Any) -> bytes:
    """`general`: with a header that the short way leaves to the general one, and that changes nothing here."""
    content = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}], "stream": stream} | more
    body = json.dumps(content).encode()
    hold = "x-covey-hold: 0\r\n" if general else ""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n{hold}"
    return f"{head}x-request-id: r\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return (
        b"data: " + json.dumps({"id": "c", "created": 1, "model": "m", "choices": [choice]} | more).encode() + b"\n\n"
    )


def frame(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def unframe(answer: bytes) -> bytes:
    """An answer's head and what its chunks carry; the date is the moment's."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith((b"date", b"content-length"))]
    if b"transfer-encoding: chunked" not in lines:
        return b"\n".join([*lines, body])
    pieces: list[bytes] = []
    while body:
        size, _, body = body.partition(b"\r\n")
        pieces.append(body[: int(size, 16)])
        assert body[int(size, 16) :][:2] == b"\r\n"
        body = body[int(size, 16) + 2 :]
    return b"\n".join([*lines, b"".join(pieces)])


async def play(request: bytes, pieces: list[bytes], end: str, engine: str) -> tuple[bytes, bool, list[Any]]:
    """What the client got, whether the way was short at its beginning, and what was written down."""
    rig = await make_rig(engine)
    connection = await rig.send(request)
    was_short = rig.is_short
    transport = cast(Transport, cast(Any, connection)._transport)
    for piece in pieces:
        if not transport.is_closed:
            connection.data_received(piece)
    if end == "closed" and not transport.is_closed:
        transport.close()
        connection.connection_lost(None)
    if end == "left":
        rig.client.connection_lost(None)
    if end == "cancelled":
        cancels = cast(Any, rig.traffic.cancels)
        for _, asked in list(cancels._asked.get("r", ())):
            asked.cancel()
    if rig.client._answering is not None and end == "":  # pyright: ignore[reportPrivateUsage] # half an answer
        rig.client.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    rig.check_rest()
    assert cast(Any, rig.traffic.cancels)._asked == {}
    names = ("status", "code", "model", "key", "endpoint", "is_stream", "request_bytes", "cost", "format", "path")
    told = [
        # Of a chunk whose end is broken the general way may have told the beginning.
        [*(getattr(record, name) for name in names), record.status != 200 or record.first_byte_at is None]
        for record in rig.records
    ]
    return rig.transport.written, was_short, told


TEXT = st.sampled_from(["a", "word ", "\u00e4\u4e2d", '"error"', "data: [DONE]", "\n\n"])
EVENTS = st.one_of(
    TEXT.map(lambda text: event({"content": text})),
    TEXT.map(lambda text: event({"content": text})),
    TEXT.map(lambda text: event({"reasoning": text})),
    st.sampled_from(
        [
            event({"role": "assistant", "content": None}),
            event({}, "stop"),
            event({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}}]}),
            event({"tool_calls": [{"index": 0, "id": "y", "function": {"name": "g", "arguments": "{}"}}]}),
            event({}, "stop", usage={"prompt_tokens": 7, "completion_tokens": 3}),
            event({"content": "x"}, usage=None),
            b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\n',
            event({}, "stop", timings={"prompt_n": 5, "predicted_n": 2, "cache_n": 1}),
            b'data: {"choices":[],"prompt_progress":{"total":9,"cache":1}}\n\n',
            b'data: {"error":{"message":"no","code":500}}\n\n',
            b'error: {"message":"no","code":500}\n\n',
            b": ping\n\n",
            b"data: {broken\n\n",
            b"data: [DONE]\n\n",
        ]
    ),
)


@settings(max_examples=250, deadline=None)
@given(
    events=st.lists(EVENTS, max_size=7),
    is_done=st.booleans(),
    joined=st.lists(st.integers(1, 3), max_size=7),
    cuts=st.lists(st.integers(0, 1500), max_size=6),
    extra=st.sampled_from([b"", b"", b"", b"x", b"HTTP/1.1 200 OK\r\n\r\n"]),
    last=st.sampled_from([END, END, END, b"", b"0\r\ntrailer: x\r\n\r\n", b"zz\r\n"]),
    head=st.sampled_from(
        [
            HEAD,
            HEAD,
            HEAD,
            HEAD.replace(b"200 OK", b"500 Oh"),
            HEAD.replace(b"text/event-stream", b"text/plain"),
            HEAD.replace(b"Server: llama.cpp", b"Connection: close"),
        ]
    ),
    stream=st.booleans(),
    end=st.sampled_from(["", "closed", "left", "cancelled"]),
    engine=st.sampled_from(["", "LlamaServer"]),
)
def test_the_short_way_tells_and_counts_what_the_general_one_does(
    events: list[bytes],
    is_done: bool,
    joined: list[int],
    cuts: list[int],
    extra: bytes,
    last: bytes,
    head: bytes,
    stream: bool,
    end: str,
    engine: str,
) -> None:
    waiting = [*events, *([b"data: [DONE]\n\n"] if is_done else [])]
    frames: list[bytes] = []
    for count in [*joined, *[1] * len(waiting)]:
        if waiting:
            frames.append(frame(b"".join(waiting[:count])))
            del waiting[:count]
    answer = head + b"".join(frames) + last + extra
    at = [0, *sorted(cut for cut in cuts if cut < len(answer)), len(answer)]
    pieces = [answer[one:other] for one, other in pairwise(at) if one < other]
    short, is_short, its_records = asyncio.run(play(render(stream=stream, general=False), pieces, end, engine))
    general, is_general, records = asyncio.run(play(render(stream=stream, general=True), pieces, end, engine))
    assert is_short
    assert not is_general
    assert unframe(short) == unframe(general)
    assert its_records == records


WHOLE = [HEAD + frame(event({"content": "Hello"})), frame(b"data: [DONE]\n\n") + END]


async def _ask_again_and_again(count: int) -> Rig:
    rig = await make_rig()
    for _ in range(count):
        connection = await rig.send(render(stream=True, general=False))
        for piece in WHOLE:
            connection.data_received(piece)
    return rig


def test_requests_on_one_connection_are_told_apart_and_use_one_connection_to_the_engine() -> None:
    async def run() -> None:
        rig = await _ask_again_and_again(3)
        assert rig.transport.written.count(b"Hello") == 3
        assert rig.transport.written.count(b"HTTP/1.1 200 OK") == 3
        assert len(rig.engines.connections) == 1
        assert len(rig.records) == 3
        rig.check_rest()

    asyncio.run(run())


def test_a_head_that_is_known_is_parsed_no_more_until_the_table_changes() -> None:
    async def run() -> None:
        rig = await _ask_again_and_again(1)

        class NoParser:
            def feed_data(self, data: bytes) -> None:
                raise AssertionError("parsed")

        parser, rig.client.parser = rig.client.parser, cast(Any, NoParser())
        connection = await rig.send(render(stream=True, general=False, max_tokens=123456789 % 2000))
        assert rig.is_short
        for piece in WHOLE:
            connection.data_received(piece)
        rig.client.parser = parser
        # The key is gone: it is admitted anew, and isn't.
        table = rig.traffic.table
        targets = [target for each in table.targets.values() for target in each]
        rig.traffic.apply_table(build_table(Order(term=0, serial=1), table.models.values(), targets, []))
        rig.client.data_received(render(stream=True, general=False))
        assert b"HTTP/1.1 401" in rig.transport.written

    asyncio.run(run())


CHANGES: list[Callable[[bytes], bytes]] = [
    lambda request: request + b"x",
    lambda request: request[:-1],
    lambda request: request.replace(b"content-length: ", b"content-length: +"),
    lambda request: request.replace(b"content-length: ", b"content-length: 0x"),
    lambda request: request.replace(b"x-request-id: r\r\n", b"x-request-id: r\r\ntransfer-encoding: chunked\r\n"),
    lambda request: request.replace(b"x-request-id: r\r\n", b"x-request-id: r\r\n folded\r\n"),
    lambda request: request.replace(b"POST", b"PUT"),
    lambda request: request.replace(b"HTTP/1.1", b"HTTP/1.0"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_from_a_known_head_is_parsed(change: Callable[[bytes], bytes]) -> None:
    async def run() -> None:
        rig = await _ask_again_and_again(1)
        known = cast(Any, rig.client)._known
        assert known.find_body(render(stream=True, general=False)) is not None
        assert known.find_body(change(render(stream=True, general=False))) is None

    asyncio.run(run())


def test_a_head_is_not_learned_for_another_requests_that_came_in_the_same_read() -> None:
    async def run() -> None:
        rig = await make_rig()
        chat = render(stream=True, general=False)
        body = b'{"id":"nobody"}'
        head = b"POST /v1/cancel HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n"
        cancel = head % (KEY.encode(), len(body)) + body
        rig.client.data_received(cancel + chat)
        known = cast(Any, rig.client)._known
        assert known is None or known.find_body(cancel) is None
        rig.client.connection_lost(None)
        rig.check_rest()

    asyncio.run(run())


def test_a_client_that_stalls_in_a_stream_pauses_the_engine() -> None:
    async def run() -> None:
        rig = await make_rig()
        connection = await rig.send(render(stream=True, general=False))
        connection.data_received(WHOLE[0])
        assert rig.is_short
        rig.client.pause_writing()
        transport = cast(Transport, cast(Any, connection)._transport)
        assert transport.is_paused
        rig.client.resume_writing()
        assert not transport.is_paused
        connection.data_received(frame(event({"content": " there"})))
        connection.data_received(WHOLE[1])
        assert b" there" in rig.transport.written
        assert rig.transport.written.endswith(frame(b"data: [DONE]\n\n") + END)
        rig.check_rest()

    asyncio.run(run())


def test_an_engine_that_is_silent_too_long_fails_on_the_short_way_too() -> None:
    async def run() -> None:
        rig = await make_rig()
        connection = await rig.send(render(stream=True, general=False))
        connection.data_received(WHOLE[0])
        now = rig.client.now()
        rig.client.check_deadlines(now + 1)
        assert rig.is_short
        rig.client.check_deadlines(now + 11)
        assert b": keep-alive" in rig.transport.written
        rig.client.check_deadlines(now + 100_000)
        assert b"upstream_timeout" in rig.transport.written
        rig.check_rest()

    asyncio.run(run())


def test_a_key_at_its_limit_is_refused_and_not_counted_twice() -> None:
    async def run() -> None:
        rig = await make_rig()
        await rig.send(render(stream=True, general=False))
        other = Transport()
        second = Relay(
            rig.client.config, rig.client.server_state, rig.traffic, rig.engines, cast(Any, None), max_connections=100
        )
        second.connection_made(cast(asyncio.Transport, other))
        second.data_received(render(stream=True, general=False))
        assert b"HTTP/1.1 429" in other.written
        rig.client.connection_lost(None)
        rig.check_rest()

    asyncio.run(run())


@pytest.mark.parametrize("depth", [*range(150, 251, 10), *range(195, 206), *range(900, 1001)])
def test_a_request_is_handed_over_however_deeply_it_is_nested(depth: int) -> None:
    """A plain one is one for the general way, whose parser reads it from more frames."""
    levels = depth - 3  # the body, its messages and the message are the others
    room = "." * (2 * levels - 2)
    request = render(stream=True, general=False, messages=[{"role": "user", "content": "[" * 300, "extra": room}])
    request = request.replace(f'"{room}"'.encode(), b"[" * levels + b"]" * levels)

    async def run() -> None:
        rig = await make_rig()
        rig.client.data_received(request)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not (rig.is_short and depth > 200)
        assert rig.is_short or depth > 200
        rig.client.check_deadlines(rig.client.now() + 9)
        assert rig.client._answering is None or not rig.is_short  # pyright: ignore[reportPrivateUsage] # as above
        rig.client.connection_lost(None)
        rig.check_rest()

    asyncio.run(run())


async def _cancel(rig: Rig) -> None:
    rig.traffic.cancels.end(Cancel(id="r"), by_operator=True)


async def _leave(rig: Rig) -> None:
    rig.client.connection_lost(None)


async def _wait(rig: Rig) -> None:
    rig.client.check_deadlines(rig.client.now() + 9)


async def _lose_engine(rig: Rig) -> None:
    rig.engines.connections[-1].connection_lost(None)


async def _hear_something_else(rig: Rig) -> None:
    rig.engines.connections[-1].data_received(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")


@pytest.mark.parametrize("happen", [_cancel, _leave, _wait, _lose_engine, _hear_something_else])
def test_a_request_that_the_general_way_does_not_take_ends_alone_and_gives_all_back(
    happen: Callable[[Rig], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        rig = await make_rig()
        await rig.send(render(stream=True, general=False))
        assert rig.is_short
        monkeypatch.setattr(handing, "parse_chat", lambda _: invalid_request("not here"))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        await happen(rig)
        for _ in range(5):
            await asyncio.sleep(0)
        rig.check_rest()
        assert cast(Any, rig.traffic.cancels)._asked == {}
        assert rig.transport.written.startswith(b"HTTP/1.1 400")
        assert len(rig.records) == 1

    asyncio.run(run())


def test_one_that_waits_in_line_and_can_not_be_read_again_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        rig = await make_rig()
        monkeypatch.setattr(rig.traffic.lines, "enter_at_once", lambda *_: False)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        monkeypatch.setattr(handing, "parse_chat", lambda _: invalid_request("not here"))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        rig.client.data_received(render(stream=True, general=False))
        rig.check_rest()
        assert rig.transport.written.startswith(b"HTTP/1.1 400")

    asyncio.run(run())


def test_a_connection_whose_deadlines_fail_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Relay, now: float) -> None:
        raise AssertionError("a bug")

    async def run() -> None:
        rig = await make_rig()
        server = GatewayServer(rig.traffic, rig.engines, cast(Any, None))
        cast(Any, server)._state = rig.client.server_state
        await rig.send(render(stream=True, general=False))
        monkeypatch.setattr(Relay, "check_deadlines", fail)
        server.check_deadlines(0.0, rig.client.now())
        assert rig.transport.is_closed
        rig.client.connection_lost(None)
        rig.check_rest()

    asyncio.run(run())


def test_a_request_can_be_ended_whoever_is_refused_under_the_same_id() -> None:
    async def run() -> None:
        rig = await make_rig()
        await rig.send(render(stream=True, general=False))
        other = Transport()
        stranger = Relay(
            rig.client.config, rig.client.server_state, rig.traffic, rig.engines, cast(Any, None), max_connections=100
        )
        stranger.connection_made(cast(asyncio.Transport, other))
        stranger.data_received(render(stream=True, general=False).replace(KEY.encode(), b"sk-covey-0000000000000000"))
        assert b"HTTP/1.1 401" in other.written
        assert rig.traffic.cancels.end(Cancel(id="r", key="default/k")) == 1
        assert b"request_cancelled" in rig.transport.written
        rig.check_rest()

    asyncio.run(run())
