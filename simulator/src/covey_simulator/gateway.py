"""A gateway's own logic: the fleet link, traffic, exchanges, deliveries and connections to engines; no sockets.

Clients speak to an `Exchange` as the relay's connection does; engines are reached through the loop's `dial`.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from covey_fleet_client.backoff import Backoff
from covey_fleet_client.join import Admission
from covey_gateway.exchange import Exchange
from covey_gateway.fleet import FleetLink
from covey_gateway.images import Images
from covey_gateway.kept_table import KeptTable
from covey_gateway.limits import SWEEP_SECONDS
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.table import Caller, RoutingTable, parse_endpoints
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import Engines
from covey_gateway.wire.head import RequestHead

from covey_simulator.loop import Process, running_loop
from covey_simulator.network import SimFleet

HEAD = RequestHead(b"POST", b"/v1/chat/completions", b"localhost", None, None, "request", 0, expects_continue=False)

IMPATIENT_HEAD = replace(HEAD, hold_seconds=0)


class SimLink(FleetLink):
    """The real link, on the simulated wire: it has joined already."""

    def __init__(
        self, fleet: SimFleet, traffic: Traffic, engines: Engines, folder: Path, name: str, on_table: Callable[[], None]
    ) -> None:
        def apply(table: RoutingTable) -> None:
            engines.forget(traffic.apply_table(table))
            on_table()

        kept = KeptTable(folder)
        super().__init__(traffic, apply, kept, "", Admission(), name, f"http://{name}", "")
        if saved := kept.load():
            apply(parse_endpoints(saved, ""))
        self._fleet = fleet

    async def _connect(self, backoff: Backoff) -> None:
        await self.serve(self._fleet, backoff)


@dataclass(eq=False, slots=True)
class Request:
    """One client's request, as it sees it."""

    model: str
    asked_at: float
    written: list[bytes] = field(default_factory=list[bytes])
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def address(self) -> str:
        return ""

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_stalled(self) -> bool:
        return False

    def end_answer(self, *, keeps_alive: bool, is_read: bool) -> None:
        self.answered.set()

    @property
    def outcome(self) -> str:
        """`200`, or the status with the error's code, or `200 cut` when the stream ended in an error."""
        text = b"".join(self.written)
        status = text[9:12].decode()
        body = text.partition(b"\r\n\r\n")[2]
        if status != "200":
            return f"{status} {json.loads(body)['error']['code']}"
        return "200 cut" if b'"error"' in body else "200"


class Gateway:
    """One gateway process."""

    def __init__(self, name: str, folder: Path, fleet: SimFleet, on_table: Callable[[], None]) -> None:
        self.name = name
        self.disturbed_at = 0.0
        self.process = Process(f"gateway {name}", self._run)
        loop = running_loop()
        self.traffic = Traffic(AccessPolicy(needs_local_origin=False, needs_key=False), loop.time)
        # No other process of this name began at this moment; a random one would be in the trace.
        self.traffic.accounts.boot = str(loop.time())
        self.engines = Engines(loop, self.process.spawn)
        self._held: list[Exchange] = []
        self._link = SimLink(fleet, self.traffic, self.engines, folder, name, on_table)

    async def _run(self, process: Process) -> None:
        process.spawn(self._sweep())
        await self._link.run()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = asyncio.get_running_loop().time()
            self.traffic.look_for_silent()
            self.engines.close_idle(now)
            self._held = [each for each in self._held if not each.is_over]
            for each in self._held:
                each.check_deadlines(now)

    def ask(self, request: Request, *, wants_stream: bool, waits: bool = True) -> Exchange:
        """A client's request arrives. `waits`: it may be held."""
        body = _render_body(request.model, wants_stream=wants_stream)
        head = HEAD if waits else IMPATIENT_HEAD
        exchange = Exchange(
            request,
            self.traffic,
            self.engines,
            Images(asyncio.create_task),
            head,
            Caller(),
            keeps_alive=True,
            is_chunked=True,
        )
        if waits:
            self._held.append(exchange)
        exchange.begin()
        exchange.take_body(body)
        exchange.complete_body()
        return exchange


@cache
def _render_body(model: str, *, wants_stream: bool) -> bytes:
    """A run has a handful of models, and asks each of them hundreds of times."""
    messages = [{"role": "user", "content": "hi"}]
    return json.dumps({"model": model, "stream": wants_stream, "messages": messages}).encode()
