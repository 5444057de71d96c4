"""A process that serves, one of several: its table and its end come from its parent, what it has goes there."""

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Self

import msgspec
from covey_api.messages import Cancel, Demand
from covey_fleet_client.machine import observe_machine

from covey_gateway.cancels import NotPassedOn
from covey_gateway.composing import Stop, load_certificate, make_door
from covey_gateway.failures import StartError
from covey_gateway.fronts import Fronts
from covey_gateway.images import Images
from covey_gateway.limits import ORPHAN_DRAIN_SECONDS
from covey_gateway.options import Options
from covey_gateway.routing.access import choose_policy
from covey_gateway.routing.table import RoutingTable, parse_endpoints
from covey_gateway.seeing import begin_access_log, trace_requests
from covey_gateway.server import GatewayServer, bind_socket
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import Engines
from covey_gateway.workers import channel as messages
from covey_gateway.workers.channel import AnyMessage, Channel, render
from covey_gateway.workers.memory import Memory
from covey_gateway.workers.shared import share

# The parent hears at once of what is news, and so often of the rest.
REPORT_SECONDS = 1.0
# Changes that come together are told together.
_MIN_REPORT_SECONDS = 0.02
# Whoever asks for something at other processes has its answer by then, or none.
ANSWER_SECONDS = 5.0
_WAKE_BYTES = 4096

_log = logging.getLogger("covey.gateway")


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """What a worker is given: which one it is, and descriptors that it inherits."""

    column: int
    workers: int
    control: int
    memory: int
    wake: int
    """To read from: it may be its turn somewhere."""
    wakes: tuple[int, ...]
    """To write to, by column."""
    port: int
    listening: int | None = None
    """The one socket of all workers, where the kernel doesn't spread connections over several."""

    def render(self) -> str:
        return msgspec.json.encode(asdict(self)).decode()

    @classmethod
    def parse(cls, text: str) -> Self:
        return msgspec.json.decode(text, type=cls)


