"""What TaskGroups leave to their users: cancellations that must not be lost, and errors wrapped in groups of groups.

Up to Python 3.12 a TaskGroup whose child fails swallows a cancellation that comes in the same moment, and leaves the
count of cancellations of its task too high. A loop that goes on after `except*` would then never end. In a task of its
own the work may do either: the task that waits for it was cancelled all the same. Rejected: asking `Task.cancelling()`
after each `except*`, which that count makes wrong.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


async def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """The work's result. When this task is cancelled: the work is too, and then this ends, whatever it returns."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        await asyncio.wait([task])
    return task.result()


def flatten_errors(group: BaseExceptionGroup[E]) -> list[E]:
    """The errors of nested groups, in order; there is at least one."""
    found: list[E] = []
    for error in group.exceptions:
        found += flatten_errors(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
