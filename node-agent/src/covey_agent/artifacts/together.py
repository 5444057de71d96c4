"""Several files that are of use only together: fetched a few at a time, with one progress over all of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.download import Downloader
from covey_agent.ports import AgentError, OnTransfer, Transfer

T = TypeVar("T")
R = TypeVar("R")

# More connections to one host gain nothing that these don't, and hold up other downloads.
AT_ONCE = 3


class Sum:
    """One progress over several transfers."""

    def __init__(self, total_bytes: int, tell: OnTransfer) -> None:
        self._total_bytes = total_bytes
        self._tell = tell
        self._under_way: dict[str, Transfer] = {}

    def part(self, key: str) -> OnTransfer:
        def tell_part(transfer: Transfer) -> None:
            self._under_way[key] = transfer
            parts = self._under_way.values()
            done_bytes = sum(each.done_bytes for each in parts)
            rate = sum(each.bytes_per_second for each in parts if each.done_bytes < each.total_bytes)
            self._tell(Transfer(done_bytes, self._total_bytes, rate))

        return tell_part


async def fetch_together(
    downloader: Downloader, remotes: Mapping[str, Remote], tell: OnTransfer, *, is_elsewhere: bool = True
) -> dict[str, Path]:
    """The blob of each, by its key. What fails first ends the others: they go on from there the next time.

    `is_elsewhere`: false where nobody else had them a moment ago."""
    progress = Sum(sum(remote.size_bytes for remote in remotes.values()), tell)

    async def fetch(key: str) -> Path:
        remote = remotes[key]
        path = await downloader.download(remote, progress.part(key), is_elsewhere=is_elsewhere)
        progress.part(key)(Transfer(remote.size_bytes, remote.size_bytes, 0))
        return path

    return dict(zip(remotes, await do_together(fetch, tuple(remotes), AT_ONCE), strict=True))


async def do_together(work: Callable[[T], Awaitable[R]], items: Sequence[T], at_once: int) -> list[R]:
    """The result for each item, so many at a time; the error of what fails, which ends the others."""
    permits = asyncio.Semaphore(at_once)

    async def do(item: T) -> R:
        async with permits:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(do(item)) for item in items]
    except ExceptionGroup as failures:
        # One stands for all: the others were called off for it, or failed alike. Words before a disk's errors, and
        # those before what nobody expects.
        found = failures.exceptions
        ranks = {id(each): (not isinstance(each, AgentError), not isinstance(each, OSError)) for each in found}
        raise min(found, key=lambda each: ranks[id(each)]) from failures
    return [task.result() for task in tasks]
