"""An event loop whose clock jumps to the next timer as soon as nothing else is to do: minutes pass in milliseconds.

For code that waits on timers, events and queues alone; what it hands to threads runs at once, in place. The order of
everything is the same in every run. A wait that nothing can end is reported instead of hanging.
"""

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Everybody waits for something that can't happen."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps, and never asks the kernel: instead of waiting it moves the clock."""

    jumped = 0.0
    on_turn: Callable[[], None] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.on_turn is not None:
            self.on_turn()
        if timeout is None:
            raise Deadlock("every task waits, and no timer is set")
        self.jumped += max(0.0, timeout)
        return []


class NumberedTask(asyncio.Task[T]):
    """Hashed by its number: a TaskGroup holds its tasks in a set, and cancels them in that set's order."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For `asyncio.Runner(loop_factory=VirtualTimeLoop)`."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._numbers = itertools.count(1)
        self.set_task_factory(self._create_numbered)

    def watch_turns(self, on_turn: Callable[[], None] | None) -> None:
        """Call this after every turn, when all that was ready has run."""
        self._jumping.on_turn = on_turn

    def _create_numbered(
        self, loop: asyncio.AbstractEventLoop, factory: Any, context: Context | None = None
    ) -> NumberedTask[Any]:
        return NumberedTask(factory, next(self._numbers), loop=loop, context=context)

    def time(self) -> float:
        return self._jumping.jumped

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
