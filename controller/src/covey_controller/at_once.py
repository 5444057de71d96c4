"""Several writes at a time, with a bound: what a plan asks for is hundreds of objects, and each write is a round trip.

It knows nothing of stores. What may run beside what is the caller's to say; a bound of one is one after the other, in
the order given, without a task of its own. Rejected: a task for each behind a semaphore (hundreds of tasks, of which
a failure would have to recall most).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from covey_api.kinds import ObjectKey

from covey_controller.reconcile.outcomes import (
    Action,
    CreateInstance,
    CreateNode,
    DeleteObject,
    HoldObject,
    UpdateInstance,
)


async def run_at_once(works: Sequence[Callable[[], Awaitable[None]]], most: int) -> None:
    """Each once, begun in this order, at most `most` at a time.

    After a failure none is begun any more; those under way come to their end, then the first failure in this order is
    raised. So what is known of an object is never a guess about a write that was cut off.
    """
    failures: dict[int, Exception] = {}
    waiting = iter(enumerate(works))

    async def work() -> None:
        for index, each in waiting:
            if failures:
                return
            try:
                await each()
            except Exception as error:  # raised below
                failures[index] = error

    if min(most, len(works)) <= 1:
        await work()
    else:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(most, len(works))):
                group.create_task(work())
    if failures:
        raise failures[min(failures)]


def split_actions(actions: Sequence[Action]) -> list[list[Action]]:
    """Runs of actions that don't depend on each other: of the same sort, in their order, no object twice.

    Whatever comes after another sort in the plan may count on it: a Placement is held before its Instance is made, an
    Instance is gone before its Placement is let go of.
    """
    runs: list[list[Action]] = []
    last: tuple[type[Action], str] | None = None
    keys: set[ObjectKey] = set()
    for action in actions:
        key = _key_of(action)
        sort = type(action), key.kind
        if sort != last or key in keys:
            runs.append([])
            keys.clear()
        last = sort
        keys.add(key)
        runs[-1].append(action)
    return runs


def _key_of(action: Action) -> ObjectKey:
    match action:
        case CreateInstance(item) | UpdateInstance(item) | HoldObject(item) | CreateNode(item):
            return item.key
        case DeleteObject(key):
            return key
