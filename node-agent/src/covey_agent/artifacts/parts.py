"""A large file by several connections at once, each for a part of it: where a server gives one connection less than the
line has, which is what most do.

    1. the first connection asks for the first part that is missing
    2. a server that sends the whole file instead, or gives nothing by which parts of two files could be told apart (a
       strong ETag, or a date), is read by that one connection alone
    3. others join in while any part is missing, and this process has connections to spare
    4. one that fails waits and tries again; after two failures without a byte, or at once where it is asked for a long
       pause, it leaves its part to the others, and there is one connection less from then on: it was one too many. The
       last one's failure is the try's: who called waits, and begins anew with what is there
    5. an answer that is of another file ends all of them, and what is there is dropped

Parts are short beside the file, and taken in order: so what is there is hashed as it comes, while it is still in
memory, and what a kill leaves has few holes. Rejected: as many long parts as there are connections (all but the first
would be read again from the disk for their hash), a file for each part (twice the disk), other nodes by several
connections (one has all that the line gives).
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import httpx
from covey_api.reasons import FailureCause

from covey_agent.artifacts.body import (
    FileChanged,
    Remote,
    begin_whole,
    changed,
    is_part,
    read_validators,
    watch_body,
    wrong_size,
)
from covey_agent.artifacts.disk import run_to_end
from covey_agent.artifacts.flight import Meter
from covey_agent.artifacts.partial import CHUNK_BYTES, PartialFile
from covey_agent.artifacts.web import Transient, Web
from covey_agent.ports import AgentError

# One connection to a fast server is slower for its first seconds than this takes.
SPLIT_BYTES = 64 * 1024 * 1024
# What most servers give to one address without a complaint.
AT_ONCE = 4
# A part is one request, with a hub two: it must take longer than those. One of a small file is small, so that all
# connections end at about the same time.
LEAST_PART_BYTES = 16 * 1024 * 1024
MOST_PART_BYTES = 128 * 1024 * 1024
_PARTS = 64
# In a row, without a byte, beside others that get some.
_FAILURES = 2


def is_worth_splitting(partial: PartialFile, size_bytes: int) -> bool:
    """Also what was split before: its holes are filled, and what lies between them isn't fetched again."""
    return partial.has_holes or size_bytes - partial.there_bytes >= SPLIT_BYTES


async def bring_parts(web: Web, remote: Remote, partial: PartialFile, meter: Meter) -> None:
    """As much as comes. Transient: not all did, and another try may do; AgentError, OSError of this disk."""
    transfer = _Parts(web, remote, partial, meter)
    try:
        await transfer.run()
    except ExceptionGroup as failures:
        # Its tasks make no groups of their own.
        found = failures.exceptions
        worst = next((each for each in found if isinstance(each, FileChanged)), found[0])
        if isinstance(worst, FileChanged):
            # Only now that nobody writes to it any more.
            partial.start_over()
        raise worst from failures
    finally:
        await transfer.hash_what_is_there()


@dataclass(slots=True, eq=False)
class _Part:
    at: int
    """The next byte of it."""
    end: int
    kept: int = field(init=False)
    """All of it before this is there."""

    def __post_init__(self) -> None:
        self.kept = self.at


