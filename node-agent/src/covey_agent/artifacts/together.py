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


async def fetch_together(downloader: Downloader, remotes: Mapping[str, Remote], tell: OnTransfer) -> dict[str, Path]:
    """The blob of each, by its key. What fails first ends the others: they go on from there the next time."""
    progress = Sum(sum(remote.size_bytes for remote in remotes.values()), tell)

    async def fetch(key: str) -> Path:
        remote = remotes[key]
        path = await downloader.download(remote, progress.part(key))
        progress.part(key)(Transfer(remote.size_bytes, remote.size_bytes, 0))
        return path

    return dict(zip(remotes, await do_together(fetch, tuple(remotes), AT_ONCE), strict=True))


async def do_together(work: Callable[[T], Awaitable[R]], items: Sequence[T], at_once: int) -> list[R]:
    """The result for each item, so many at a time; AgentError of what fails first, which ends the others."""
    permits = asyncio.Semaphore(at_once)

    async def do(item: T) -> R:
        async with permits:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(do(item)) for item in items]
    except* AgentError as failures:
        raise _first(failures) from failures
    return [task.result() for task in tasks]


def _first(failures: BaseExceptionGroup[AgentError]) -> AgentError:
    """The others were called off for it, or failed alike."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
