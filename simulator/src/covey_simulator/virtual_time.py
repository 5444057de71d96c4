"""An event loop whose clock jumps to the next timer as soon as nothing else is to do: minutes pass in milliseconds.

For code that waits on timers, events and queues alone; what it hands to threads runs at once, in place. The order of
everything is the same in every run. A wait that nothing can end is reported instead of hanging.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")


# Timers of waits that ended in time; beyond this they are cleared away.
MAX_CANCELLED_TIMERS = 200


if TYPE_CHECKING:
    _Handle = asyncio.TimerHandle
else:
    _Handle = object  # nobody looks, and the base's own fields would have to be made and cleared


class Deadlock(Exception):
    """Everybody waits for something that can't happen."""


class Call(_Handle):
    """A callback that waits for its turn. Leaner than asyncio's: a run makes tens of thousands of them."""

    __slots__ = ("arguments", "callback", "context")

    def __init__(  # the base's would only set what is set here, under other names
        self, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context
    ) -> None:
        self.callback = callback
        self.arguments = arguments
        self.context = context

    def cancel(self) -> None:
        self.callback, self.arguments = _do_nothing, ()

    def cancelled(self) -> bool:
        return self.callback is _do_nothing

    def __repr__(self) -> str:
        return f"<Call {self.callback!r}>"


class Timer(Call):
    """One that waits for its time first."""

    __slots__ = ("loop", "time")

    def __init__(
        self,
        time: float,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        context: Context,
        loop: "VirtualTimeLoop",
    ) -> None:
        self.callback = callback
        self.arguments = arguments
        self.context = context
        self.time = time
        self.loop: VirtualTimeLoop | None = loop
        """That is to be told when it is cancelled; None once its time has come."""

    def cancel(self) -> None:
        if self.callback is not _do_nothing:
            self.callback, self.arguments = _do_nothing, ()
            if self.loop is not None:
                self.loop.count_cancelled()

    def when(self) -> float:
        return self.time


def _do_nothing() -> None:
    pass


class NumberedTask(asyncio.Task[T]):
    """Hashed by its number: a TaskGroup holds its tasks in a set, and cancels them in that set's order."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For `asyncio.Runner(loop_factory=VirtualTimeLoop)`.

    Its turns are the base's without sockets, signals and threads: what is ready runs, then timers that are due join,
    then the clock moves. The selector is there for the base's sake and is never asked.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._ready_calls: deque[Call] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._cancelled_timers = 0
        self._numbers = itertools.count(1)
        self._on_turn: Callable[[], None] | None = None
        self._is_stopping = False
        self.holds_back: Callable[[Call], bool] | None = None
        """Asked of each callback before it joins what is ready: whether it is kept back for now, by whoever asks."""
        self.set_task_factory(self._create_numbered)

    def watch_turns(self, on_turn: Callable[[], None] | None) -> None:
        """Call this after every turn, when all that was ready has run."""
        self._on_turn = on_turn

    def _create_numbered(
        self, loop: asyncio.AbstractEventLoop, factory: Any, context: Context | None = None
    ) -> NumberedTask[Any]:
        return NumberedTask(factory, next(self._numbers), loop=loop, context=context)

    if not TYPE_CHECKING:
        # Never; asked by each future that is made, and a builtin costs the least.
        get_debug = bool

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        call = Call(callback, args, copy_context() if context is None else context)
        if self.holds_back is None or not self.holds_back(call):
            self._ready_calls.append(call)
        return call

    def let_go(self, calls: Iterable[Call]) -> None:
        """What was kept back joins what is ready."""
        self._ready_calls.extend(calls)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        call = Timer(when, callback, args, copy_context() if context is None else context, self)
        heapq.heappush(self._timers, (when, next(self._numbers), call))
        return call

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        when = self._now + delay
        call = Timer(when, callback, args, copy_context() if context is None else context, self)
        heapq.heappush(self._timers, (when, next(self._numbers), call))
        return call

    def count_cancelled(self) -> None:
        """One of the timers was."""
        self._cancelled_timers += 1

    def stop(self) -> None:
        self._is_stopping = True
        super().stop()

    def _run_once(self) -> None:
        """All turns until it is stopped, where the base would ask for one after the other."""
        ready, timers = self._ready_calls, self._timers
        next_ready, next_timer = ready.popleft, partial(heapq.heappop, timers)
        self._is_stopping = False
        while not self._is_stopping:
            if self._on_turn is not None:
                self._on_turn()
            if self._cancelled_timers > MAX_CANCELLED_TIMERS:
                self._drop_cancelled()
            if not ready:
                self._wait_for_timer()
            now = self._now
            while timers and timers[0][0] <= now:
                timer = next_timer()[2]
                if timer.callback is _do_nothing:
                    self._cancelled_timers -= 1
                else:
                    timer.loop = None
                    ready.append(timer)
            for _ in range(len(ready)):  # what becomes ready by these waits for the next turn
                call = next_ready()
                callback = call.callback
                if callback is not _do_nothing:
                    try:
                        call.context.run(callback, *call.arguments)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        message = f"exception in {call!r}"
                        self.call_exception_handler({"message": message, "exception": error, "handle": call})

    def _wait_for_timer(self) -> None:
        """The clock moves to the next one."""
        timers = self._timers
        while timers and timers[0][2].callback is _do_nothing:
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        if not timers:
            raise Deadlock("every task waits, and no timer is set")
        if timers[0][0] > self._now:
            self._now = timers[0][0]

    def _drop_cancelled(self) -> None:
        self._timers[:] = [timer for timer in self._timers if timer[2].callback is not _do_nothing]
        heapq.heapify(self._timers)
        self._cancelled_timers = 0

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:
            future.set_exception(error)
        return future


def run_virtual(main: Coroutine[object, object, T]) -> T:
    """Run to its end in virtual time, which begins at zero."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
