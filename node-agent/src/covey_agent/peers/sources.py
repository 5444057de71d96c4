"""Other nodes of the fleet as a source of blobs, before a blob's origin is asked (ADR 47).

Decides whom to ask and when it is this node's turn at the origin, as the leader says. What comes goes into the same
partial file as an origin's bytes, and only its digest is believed.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from covey_api.messages import MAX_TRIED, Holder, Wanted
from covey_api.units import format_bytes

from covey_agent.artifacts.disk import run_to_end
from covey_agent.artifacts.flight import Meter
from covey_agent.artifacts.pace import Pace
from covey_agent.artifacts.partial import CHUNK_BYTES, PartialFile
from covey_agent.artifacts.web import unavailable
from covey_agent.peers.directory import Directory
from covey_agent.peers.reading import FarBlob
from covey_agent.peers.search import Search, Wait
from covey_agent.peers.taking import Dialler, OpenPeer, PeerBusy, PeerFailed, PeerShut, PeerUnreached
from covey_agent.ports import OnTransfer, Transfer

logger = logging.getLogger(__name__)

# Without a controller nobody's turn is known: so that all nodes of a fleet don't ask an origin at the same moment.
LONGEST_DELAY_SECONDS = 5.0
# The leader takes a turn for ended after 15 s.
TURN_AGAIN_SECONDS = 5.0
# A broken connection is made anew this often before the next node is asked.
TRIES = 3
MOST_SHUT = 5
# Less than this in `stall_seconds` is as good as nothing: 1 KiB/s.
STALL_BYTES = 64 * 1024
# Below this, another source is tried where there is one. What this node's own limit holds back doesn't count.
SLOW_BYTES_PER_SECOND = 1024 * 1024
SLOW_SECONDS = 60.0
# A node gives to another one four at a time. A place of their own: large ones that come slowly hold up no small one.
AT_ONCE = 3
SMALL_AT_ONCE = 1
# Origins that failed, which slow nodes are still better than.
MAX_IN_VAIN = 1024
IN_VAIN_SECONDS = 600.0
# A node that can't be reached is asked for nothing for so long; of so many in one search the origin is asked. A
# firewall between nodes must not cost a connection's time for each node and blob.
UNREACHED_SECONDS = 300.0
MOST_UNREACHED = 8


class PeerSlow(PeerFailed):
    """It gives less than another source may."""


@dataclass(slots=True)
class _Turn:
    done_bytes: int = -1
    told_bytes: int = -1


class Peers:
    """`jitter`: a random number in [0, 1). `pace`: of all downloads of this node."""

    def __init__(
        self,
        directory: Directory,
        observe_context: Callable[[], ssl.SSLContext],
        pace: Pace,
        stall_seconds: float,
        jitter: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._dialler = Dialler(observe_context, stall_seconds, AT_ONCE + SMALL_AT_ONCE)
        self._pace = pace
        self._stall_seconds = stall_seconds
        self._jitter = jitter
        self._places = asyncio.Semaphore(AT_ONCE)
        self._small_places = asyncio.Semaphore(SMALL_AT_ONCE)
        self._in_vain: dict[str, float] = {}
        """By digest: when its origin failed last."""
        self._unreached: dict[str, float] = {}
        """By node: when it couldn't be reached last."""
        self._turns: dict[str, _Turn] = {}
        self._has_turns = asyncio.Event()

    def close(self) -> None:
        self._dialler.close()

    async def run(self) -> None:
        """Say again and again what this node fetches from origins, until cancelled. A fetch that gets nothing is not
        said: another node may get something."""
        while True:
            await self._has_turns.wait()
            await asyncio.sleep(TURN_AGAIN_SECONDS)
            for sha256, turn in list(self._turns.items()):
                if turn.done_bytes != turn.told_bytes:
                    turn.told_bytes = turn.done_bytes
                    await self._directory.ask(Wanted(sha256=sha256, fetching=True, done_bytes=max(0, turn.done_bytes)))
            if not self._turns:
                self._has_turns.clear()

    @contextmanager
    def at_origin(self, sha256: str, tell: OnTransfer) -> Generator[OnTransfer]:
        """While this node fetches it from its origin; progress is to be told to what it gives."""
        turn = self._turns[sha256] = _Turn()
        self._has_turns.set()

        def told(transfer: Transfer) -> None:
            turn.done_bytes = transfer.done_bytes
            tell(transfer)

        try:
            yield told
            self._in_vain.pop(sha256, None)
        except Exception:
            self._in_vain.pop(sha256, None)
            if len(self._in_vain) >= MAX_IN_VAIN:
                self._in_vain.pop(next(iter(self._in_vain)))
            self._in_vain[sha256] = time.monotonic()
            raise
        finally:
            self._turns.pop(sha256, None)

    def open(self, sha256: str, name: str) -> FarBlob:
        """To be read by ranges at whoever has it."""
        return FarBlob(self._directory, self._dialler, sha256, name)

    async def fill(
        self,
        name: str,
        sha256: str,
        size_bytes: int,
        partial: PartialFile,
        tell: OnTransfer,
        *,
        has_origin: bool = True,
    ) -> None:
        """Take what other nodes have of it: the whole, verified; or as far as it came when it is this node's turn at
        the origin, or, where it has none, nobody else has it. OSError of this disk."""
        search = Search(name, sha256, size_bytes, partial, Meter(size_bytes, tell))
        search.is_only_theirs = partial.done_bytes == 0
        is_in_vain = time.monotonic() - self._in_vain.get(sha256, float("-inf")) < IN_VAIN_SECONDS
        search.has_origin = has_origin and not is_in_vain
        wait = Wait(time.monotonic())
        # What is whole and wrong is dropped at once, however the search ends.
        if search.is_whole and self._is_right(search):
            return
        while True:
            if wait.is_at_end(time.monotonic()) or search.unreached >= MOST_UNREACHED:
                await self._delay(search)
                return
            is_over = wait.is_over(time.monotonic())
            search.tried |= self._observe_unreached()
            tried = search.passed | wait.busy if is_over else search.passed
            passed = wait.fetcher if is_over else ""
            answer = await self._directory.ask(
                Wanted(
                    sha256=sha256,
                    tried=tuple(sorted(tried))[:MAX_TRIED],
                    passed=passed,
                    only_holders=not has_origin,
                )
            )
            if answer is None and not has_origin:
                raise unavailable(f"'{name}': the controller that knows which nodes have it can't be asked now.")
            if answer is None:
                await self._delay(search)
                return
            before_bytes = partial.done_bytes
            busy = await self._try_all(answer.holders, search) if answer.holders else set[str]()
            if search.is_whole and self._is_right(search):
                return
            if not (answer.holders or answer.fetcher) or len(search.passed) >= MAX_TRIED:
                return
            if answer.fetcher and answer.fetcher != wait.fetcher:
                logger.info("'%s' is fetched by node '%s' now; this node has it from there then", name, answer.fetcher)
            elif is_over and answer.fetcher:
                # A controller that knows nothing of turns that were passed over.
                await self._delay(search)
                return
            wait.observe(time.monotonic(), answer, busy, has_more=partial.done_bytes > before_bytes, is_anew=is_over)
            if busy or answer.fetcher:
                if has_origin and not search.is_large:
                    return
                partial.touch()
                await asyncio.sleep(wait.again_seconds * (0.5 + self._jitter()))
                wait.lengthen()

    async def _delay(self, search: Search) -> None:
        """So that not all go to the origin at the same moment."""
        if search.is_large:
            await asyncio.sleep(self._jitter() * LONGEST_DELAY_SECONDS)

    def _observe_unreached(self) -> frozenset[str]:
        since = time.monotonic() - UNREACHED_SECONDS
        self._unreached = {node: at for node, at in self._unreached.items() if at > since}
        return frozenset(self._unreached)

    async def _try_all(self, holders: tuple[Holder, ...], search: Search) -> set[str]:
        """One after the other until it is whole; who was busy."""
        busy: set[str] = set()
        async with self._places if search.is_large else self._small_places:
            for holder in sorted(holders, key=lambda each: each.node in search.slow):
                others = {each.node for each in holders} - {holder.node} - search.tried - search.slow
                try:
                    await self._take_from(holder, search, has_other=bool(others) or search.has_origin)
                except PeerBusy:
                    busy.add(holder.node)
                except PeerShut:
                    # A crowd looks like this at its door; a node that does nothing else is no source.
                    search.shut[holder.node] = search.shut.get(holder.node, 0) + 1
                    if search.shut[holder.node] < MOST_SHUT:
                        busy.add(holder.node)
                    else:
                        search.tried.add(holder.node)
                except PeerSlow as failure:
                    search.slow.add(holder.node)
                    logger.info("node '%s' is left for another source of '%s': %s", holder.node, search.name, failure)
                except PeerFailed as failure:
                    search.tried.add(holder.node)
                    if isinstance(failure, PeerUnreached):
                        self._unreached[holder.node] = time.monotonic()
                        search.unreached += 1
                    logger.warning("node '%s' did not give '%s': %s", holder.node, search.name, failure)
                if search.is_whole:
                    return set()
                if search.unreached >= MOST_UNREACHED:
                    break
        return busy

    def _is_right(self, search: Search) -> bool:
        """Whether the whole has its digest. What hasn't is dropped, and who gave all of it isn't asked again. Where
        there are several, or an earlier try's bytes are in it, most of them may be right."""
        found = search.partial.digest()
        if found == search.sha256:
            search.meter.observe_bytes(search.partial.done_bytes, last=True)
            return True
        givers = ", ".join(f"'{each}'" for each in sorted(search.givers))
        words = "" if search.is_only_theirs else ", and what was here before"
        logger.error(
            "'%s' must have sha256 %s; what came from node %s%s has %s. It was dropped.",
            *(search.name, search.sha256, givers or "-", words, found),
        )
        if search.is_only_theirs and len(search.givers) == 1:
            search.tried |= search.givers
        search.from_one = True
        search.start_over()
        return False

    async def _take_from(self, holder: Holder, search: Search, *, has_other: bool) -> None:
        """Until it is whole. A connection that breaks after it brought something is made again.

        `has_other`: there is another source, so that this one may be left for being slow.
        """
        if search.from_one and search.givers - {holder.node}:
            search.start_over()
        for attempt in range(TRIES):
            before_bytes = search.partial.done_bytes
            try:
                await self._try_take(holder, search, has_other=has_other)
                return
            except PeerSlow:
                raise
            except PeerFailed:
                if attempt + 1 == TRIES or search.partial.done_bytes == before_bytes:
                    raise

    async def _try_take(self, holder: Holder, search: Search, *, has_other: bool) -> None:
        partial = search.partial
        began, began_bytes = time.monotonic(), partial.done_bytes
        async with (
            self._dialler.open(holder, search.sha256, partial.done_bytes, search.size_bytes) as peer,
            aclosing(self._pieces(peer, search.size_bytes - partial.done_bytes, has_other=has_other)) as pieces,
        ):
            await self._keep(pieces, holder, search)
        seconds = max(time.monotonic() - began, 1e-3)
        count = partial.done_bytes - began_bytes
        logger.info(
            "%s of '%s' came from node '%s', %s/s",
            *(format_bytes(count), search.name, holder.node, format_bytes(int(count / seconds))),
        )

    async def _keep(self, pieces: AsyncGenerator[memoryview], holder: Holder, search: Search) -> None:
        """Write and hash each piece while the next one comes."""
        partial = search.partial
        writing: asyncio.Future[None] | None = None
        try:
            async for piece in pieces:
                if writing is not None:
                    await writing
                search.givers.add(holder.node)
                search.unreached = 0
                search.meter.observe_bytes(partial.done_bytes + len(piece))
                writing = asyncio.ensure_future(run_to_end(partial.append, piece))
                await self._pace.wait(len(piece))
        finally:
            if writing is not None:
                await writing

    async def _pieces(self, peer: OpenPeer, missing_bytes: int, *, has_other: bool) -> AsyncGenerator[memoryview]:
        """The body; two buffers in turn, so that one is written while the other is filled."""
        buffers, turn = (bytearray(CHUNK_BYTES), bytearray(CHUNK_BYTES)), 0
        since, received_bytes = time.monotonic(), 0
        reading_seconds, read_bytes = 0.0, 0
        while missing_bytes:
            buffer = buffers[turn]
            limit = min(missing_bytes, self._pace.piece_bytes, len(buffer))
            view = memoryview(buffer)[:limit]
            before = time.monotonic()
            count = await peer.read(view)
            reading_seconds, read_bytes = reading_seconds + time.monotonic() - before, read_bytes + count
            if not count:
                raise PeerFailed(f"it ended {missing_bytes} bytes too early")
            yield view[:count]
            missing_bytes -= count
            received_bytes += count
            turn = 1 - turn
            if (now := time.monotonic()) - since >= self._stall_seconds:
                if received_bytes < STALL_BYTES:
                    raise PeerFailed(f"it gave {received_bytes} bytes in {now - since:.0f} s")
                since, received_bytes = now, 0
            if reading_seconds >= SLOW_SECONDS:
                if has_other and missing_bytes and read_bytes < SLOW_BYTES_PER_SECOND * reading_seconds:
                    raise PeerSlow(f"it gave {format_bytes(read_bytes)} in {reading_seconds:.0f} s")
                reading_seconds, read_bytes = 0.0, 0
