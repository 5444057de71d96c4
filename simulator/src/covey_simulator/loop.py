"""The virtual loop with processes in it: one that is paused gets none of its callbacks until it goes on.

A callback belongs to the process whose context it runs in. Timers of a paused process do fire; what they wake is kept
back, as signals and packets are for a process that was stopped by SIGSTOP.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, cast

from covey_simulator.virtual_time import Call, VirtualTimeLoop

PROCESS: ContextVar["Process | None"] = ContextVar("process", default=None)
Dial = Callable[[Callable[[], asyncio.Protocol], int], Coroutine[Any, Any, tuple[asyncio.Transport, asyncio.Protocol]]]


class SimLoop(VirtualTimeLoop):
    """`dial`: how a connection to a port is opened."""

    dial: Dial

    def __init__(self) -> None:
        super().__init__()
        self._paused = 0

    def count_paused(self, change: int) -> None:
        """While nobody is paused, no callback is asked whose it is."""
        self._paused += change
        self.holds_back = _hold_back if self._paused else None

    async def create_connection(  # pyright: ignore[reportIncompatibleMethodOverride]  # what the gateway uses of it
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await self.dial(protocol_factory, port)


class Process:
    """One process: a TaskGroup in a context of its own. `kill` ends it wherever it stands; what it kept is on disk."""

    def __init__(self, name: str, body: Callable[["Process"], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self.is_paused = False
        self.is_dying = False
        self.backlog: list[Call] = []
        self.inbox: list[Callable[[], None]] = []
        """What arrived while it was paused."""
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self._body = body
        self._group: asyncio.TaskGroup | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), context=self.context)
        self.failure: BaseException | None = None

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._body(self)
        except BaseException as error:
            self.failure = error
            if isinstance(error, asyncio.CancelledError):
                raise

    @property
    def has_begun(self) -> bool:
        return self._group is not None

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        if self._group is None:
            raise RuntimeError(f"{self.name} has not begun")
        return self._group.create_task(coroutine, context=self.context)

    def receive(self, arrive: Callable[[], None]) -> None:
        """Something reaches it: now, or when it goes on; never, once it is being killed."""
        if self.is_paused:
            self.inbox.append(arrive)
        elif not self.is_dying:
            arrive()

    def pause(self) -> None:
        if not self.is_paused:
            self.is_paused = True
            running_loop().count_paused(1)

    def resume(self) -> None:
        if not self.is_paused:
            return
        self.is_paused = False
        loop = running_loop()
        loop.count_paused(-1)
        backlog, self.backlog = self.backlog, []
        loop.let_go(backlog)
        inbox, self.inbox = self.inbox, []
        for arrive in inbox:
            arrive()

    async def kill(self) -> None:
        self.is_dying = True
        self.resume()
        self._task.cancel()
        await asyncio.wait([self._task])


def _hold_back(call: Call) -> bool:
    process = call.context.get(PROCESS)
    if process is None or not process.is_paused:
        return False
    process.backlog.append(call)
    return True


def running_loop() -> SimLoop:
    return cast(SimLoop, asyncio.get_running_loop())


async def wait_until(holds: Callable[[], bool], step_seconds: float) -> None:
    """Look every so often: in virtual time it costs nothing."""
    while not holds():  # noqa: ASYNC110  (an event would have to be set by everything that it looks at)
        await asyncio.sleep(step_seconds)
