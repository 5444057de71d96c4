"""All workers: started, told what is in force, and started again when they end."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from covey_api.messages import Cancel, Endpoints, Order

from covey_gateway.cancels import Cancels, NotPassedOn
from covey_gateway.failures import StartError
from covey_gateway.limits import LEFT_POOL_SECONDS
from covey_gateway.workers import channel as messages
from covey_gateway.workers.channel import AnyMessage, render
from covey_gateway.workers.hired import HiredWorker, make_wakes
from covey_gateway.workers.memory import Memory
from covey_gateway.workers.shared import clear_levels, clear_reservations
from covey_gateway.workers.worker import WorkerPlace

# Between the end of one and the start of the next: longer for those that end again and again.
AGAIN_SECONDS = 0.1
AGAIN_LONGEST_SECONDS = 30.0
# A worker that lived so long had no trouble with its start.
_SETTLED_SECONDS = 60.0
# After answers in flight have ended, until the process is gone: its log and its traces are written meanwhile.
_LEAVE_SECONDS = 8.0

_log = logging.getLogger("covey.gateway")

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Staff:
    """`arguments`: the gateway's own. `memory_file` is `memory`'s. `spawn` starts a task."""

    def __init__(
        self, arguments: tuple[str, ...], memory: Memory, memory_file: int, clock: Callable[[], float], spawn: Spawn
    ) -> None:
        self.on_news: Callable[[], None] = lambda: None
        self.cancels = Cancels()
        """By whose `pass_on` other gateways are told."""
        self._arguments = arguments
        self._memory = memory
        self._memory_file = memory_file
        self._clock = clock
        self._spawn = spawn
        self._wakes = make_wakes(memory.workers)
        self._port = 0
        self._listening: int | None = None
        self._name = b""
        self._table = b""
        self._gateways = b""
        self._order: Order | None = None
        self._workers: dict[int, HiredWorker] = {}
        """Those that run, by column."""
        self._keeping: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()

    @property
    def wakes(self) -> tuple[int, ...]:
        return tuple(write for _, write in self._wakes)

    def observe(self) -> Iterable[HiredWorker]:
        return tuple(self._workers.values())

    # What they are told.

    def tell_name(self, name: str) -> None:
        self._name = render(messages.Name(name=name))
        self._tell_all(self._name)

    def tell_table(self, table: Endpoints) -> None:
        self._table, self._order = render(messages.Table(endpoints=table)), table.order
        self._tell_all(self._table)

    def tell_static(self, content: str, name: str, order: Order) -> None:
        self._table, self._order = render(messages.StaticTable(content=content, name=name)), order
        self._tell_all(self._table)

    def tell_gateways(self, count: int) -> None:
        told = render(messages.Gateways(count=count))
        if told != self._gateways:
            self._gateways = told
            self._tell_all(told)

    def end_everywhere(self, cancel: Cancel, *, by_operator: bool) -> None:
        self._spawn(self._end_quietly(cancel, by_operator))

    async def _end_quietly(self, cancel: Cancel, by_operator: bool) -> None:
        await self._end(cancel, by_operator)

    async def _end(self, cancel: Cancel, by_operator: bool, excluded: int | None = None) -> int:
        asked = [
            worker.end_request(cancel, by_operator=by_operator)
            for worker in self._workers.values()
            if worker.column != excluded
        ]
        return sum(await asyncio.gather(*asked))

    def _tell_all(self, rendered: bytes) -> None:
        for worker in self._workers.values():
            worker.tell(rendered)

    # What they say.

    def _hear(self, worker: HiredWorker, message: AnyMessage) -> None:
        match message:
            case messages.Report(is_news=True):
                self.on_news()
            case messages.End():
                self._spawn(self._answer_end(worker, message))
            case messages.PassOn():
                self._spawn(self._answer_pass_on(worker, message))
            case _:
                pass

    async def _answer_end(self, worker: HiredWorker, asked: messages.End) -> None:
        count = await self._end(asked.cancel, asked.by_operator, worker.column)
        worker.tell(render(messages.Ended(number=asked.number, count=count)))

    async def _answer_pass_on(self, worker: HiredWorker, asked: messages.PassOn) -> None:
        try:
            answer = messages.PassedOn(number=asked.number, gateways=await self.cancels.pass_on(asked.cancel))
        except NotPassedOn as error:
            answer = messages.PassedOn(number=asked.number, gateways=0, refusal=str(error))
        worker.tell(render(answer))

    # Their lives.

    async def start(self, port: int, listening: int | None) -> None:
        """All of them, until each serves. `listening`: the socket of all. StartError where one can't."""
        self._port, self._listening = port, listening
        first = [asyncio.get_running_loop().create_future() for _ in range(self._memory.workers)]
        self._keeping = [self._spawn(self._keep(column, served)) for column, served in enumerate(first)]
        await asyncio.gather(*first)

    async def _keep(self, column: int, served: asyncio.Future[None]) -> None:
        """One after the other in this column, until cancelled. `served`: the first one does, or can't."""
        delay = AGAIN_SECONDS
        while not self._ending.is_set():
            began_at = self._clock()
            words = await self._run_one(column, served)
            if not served.done():
                served.set_exception(StartError(f"worker {column} {words} before it served"))
                return
            is_reserved = clear_levels(self._memory, column)
            self._workers.pop(column, None)
            self.on_news()
            self._wake_all()
            if self._ending.is_set():
                return
            delay = (
                AGAIN_SECONDS if self._clock() - began_at > _SETTLED_SECONDS else min(delay * 2, AGAIN_LONGEST_SECONDS)
            )
            pause = max(delay, LEFT_POOL_SECONDS if is_reserved else 0.0)
            _log.error("worker %d %s: another one is started in %.1f s, the others serve", column, words, pause)
            if is_reserved:
                await self._pause(LEFT_POOL_SECONDS)
                clear_reservations(self._memory, column)
                self._wake_all()
            await self._pause(max(0.0, delay - (LEFT_POOL_SECONDS if is_reserved else 0.0)))

    async def _pause(self, seconds: float) -> None:
        """Shorter where all end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    async def _run_one(self, column: int, served: asyncio.Future[None]) -> str:
        """How it ended."""
        worker = HiredWorker(column, self._clock, self._hear)
        wake = self._wakes[column][0]

        def make_place(control: int) -> str:
            own = (control, self._memory_file, wake, self.wakes, self._port, self._listening)
            return WorkerPlace(column, self._memory.workers, *own).render()

        inherited = (self._memory_file, wake, *self.wakes)
        if self._listening is not None:
            inherited = (*inherited, self._listening)
        try:
            await worker.start(self._arguments, make_place, inherited)
        except OSError as error:
            return f"can't be started: {error.strerror or error}"
        try:
            self._workers[column] = worker
            worker.begin(tuple(each for each in (self._name, self._gateways, self._table) if each), self._order)
            if self._ending.is_set():
                worker.kill()
            telling = self._spawn(_tell_served(worker, served))
            code = await worker.follow()
            telling.cancel()
        finally:
            worker.kill()
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def _wake_all(self) -> None:
        for write in self.wakes:
            with suppress(OSError):
                os.write(write, b"\0")

    async def end(self, why: str, seconds: float) -> None:
        """Let all of them end what is due within `seconds`; end those that don't."""
        self._ending.set()
        self._tell_all(render(messages.Drain(seconds=seconds, why=why)))
        _, late = await asyncio.wait(self._keeping, timeout=seconds + _LEAVE_SECONDS)
        for worker in self.observe():
            _log.error("worker %d did not end in time", worker.column)
            worker.kill()
        if late:
            await asyncio.wait(late)


async def _tell_served(worker: HiredWorker, served: asyncio.Future[None]) -> None:
    await worker.is_serving.wait()
    if not served.done():
        served.set_result(None)
