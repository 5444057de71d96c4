"""A simulated engine: loads for a while, then answers chat requests as a stream to the gateway's own protocol class."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from covey_simulator.loop import Process

_CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
_WORD = _CHUNK + b'{"content":"word "},"finish_reason":null}]}\n\n'
_LAST = _CHUNK + b'{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_DENIED = b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_LOADING = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_BEARER = re.compile(rb"authorization: Bearer ([^\r]+)\r\n")


@dataclass(eq=False, slots=True)
class Engine:
    """One engine process."""

    instance_id: str
    pid: int
    start_time: int
    port: int
    key: str
    ready_at: float
    taken: Mapping[str, int]
    """Bytes by pool, as stamped."""
    exit: asyncio.Future[int]
    """Its exit status, once it has ended."""
    transports: "list[EngineTransport]" = field(default_factory=list["EngineTransport"])
    held: list[Callable[[], None]] | None = None
    """While no byte passes between it and gateways: what they will hear of it when bytes pass again."""
    is_wedged: bool = False
    """It lives and listens, and generates nothing any more."""
    is_linked: bool = True
    """Of a driver: whether each of its donors has been reached, and listens."""
    ready_told_at: float | None = None
    """When a probe first completed."""
    ended_at: float | None = None

    @property
    def identity(self) -> str:
        return f"{self.pid}@{self.start_time}"

    @property
    def is_alive(self) -> bool:
        return not self.exit.done()

    def is_loaded(self, now: float) -> bool:
        return self.is_alive and self.is_linked and now >= self.ready_at

    @property
    def generates(self) -> bool:
        """Whether it has, and still would."""
        return self.is_alive and self.ready_told_at is not None and not self.is_wedged

    @property
    def in_flight(self) -> "list[EngineTransport]":
        return [transport for transport in self.transports if transport.is_answering]

    def end(self, status: int, now: float) -> None:
        if not self.is_alive:
            return
        self.exit.set_result(status)
        self.ended_at = now
        for transport in list(self.transports):
            transport.lose(ConnectionResetError("the engine ended"))


class EngineTransport(asyncio.Transport):
    """One connection from a gateway, at the engine's end too."""

    def __init__(self, engine: Engine, protocol: asyncio.Protocol, gateway: Process, random: Random) -> None:
        super().__init__()
        self.gateway = gateway
        self.is_answering = False
        self._engine = engine
        self._protocol = protocol
        self._random = random
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        engine.transports.append(self)

    def writelines(self, list_of_data: Any) -> None:
        request = b"".join(list_of_data)
        found = _BEARER.search(request)
        if found is None or found[1].decode() != self._engine.key:
            self._later(0.001, partial_data(self._protocol, _DENIED))
        elif not self._engine.is_loaded(self._loop.time()):
            self._later(0.001, partial_data(self._protocol, _LOADING))
        else:
            self.is_answering = True
            self._later(self._random.uniform(0.02, 0.3), self._begin)

    def _later(self, seconds: float, then: Callable[[], None]) -> None:
        self._timer = self._loop.call_later(seconds, self._unless_closed, then)

    def _unless_closed(self, then: Callable[[], None]) -> None:
        if self._is_closed or self._engine.is_wedged:
            return
        if self._engine.held is None:
            self.gateway.receive(then)
        else:
            self._engine.held.append(partial(self._unless_closed, then))

    def _begin(self) -> None:
        self._protocol.data_received(_HEAD + chunk(_WORD))
        self._later(self._random.choice((0.05, 0.5, 3.0, 8.0)), self._finish)

    def _finish(self) -> None:
        self.is_answering = False
        self._protocol.data_received(chunk(_LAST) + b"0\r\n\r\n")

    def lose(self, error: Exception | None) -> None:
        """The engine's end is gone."""
        if self._engine.held is None:
            self._end(error)
        else:
            self._engine.held.append(partial(self.lose, error))

    def abort(self) -> None:
        self._end(None)

    def close(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._shut()
            self._loop.call_soon(self.gateway.receive, lambda: self._protocol.connection_lost(error))

    def is_closing(self) -> bool:
        return self._is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def _shut(self) -> None:
        self._is_closed = True
        self.is_answering = False
        if self._timer is not None:
            self._timer.cancel()
        if self in self._engine.transports:
            self._engine.transports.remove(self)


def partial_data(protocol: asyncio.Protocol, data: bytes) -> Callable[[], None]:
    return lambda: protocol.data_received(data)


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)
