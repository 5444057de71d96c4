"""An event loop whose clock jumps to the next timer as soon as nothing else is to do: minutes pass in milliseconds.

For code that waits on timers, events and queues alone. A wait that nothing can end is reported instead of hanging.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Everybody waits for something that can't happen."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps: instead of waiting it moves the clock."""

    jumped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock("every task waits, and no timer is set")
        self.jumped += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.jumped


def run_virtual(main: Coroutine[object, object, T]) -> T:
    """Run to its end in virtual time, which begins at zero."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
