"""A gateway on a real socket in this process, engines that follow a script, and a client that speaks raw HTTP."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from covey_api.messages import ClientKey, ModelState, Order, ServedModel
from covey_gateway.fronts import Fronts
from covey_gateway.images import Images
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.table import RoutingTable, Target, build_table, parse_key
from covey_gateway.server import GatewayServer, bind_socket
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import Engines
from kit.servers import stop_accepting

LOOPBACK = AccessPolicy(needs_local_origin=True, needs_key=False)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: http://evil\r\n"
    b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
)
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def token(text: str, **choice: Any) -> bytes:
    one = {"index": 0, "delta": {"content": text}, "finish_reason": None} | choice
    content = {"id": "c1", "created": 1, "object": "chat.completion.chunk", "model": "m", "choices": [one]}
    return b"data: " + json.dumps(content).encode() + b"\n\n"


@dataclass
class Call:
    """One request as an engine got it."""

    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def content(self) -> dict[str, Any]:
        return json.loads(self.body)

    async def write(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def stream(self, *texts: str) -> None:
        """A whole answer in tokens."""
        await self.write(STREAM_HEAD, *(chunk(token(text)) for text in texts), chunk(DONE), LAST_CHUNK)

    async def refuse(self, status: int, body: bytes) -> None:
        await self.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))

    def reset(self) -> None:
        self.writer.transport.abort()

    async def wait_gone(self, timeout_seconds: float = 10) -> float:
        """Seconds until the gateway closed the connection; TimeoutError if it doesn't."""
        start = asyncio.get_running_loop().time()
        async with asyncio.timeout(timeout_seconds):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                pass
        return asyncio.get_running_loop().time() - start


Script = Callable[[Call], Awaitable[None]]


async def say_hello(call: Call) -> None:
    await call.stream("Hel", "lo")


@dataclass
class ScriptedEngine:
    """Answers each request by its script; connections are kept open unless the script closes them."""

    script: Script = say_hello
    calls: list[Call] = field(default_factory=list[Call])
    connections: int = 0
    open_connections: int = 0
    port: int = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop_accepting(self._server)
        for call in self.calls:
            call.writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                call = Call(head, await reader.readexactly(length), reader, writer)
                self.calls.append(call)
                await self.script(call)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open_connections -= 1
            writer.transport.abort()

    def target(self, name: str = "", **changes: Any) -> Target:
        return target(self.port, name, **changes)


def target(port: int, name: str = "", *, key: str = "engine-key", slots: int = 4, engine: str = "") -> Target:
    return Target(
        id=name or f"i-{port}",
        instance_id=name or f"i-{port}",
        namespace="default",
        model="m",
        host="127.0.0.1",
        port=port,
        key=key,
        slots=slots,
        weight=1,
        context_tokens=2048,
        confirmed=True,
        engine=engine,
    )


MODEL = ServedModel(namespace="default", name="m", aliases=("gpt-4o",), tasks=("Chat",), state=ModelState.READY)


@dataclass
class Gateway:
    traffic: Traffic
    engines: Engines
    server: GatewayServer
    port: int
    serial: int = 0

    def route(
        self, *targets: Target, models: tuple[ServedModel, ...] = (MODEL,), keys: tuple[ClientKey, ...] = ()
    ) -> None:
        self.serial += 1
        order = Order(term=0, serial=self.serial)
        self.apply(build_table(order, models, targets, [parse_key(key) for key in keys]))

    def apply(self, table: RoutingTable) -> None:
        self.engines.forget(self.traffic.apply_table(table))

    def pass_time(self, seconds: float) -> None:
        """Check deadlines as if that much time had passed."""
        self.server.check_deadlines(0.0, asyncio.get_running_loop().time() + seconds)

    @property
    def in_flight(self) -> int:
        return sum(one.in_flight for one in self.traffic.observe_demand())


@asynccontextmanager
async def running_gateway(
    *targets: Target,
    policy: AccessPolicy = LOOPBACK,
    is_routed: bool = True,
    send_bytes: int = 0,
    fronts: Fronts | None = None,
    make_images: Callable[..., Images] = Images,
) -> AsyncGenerator[Gateway]:
    """Routes model `m` to the targets, unless `is_routed` is false: then it has no table yet.

    `send_bytes`: how much the kernel takes for a client that doesn't read; 0 leaves that to the kernel.
    """
    loop = asyncio.get_running_loop()
    traffic = Traffic(policy, loop.time)
    bound = bind_socket("127.0.0.1", 0)
    if send_bytes:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)  # each connection inherits it
    async with asyncio.TaskGroup() as tasks:
        engines = Engines(loop, tasks.create_task, fronts)
        server = GatewayServer(traffic, engines, make_images(tasks.create_task))
        gateway = Gateway(traffic, engines, server, bound.getsockname()[1])
        if is_routed:
            gateway.route(*targets)
        await server.start(bound)
        try:
            yield gateway
        finally:
            await server.drain(0)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.content["error"]

    @property
    def events(self) -> list[Any]:
        """Data of the stream's events; `[DONE]` as text."""
        data = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [one.decode() if one == b"[DONE]" else json.loads(one) for one in data]

    @property
    def text(self) -> str:
        return "".join(
            choice["delta"].get("content") or ""
            for event in self.events
            if event != "[DONE]"
            for choice in event["choices"]
        )


class RawClient:
    """One connection; `ask` sends a chat request, `read_answer` reads one answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, *headers: str, **fields: Any) -> None:
        await self.send(request(*headers, **fields))

    async def read_head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(60):
            head = await self.reader.readuntil(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")[:-2]
        return int(status.split()[1]), dict(line.split(": ", 1) for line in lines)

    async def read_chunk(self) -> bytes:
        async with asyncio.timeout(60):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def read_answer(self) -> Answer:
        status, headers = await self.read_head()
        async with asyncio.timeout(60):
            if status == 204:
                body = b""
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            elif headers.get("transfer-encoding") == "chunked":
                body = b""
                while piece := await self.read_chunk():
                    body += piece
            else:
                body = await self.reader.read()
        return Answer(status, headers, body)

    async def is_closed(self, timeout_seconds: float = 30) -> bool:
        """Whether the gateway has closed the connection without another byte."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def leave(self) -> None:
        self.writer.transport.abort()


def request(*headers: str, **fields: Any) -> bytes:
    content = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]} | fields
    return raw_request(json.dumps(content).encode(), *headers)


def raw_request(body: bytes, *headers: str) -> bytes:
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


@asynccontextmanager
async def connected(gateway: Gateway) -> AsyncGenerator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**24)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


async def asked(gateway: Gateway, *headers: str, **fields: Any) -> Answer:
    async with connected(gateway) as client:
        await client.ask(*headers, **fields)
        return await client.read_answer()


async def eventually(is_so: Callable[[], bool], timeout_seconds: float = 60) -> None:
    for _ in range(int(timeout_seconds / 0.01)):
        if is_so():
            return
        await asyncio.sleep(0.01)
    assert is_so(), f"not within {timeout_seconds} s"