class ParentLink:
    """`apply` puts a table into force, `share` is told how many gateways there are; `machine`: as `observe_machine`
    says."""

    def __init__(
        self,
        channel: Channel,
        traffic: Traffic,
        apply: Callable[[RoutingTable], None],
        share: Callable[[int], None],
        stop: Stop,
        machine: str | None,
    ) -> None:
        self._share = share
        self._channel = channel
        self._traffic = traffic
        self._apply = apply
        self._stop = stop
        self._machine = machine
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[messages.Ended | messages.PassedOn]] = {}
        self._is_due = asyncio.Event()
        traffic.watch_news(self._is_due.set)
        traffic.cancels.pass_on = self._pass_on
        traffic.cancels.end_elsewhere = self._end_elsewhere

    async def prepare(self) -> bool:
        """Take what is in force, until told to serve. False: the parent is gone."""
        while (message := await self._channel.receive()) is not None:
            if isinstance(message, messages.Begin):
                return True
            self._take(message)
        return False

    def tell_serving(self) -> None:
        self._channel.send(render(messages.Serving()))

    async def run(self) -> None:
        """Hear and report until the parent is gone, then end."""
        async with asyncio.TaskGroup() as tasks:
            reporting = tasks.create_task(self._report())
            while (message := await self._channel.receive()) is not None:
                self._take(message)
            reporting.cancel()
            self._stop.request("the parent is gone", ORPHAN_DRAIN_SECONDS)

    def _take(self, message: AnyMessage) -> None:
        match message:
            case messages.Name():
                self._traffic.name_gateway(message.name)
            case messages.Gateways():
                self._share(message.count)
            case messages.Table():
                self._apply(parse_endpoints(message.endpoints, self._machine))
                self._is_due.set()
            case messages.StaticTable():
                from covey_gateway.table import parse_table  # YAML is nothing that a gateway of a fleet reads

                self._apply(parse_table(message.content.encode(), message.name))
                self._is_due.set()
            case messages.Drain():
                self._stop.request(message.why, message.seconds)
            case messages.End():
                count = self._traffic.cancels.end(message.cancel, by_operator=message.by_operator)
                self._channel.send(render(messages.Ended(number=message.number, count=count)))
            case messages.Ended() | messages.PassedOn():
                asked = self._asked.get(message.number)
                if asked is not None and not asked.done():
                    asked.set_result(message)
            case _:
                pass

    async def _ask(self, message: messages.End | messages.PassOn) -> messages.Ended | messages.PassedOn | None:
        """None: no answer came."""
        asked = self._asked[message.number] = asyncio.get_running_loop().create_future()
        self._channel.send(render(message))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asked
        except TimeoutError:
            return None
        finally:
            del self._asked[message.number]

    async def _end_elsewhere(self, cancel: Cancel, by_operator: bool) -> int:
        answer = await self._ask(messages.End(number=next(self._numbers), cancel=cancel, by_operator=by_operator))
        return answer.count if isinstance(answer, messages.Ended) else 0

    async def _pass_on(self, cancel: Cancel) -> int:
        answer = await self._ask(messages.PassOn(number=next(self._numbers), cancel=cancel))
        if not isinstance(answer, messages.PassedOn):
            raise NotPassedOn("no answer came in time")
        if answer.refusal:
            raise NotPassedOn(answer.refusal)
        return answer.gateways

    async def _report(self) -> None:
        """A demand as for a controller, whenever it changed; each time that it is alive."""
        before: Demand | None = None
        while True:
            is_news = self._is_due.is_set()
            self._is_due.clear()
            demand = self.observe()
            is_said = demand == before and not is_news
            self._channel.send(render(messages.Alive() if is_said else messages.Report(demand=demand, is_news=is_news)))
            before = demand
            await asyncio.sleep(_MIN_REPORT_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._is_due.wait()

    def observe(self) -> Demand:
        traffic = self._traffic
        return Demand(
            gateway="",
            address="",
            applied=traffic.observe_applied(),
            endpoints=traffic.observe_demand(),
            models=traffic.observe_models(),
        )


async def run_worker(options: Options) -> None:
    """Serve until asked to stop, or until the parent is gone."""
    place = WorkerPlace.parse(options.worker)
    certificate = load_certificate(options.tls)
    if place.listening is None:
        bound = bind_socket(options.host, place.port, is_shared=True)
    else:
        bound = socket.socket(fileno=place.listening)
    loop = asyncio.get_running_loop()
    stop = Stop(options.drain_seconds)
    stop.follow_signals()
    shared = share(Memory(place.memory, place.workers, place.column), place.wakes, loop.time)
    policy = choose_policy(options.host, options.insecure, options.cors_origins)
    traffic = Traffic(policy, loop.time, shared=shared)
    async with asyncio.TaskGroup() as tasks:
        fronts = Fronts(options.state / "gateway") if options.table is None else None
        engines = Engines(loop, tasks.create_task, fronts, (place.column, place.workers))
        server = GatewayServer(traffic, engines, Images(tasks.create_task, options.image_hosts))
        machine = None if options.remote or options.table is not None else observe_machine()
        link = ParentLink(
            await Channel.open(socket.socket(fileno=place.control)),
            traffic,
            lambda table: engines.forget(traffic.apply_table(table)),
            engines.share,
            stop,
            machine,
        )
        if not await link.prepare():
            raise StartError("the parent is gone")
        _follow_wakes(place.wake, traffic)
        background = [tasks.create_task(server.sweep())]
        if (log := begin_access_log(options.access_log, traffic, tasks.create_task, is_shared=True)) is not None:
            background.append(log)
        if options.otlp_endpoint:
            background.append(tasks.create_task(trace_requests(options.otlp_endpoint, traffic)))
        await server.start(bound, certificate and make_door(certificate, tasks))
        link.tell_serving()
        background.append(tasks.create_task(link.run()))
        await server.app.load()
        await stop.requested.wait()
        await server.drain(stop.drain_seconds)
        for task in background:
            task.cancel()


def _follow_wakes(wake: int, traffic: Traffic) -> None:
    """Another worker made room for what waits here."""
    os.set_blocking(wake, False)

    def look() -> None:
        with suppress(BlockingIOError):
            os.read(wake, _WAKE_BYTES)
        traffic.lines.look_again()

    asyncio.get_running_loop().add_reader(wake, look)
