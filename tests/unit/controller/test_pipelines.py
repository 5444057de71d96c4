"""Many calls at once on one connection of the controller: keyless peers may send them, and none may be kept."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from covey_api.messages import CertificateRole
from covey_controller.serving.members import MAX_OF_ONE_MEMBER, Members
from covey_controller.serving.protocol import MAX_PIPELINED, BoundedProtocol
from uvicorn.config import Config
from uvicorn.server import ServerState

ONE = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 1) if name in ("peername", "sockname") else default

    def is_closing(self) -> bool:
        return self.is_aborted

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


async def never_answer(scope: object, receive: object, send: object) -> None:
    await asyncio.sleep(3600)


async def send(content: bytes) -> tuple[BoundedProtocol, Wire]:
    config = Config(cast("Any", never_answer), interface="asgi3", lifespan="off", log_config=None)
    config.load()
    state, wire = ServerState(), Wire()
    protocol = BoundedProtocol(config, state, {})
    protocol.connection_made(wire)
    protocol.data_received(content)
    protocol.connection_lost(None)
    for task in state.tasks:
        task.cancel()
    return protocol, wire


def test_no_more_calls_than_a_few_wait_on_one_connection() -> None:
    protocol, wire = asyncio.run(send(ONE * 10_000))
    assert wire.is_aborted
    assert len(protocol.pipeline) == MAX_PIPELINED


def test_a_few_calls_at_once_are_taken() -> None:
    protocol, wire = asyncio.run(send(ONE * (MAX_PIPELINED + 1)))
    assert not wire.is_aborted
    assert len(protocol.pipeline) == MAX_PIPELINED


def test_a_members_oldest_connection_makes_room_for_its_next_and_for_nobody_elses() -> None:
    members, ended = Members(), list[str]()

    def begin(name: str, number: int) -> Callable[[], None]:
        return members.enter(CertificateRole.AGENT, name, lambda: ended.append(f"{name}{number}"))

    leaves = [begin("a", number) for number in range(MAX_OF_ONE_MEMBER)]
    begin("b", 0)
    assert ended == []
    begin("a", 100)
    assert ended == ["a0"]
    leaves[0]()  # its end is told late
    leaves[1]()
    begin("a", 101)
    assert ended == ["a0"]
    begin("a", 102)
    assert ended == ["a0", "a2"]
