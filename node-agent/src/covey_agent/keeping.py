"""What this node keeps for its fleet, beside what its members need: fetched one after the other, and pinned (ADR 48).

The list is on disk too: a store whose controller is away goes on to be one, also after a restart.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from pathlib import Path

from covey_api.messages import UnkeptArtifact
from covey_api.meta import Message
from covey_api.model import ResolvedArtifact
from covey_api.reasons import FailureCause
from covey_fleet_client.files import write_private
from pydantic import ValidationError

from covey_agent.artifacts.node import digests_of
from covey_agent.ports import AgentError, Artifacts, Transfer

logger = logging.getLogger(__name__)

# A source that is away, or a disk that is full, is tried again as soon as a person would.
FIRST_AGAIN_SECONDS = 30.0
LONGEST_AGAIN_SECONDS = 1800.0
# What a person, or another program, removed or changed is noticed within.
LOOK_AGAIN_SECONDS = 3600.0


# By source and digest: two Models of one source may have read it at different times, and the one's file says nothing of
# the other's.
_Key = tuple[str, str]


class KeptList(Message):
    """`store.json`."""

    kept: tuple[ResolvedArtifact, ...] = ()


Reserve = Callable[[ResolvedArtifact], AbstractAsyncContextManager[None]]
"""Room for what is missing of it. AgentError(DiskFull)."""


class Keeping:
    """`folder`: the agent's. `on_change`: what is kept is another; `on_fetched`: another of it is here, or can't be
    had."""

    def __init__(
        self,
        artifacts: Artifacts,
        folder: Path,
        on_change: Callable[[], None],
        on_fetched: Callable[[], None],
        reserve: Reserve = lambda _: nullcontext(),
    ) -> None:
        self._artifacts = artifacts
        self._reserve = reserve
        self._path = folder / "store.json"
        self._on_change = on_change
        self._on_fetched = on_fetched
        self._complaints: dict[_Key, str] = {}
        self._causes: dict[_Key, UnkeptArtifact] = {}
        """What is kept and isn't here."""
        self._changed = asyncio.Event()
        self.kept = _read(self._path)

    @property
    def digests(self) -> frozenset[str]:
        """Of all that is kept, and of the files of that."""
        return frozenset(digest for each in self.kept for digest in digests_of(each))

    @property
    def unkept(self) -> tuple[UnkeptArtifact, ...]:
        """By source."""
        return tuple(self._causes[key] for key in sorted(self._causes))

    def receive(self, kept: tuple[ResolvedArtifact, ...]) -> None:
        if kept != self.kept:
            self.kept = kept
            try:
                write_private(self._path, KeptList(kept=kept).to_json())
            except OSError as error:
                logger.error("'%s' can't be written, what is kept is forgotten at a restart: %s", self._path, error)
            keys = {_key(artifact) for artifact in kept}
            self._causes = {key: each for key, each in self._causes.items() if key in keys}
            self._on_change()
            self._changed.set()

    async def run(self) -> None:
        """Until cancelled. No failure here touches a member."""
        again_seconds = FIRST_AGAIN_SECONDS
        while True:
            self._changed.clear()
            is_whole = await self._fetch_all()
            if self._changed.is_set():
                again_seconds = FIRST_AGAIN_SECONDS
                continue
            wait_seconds = LOOK_AGAIN_SECONDS if is_whole else again_seconds
            again_seconds = FIRST_AGAIN_SECONDS if is_whole else min(2 * again_seconds, LONGEST_AGAIN_SECONDS)
            try:
                # Nothing is kept on most nodes: they wait for a snapshot, and for nothing else.
                async with asyncio.timeout(wait_seconds if self.kept else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _fetch_all(self) -> bool:
        """Whether all of it is here. What is here already costs a look.

        Room for all of it is taken before the first of it is fetched, in the list's order: what doesn't fit is known at
        once and not after hours, and nobody else takes what is meant for the rest.
        """
        is_whole, kept, here = True, self.kept, frozenset(self._artifacts.digests())
        async with AsyncExitStack() as stack:
            lacking = [artifact for artifact in kept if artifact.digest not in here]
            rooms = {_key(artifact): await self._take_room(stack, artifact) for artifact in lacking}
            for artifact in kept:
                if self._changed.is_set():
                    return False
                room = rooms.get(_key(artifact), nullcontext())
                if room is None:
                    is_whole = False
                    continue
                async with room:
                    is_whole = await self._fetch(artifact) and is_whole
        keys = {_key(artifact) for artifact in kept}
        self._complaints = {key: words for key, words in self._complaints.items() if key in keys}
        return is_whole

    async def _take_room(self, stack: AsyncExitStack, artifact: ResolvedArtifact) -> AsyncExitStack | None:
        """To be given back once it is fetched, or with the whole stack. None: there is none."""
        room = await stack.enter_async_context(AsyncExitStack())
        try:
            await room.enter_async_context(self._reserve(artifact))
        except AgentError as error:
            self._complain(artifact, error.cause, error.message)
            return None
        except OSError:
            # What the disk has against it, its fetch says.
            logger.debug("no room is taken for '%s'", artifact.source, exc_info=True)
        return room

    async def _fetch(self, artifact: ResolvedArtifact) -> bool:
        is_news = artifact.digest not in self._artifacts.digests()
        try:
            await self._artifacts.fetch(artifact, _ignore)
        except AgentError as error:
            return self._complain(artifact, error.cause, error.message)
        except Exception as error:  # no thread is left, say: the next try may find one
            words = f"unexpected {type(error).__name__}: {error}"
            return self._complain(artifact, FailureCause.ARTIFACT_UNAVAILABLE, words)
        self._complaints.pop(_key(artifact), None)
        if self._causes.pop(_key(artifact), None):
            self._on_fetched()
        if is_news:
            logger.info("'%s' is kept for the fleet", artifact.source)
            self._on_fetched()
        return True

    def _complain(self, artifact: ResolvedArtifact, cause: FailureCause, words: str) -> bool:
        """False, as what is asked."""
        key = _key(artifact)
        unkept = UnkeptArtifact(source=artifact.source, size_bytes=artifact.size_bytes, cause=cause)
        if self._causes.get(key) != unkept:
            self._causes[key] = unkept
            self._on_fetched()
        if self._complaints.get(key) != words:
            logger.warning("'%s' is not kept for the fleet yet: %s", artifact.source, words)
        self._complaints[key] = words
        return False


def _key(artifact: ResolvedArtifact) -> _Key:
    return artifact.source, artifact.digest


def _read(path: Path) -> tuple[ResolvedArtifact, ...]:
    """None where there is no list, or none that can be read: the next snapshot brings it."""
    try:
        return KeptList.model_validate_json(path.read_bytes()).kept
    except (OSError, ValidationError):
        return ()


def _ignore(transfer: Transfer) -> None:
    """Nobody waits for it."""
