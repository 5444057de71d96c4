"""An event loop whose clock jumps to the next timer instead of waiting, and whose executors run at once.

What waits costs nothing, and the order of everything is the same in every run.
"""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Takes what is ready; when nothing is, the time that it was asked to wait has passed."""

    now_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everything waits for something that never comes")
            self.now_seconds += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """For `asyncio.Runner(loop_factory=VirtualLoop)`."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_seconds

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:
            future.set_exception(error)
        return future
