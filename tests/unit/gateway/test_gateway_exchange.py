"""One request as its client sees it, without a socket."""

import asyncio
import tracemalloc

from covey_gateway.exchange import Exchange
from covey_gateway.images import Images
from covey_gateway.routing.access import choose_policy
from covey_gateway.routing.table import Caller
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import Engines
from covey_gateway.wire.head import RequestHead, parse_head


class Client:
    """Takes what it is sent."""

    def __init__(self) -> None:
        self.written = b""

    address = ""

    def now(self) -> float:
        return 0.0

    def write(self, data: bytes) -> None:
        self.written += data

    def is_stalled(self) -> bool:
        return False

    def end_answer(self, *, keeps_alive: bool, is_read: bool) -> None:
        self.written += b"END"


def test_body_in_tiny_chunks_takes_no_more_memory_than_is_counted() -> None:
    asyncio.run(_send_tiny_chunks())


async def _send_tiny_chunks() -> None:
    client = Client()
    traffic = Traffic(choose_policy("127.0.0.1", insecure=False), clock=lambda: 0.0)
    engines = Engines(asyncio.get_running_loop(), asyncio.create_task)
    head = parse_head(b"POST", b"/v1/chat/completions", "1.1", [(b"host", b"localhost")])
    assert isinstance(head, RequestHead)
    images = Images(asyncio.create_task)
    exchange = Exchange(client, traffic, engines, images, head, Caller(), keeps_alive=True, is_chunked=True)
    exchange.begin()
    chunks = 200_000
    tracemalloc.start()
    for number in range(chunks):
        exchange.take_body(b"%02d" % (number % 100))
    taken_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken_bytes < 4 * 2 * chunks
    exchange.complete_body()
    assert b"400 Bad Request" in client.written
