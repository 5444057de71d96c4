"""One worker as its parent has it: a process, what it was told, and what it says."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable

from covey_api.messages import Cancel, Demand, Order

from covey_gateway.workers import channel as messages
from covey_gateway.workers.channel import AnyMessage, Channel, render

# A worker says every second that it is alive: one that has been silent for so long serves nobody, and is ended.
SILENT_SECONDS = 30.0
# Of one that seems silent since this process itself didn't run (it was stopped, the machine slept): how much too late
# its deadline is looked at then, and how long what it has said, or says when it wakes, may take to be read.
_LATE_SECONDS = 0.25
_AGAIN_SECONDS = 5.0
# What it takes to start on a busy machine.
START_SECONDS = 120.0
# How long the others may take to look for a request that is to be ended.
_END_SECONDS = 2.0


class HiredWorker:
    """`clock` is monotonic. `on_message`: what it says, but for what is kept here."""

    def __init__(
        self, column: int, clock: Callable[[], float], on_message: Callable[["HiredWorker", AnyMessage], None]
    ) -> None:
        self.column = column
        self.is_serving = asyncio.Event()
        self.applied: Order | None = None
        self.report: Demand | None = None
        self.reported_at = 0.0
        self._clock = clock
        self._on_message = on_message
        self._channel: Channel | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._number = 0
        self._ends: dict[int, asyncio.Future[int]] = {}

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    async def start(
        self, arguments: tuple[str, ...], make_place: Callable[[int], str], inherited: tuple[int, ...]
    ) -> None:
        """`make_place`: what it is told of itself, by the descriptor of its end of the channel. OSError."""
        own, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "covey_gateway", *arguments, "--worker", make_place(theirs.fileno())),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(*inherited, theirs.fileno()),
                )
            self._channel = await Channel.open(own)
        except BaseException:
            own.close()
            raise

    def tell(self, rendered: bytes) -> None:
        if self._channel is not None:
            self._channel.send(rendered)

    def begin(self, told: tuple[bytes, ...], applied: Order | None) -> None:
        """It serves once it has heard all of this; `applied`: the table in it."""
        for each in (*told, render(messages.Begin())):
            self.tell(each)
        self.applied = applied

    async def follow(self) -> int:
        """Until it has ended; its exit code."""
        if self._process is None or self._channel is None:
            raise AssertionError("a worker is followed that was not started")
        try:
            while (message := await self._receive(self._channel)) is not None:
                self._take(message)
        except TimeoutError:
            self.kill()
        code = await self._process.wait()
        self._channel.close()
        self.report = None
        for asked in self._ends.values():
            if not asked.done():
                asked.set_result(0)
        return code

    async def _receive(self, channel: Channel) -> AnyMessage | None:
        """TimeoutError: it says nothing."""
        seconds = SILENT_SECONDS if self.is_serving.is_set() else START_SECONDS
        due = self._clock() + seconds
        reading = asyncio.ensure_future(channel.receive())
        try:
            done, _ = await asyncio.wait((reading,), timeout=seconds)
            if not done and self._clock() - due > _LATE_SECONDS:
                done, _ = await asyncio.wait((reading,), timeout=_AGAIN_SECONDS)
            if not done:
                raise TimeoutError
            return reading.result()
        finally:
            reading.cancel()

    def _take(self, message: AnyMessage) -> None:
        match message:
            case messages.Serving():
                self.is_serving.set()
            case messages.Report():
                self.report, self.reported_at = message.demand, self._clock()
                self.applied = message.demand.applied or self.applied
            case messages.Ended():
                asked = self._ends.get(message.number)
                if asked is not None and not asked.done():
                    asked.set_result(message.count)
                return
            case _:
                pass
        self._on_message(self, message)

    async def end_request(self, cancel: Cancel, *, by_operator: bool) -> int:
        """How many it ended."""
        self._number += 1
        number = self._number
        asked = self._ends[number] = asyncio.get_running_loop().create_future()
        self.tell(render(messages.End(number=number, cancel=cancel, by_operator=by_operator)))
        try:
            async with asyncio.timeout(_END_SECONDS):
                return await asked
        except TimeoutError:
            return 0
        finally:
            del self._ends[number]

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


def make_wakes(workers: int) -> tuple[tuple[int, int], ...]:
    """A pipe each, to read and to write."""
    pipes = tuple(os.pipe() for _ in range(workers))
    for pair in pipes:
        for each in pair:
            os.set_blocking(each, False)
    return pipes