class _Parts:
    """One try."""

    def __init__(self, web: Web, remote: Remote, partial: PartialFile, meter: Meter) -> None:
        self._web = web
        self._remote = remote
        self._partial = partial
        self._meter = meter
        self._part_bytes = min(max(remote.size_bytes // _PARTS, LEAST_PART_BYTES), MOST_PART_BYTES)
        self._busy: list[_Part] = []
        self._connections = 0
        self._served = 0
        """Connections that the server sends something by."""
        self._at_once = AT_ONCE
        self._buffered_bytes = 0
        self._hashing = asyncio.Lock()
        self._failure: Transient | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._open(group)
        if self._failure is not None and self._partial.missing(self._remote.size_bytes):
            raise self._failure

    async def hash_what_is_there(self) -> None:
        async with self._hashing:
            while await run_to_end(self._partial.take_up):
                pass

    def _open(self, group: asyncio.TaskGroup) -> None:
        """One more connection, if there is anything for it to do. The first one is always there."""
        is_first = not self._connections
        if self._connections >= self._at_once or not (is_first or self._web.more_bodies):
            return
        if part := self._choose_part():
            self._connections += 1
            self._web.more_bodies -= not is_first
            group.create_task(self._work(group, part, is_first=is_first))

    def _choose_part(self) -> _Part | None:
        """The first that is missing and that nobody is at."""
        for start, end in self._partial.missing(self._remote.size_bytes):
            at = start
            for busy in sorted(self._busy, key=lambda each: each.kept):
                if busy.kept <= at < busy.end:
                    at = busy.end
            if at < end:
                ends = [end, at + self._part_bytes, *(busy.kept for busy in self._busy if busy.kept > at)]
                part = _Part(at, min(ends))
                self._busy.append(part)
                return part
        return None

    async def _work(self, group: asyncio.TaskGroup, part: _Part | None, *, is_first: bool) -> None:
        failures = 0
        try:
            while part:
                before, part_now = part.at, part
                try:
                    await self._fetch(group, part)
                    failures = 0
                except FileChanged:
                    raise
                except Transient as failure:
                    self._failure = failure
                    failures = 1 if part.at > before else failures + 1
                    if self._connections == 1:
                        return
                    if failures >= _FAILURES or self._is_sent_away(failure):
                        self._at_once = self._connections - 1
                        return
                    await asyncio.sleep(self._pause_seconds(failure))
                except AgentError as error:
                    # Refused as one too many, perhaps: the others get theirs.
                    if self._connections == 1 or error.cause is FailureCause.ARTIFACT_CORRUPT:
                        raise
                    self._at_once = self._connections - 1
                    return
                finally:
                    self._busy.remove(part_now)
                part = self._choose_part()
        finally:
            self._connections -= 1
            self._web.more_bodies += not is_first

    def _is_sent_away(self, failure: Transient) -> bool:
        return (failure.retry_after_seconds or 0.0) > self._web.patience.longest_pause_seconds

    def _pause_seconds(self, failure: Transient) -> float:
        patience = self._web.patience
        return min(max(failure.retry_after_seconds or 0.0, patience.backoff_seconds), patience.longest_pause_seconds)

    async def _fetch(self, group: asyncio.TaskGroup, part: _Part) -> None:
        """One request."""
        remote, partial = self._remote, self._partial
        headers = {"Range": f"bytes={part.at}-{part.end - 1}"}
        known = partial.validators if partial.validators and partial.validators.url == remote.url else None
        if known and known.condition and (partial.spans or self._connections > 1):
            headers["If-Range"] = known.condition
        is_one_more = self._served > 0
        async with self._web.open_body(remote.url, headers, remote.origin, is_one_more=is_one_more) as response:
            if response.status_code == 200 and self._connections == 1:
                await self._take_whole(response)
                return
            if not is_part(response, remote, partial, part.at, part.end):
                raise changed(response, remote, part.at, part.end)
            if known is None:
                await run_to_end(partial.note, read_validators(response, remote))
            partial.is_joined = True
            self._served += 1
            try:
                if partial.validators and partial.validators.condition:
                    self._open(group)
                async with aclosing(watch_body(response, self._web.patience.stall_seconds)) as pieces:
                    await self._take(pieces, part)
            finally:
                self._served -= 1
            if part.at < part.end:
                raise Transient(f"the body ended {part.end - part.at} bytes too early")

    async def _take_whole(self, response: httpx.Response) -> None:
        """The server knows no ranges, or the file is another: all of it, from its start."""
        begin_whole(response, self._remote, self._partial)
        whole = _Part(0, self._remote.size_bytes)
        self._busy.append(whole)
        try:
            async with aclosing(watch_body(response, self._web.patience.stall_seconds)) as pieces:
                await self._take(pieces, whole)
        finally:
            self._busy.remove(whole)
        if whole.at < whole.end:
            raise Transient(f"the body ended at {whole.at} of {whole.end} bytes")

    async def _take(self, pieces: AsyncGenerator[bytes], part: _Part) -> None:
        """Write what comes, in chunks; what came last also when it breaks off."""
        buffer = bytearray()
        try:
            async for piece in pieces:
                buffer += piece
                self._buffered_bytes += len(piece)
                if part.at + len(buffer) > part.end:
                    raise wrong_size(self._remote, f"more than {self._remote.size_bytes}")
                self._meter.observe_bytes(self._partial.there_bytes + self._buffered_bytes)
                await self._web.pace.wait(len(piece))
                if len(buffer) >= CHUNK_BYTES:
                    taken, buffer = bytes(buffer), bytearray()
                    await self._keep(taken, part)
                    if not self._hashing.locked():
                        await self.hash_what_is_there()
        finally:
            self._partial.put(bytes(buffer), part.at)
            part.at += len(buffer)
            part.kept = part.at
            self._buffered_bytes -= len(buffer)

    async def _keep(self, taken: bytes, part: _Part) -> None:
        offset, part.at = part.at, part.at + len(taken)
        self._buffered_bytes -= len(taken)
        await run_to_end(self._partial.put, taken, offset)
        part.kept = part.at
