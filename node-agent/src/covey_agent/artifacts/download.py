"""The one downloader: models and engines come through here.

A download is identified by the sha256 that index, hub or Model gave; where the bytes come from doesn't matter. It
grows in `partial/<digest>` and survives every interruption there; its validators (ETag, Last-Modified) lie beside it,
so that a changed file starts over at once and not only at the digest.
"""

from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from covey_api.reasons import FailureCause

from covey_agent.artifacts.body import FileChanged, Remote, begin_whole, changed, is_part, watch_body, wrong_size
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.disk import hold_partial, run_to_end
from covey_agent.artifacts.flight import Flights, Meter
from covey_agent.artifacts.partial import CHUNK_BYTES, PartialFile
from covey_agent.artifacts.parts import bring_parts, is_worth_splitting
from covey_agent.artifacts.verifying import find_verified
from covey_agent.artifacts.web import Backoff, Transient, Web, corrupt
from covey_agent.ports import AgentError, OnTransfer, Transfer

# A try that brought this much counts as progress and gives all tries back; it bounds the tries by the file's size.
_PROGRESS_BYTES = 1024 * 1024
# Another process that downloads the same digest may itself be waiting out its longest pauses.
_LOCK_PATIENCE_SECONDS = 600.0


class Readable(Protocol):
    """A file that is somewhere: any range of it."""

    @property
    def size_bytes(self) -> int:
        """0 until the first range came."""
        ...

    async def read_at(self, offset: int, length: int) -> bytes:
        """So many bytes, or fewer at its end. AgentError."""
        ...


class Elsewhere(Protocol):
    """Where a blob may be nearer than at its origin."""

    def open(self, sha256: str, name: str) -> Readable:
        """To be read there by ranges, unverified."""
        ...

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
        """What is to be had of it there: the whole, with this digest, or a part. Returns when the origin may be asked
        for the rest, or, where it has none, nobody is left."""
        ...

    def at_origin(self, sha256: str, tell: OnTransfer) -> AbstractContextManager[OnTransfer]:
        """While the origin is asked; progress is to be told to what it gives."""
        ...


class Downloader:
    """Brings remote files into the cache, verified."""

    def __init__(self, web: Web, cache: Cache, elsewhere: Elsewhere | None = None) -> None:
        self._web = web
        self._cache = cache
        self._elsewhere = elsewhere
        self._flights = Flights()
        self._taken = Flights()

    @property
    def has_elsewhere(self) -> bool:
        return self._elsewhere is not None

    def open_elsewhere(self, sha256: str, name: str) -> Readable | None:
        """A blob where others have it; None: nobody else is asked by this process."""
        return self._elsewhere.open(sha256, name) if self._elsewhere else None

    @contextmanager
    def at_origin(self, sha256: str, tell: OnTransfer) -> Generator[OnTransfer]:
        """While a blob that `take` didn't bring is got out of another file."""
        with self._elsewhere.at_origin(sha256, tell) if self._elsewhere else nullcontext(tell) as told:
            yield told

    async def download(
        self,
        remote: Remote,
        on_transfer: OnTransfer,
        *,
        beside_bytes: int = 0,
        is_kept: bool = True,
        is_elsewhere: bool = True,
    ) -> Path:
        """The blob. `beside_bytes`: what else the caller will write for it, so that a full disk is known at once.

        `is_kept`: false for a blob that nobody keeps, so that nobody else has it. `is_elsewhere`: false where nobody
        else had it a moment ago, and it is this node's turn.
        """

        async def work(tell: OnTransfer) -> Path:
            try:
                if blob := await find_verified(self._cache, remote.sha256, remote.size_bytes):
                    return blob
                return await fill(tell)
            except OSError as error:
                raise self._cache.room.explain(error, remote.name, remote.size_bytes) from error

        async def fill(tell: OnTransfer) -> Path:
            path = self._cache.partial / remote.sha256
            async with hold_partial(path, _LOCK_PATIENCE_SECONDS) as descriptor:
                # Another process may have been the holder until now.
                if blob := await find_verified(self._cache, remote.sha256, remote.size_bytes):
                    path.unlink()
                    return blob
                partial, elsewhere = PartialFile(descriptor, path), self._elsewhere if is_kept else None
                return await self._fill(remote, partial, tell, beside_bytes, elsewhere, is_elsewhere=is_elsewhere)

        with self._cache.room.hold([remote.sha256]):
            return await self._flights.run(remote.sha256, on_transfer, work)

    async def take(
        self,
        name: str,
        sha256: str,
        size_bytes: int,
        on_transfer: OnTransfer,
        *,
        keeps_partial: bool = False,
        has_origin: bool = True,
    ) -> Path | None:
        """A blob from elsewhere only. None: the origin is to be asked, or nobody has it; of what came, nothing stays
        unless `keeps_partial`, for an origin that has it otherwise than inside another file."""
        if (elsewhere := self._elsewhere) is None:
            return None

        async def work(tell: OnTransfer) -> Path | None:
            try:
                return await fill(tell)
            except OSError as error:
                raise self._cache.room.explain(error, name, size_bytes) from error

        async def fill(tell: OnTransfer) -> Path | None:
            if blob := await find_verified(self._cache, sha256, size_bytes):
                return blob
            path = self._cache.partial / sha256
            async with hold_partial(path, _LOCK_PATIENCE_SECONDS) as descriptor:
                # Another process may have been the holder until now.
                if blob := await find_verified(self._cache, sha256, size_bytes):
                    path.unlink()
                    return blob
                partial = PartialFile(descriptor, path)
                async with self._open_partial(partial, sha256, size_bytes, name, 0, tell) as told:
                    await elsewhere.fill(name, sha256, size_bytes, partial, told, has_origin=has_origin)
                if partial.done_bytes < size_bytes:
                    if not keeps_partial:
                        partial.discard()
                    return None
                if partial.digest() != sha256:
                    # Nothing is installed on another's word, whatever it looked at itself.
                    partial.discard()
                    return None
                return await self._install(partial, sha256, name)

        with self._cache.room.hold([sha256]):
            return await self._taken.run(sha256, on_transfer, work)

    @asynccontextmanager
    async def _open_partial(
        self, partial: PartialFile, sha256: str, size_bytes: int, name: str, beside_bytes: int, tell: OnTransfer
    ) -> AsyncGenerator[OnTransfer]:
        """Taken up where an earlier try left it, with room for the rest; progress is to be told to what it gives."""
        await run_to_end(partial.open, size_bytes)
        while await run_to_end(partial.take_up):
            pass
        missing_bytes = size_bytes - partial.there_bytes + beside_bytes
        async with self._cache.room.reserve(sha256, missing_bytes, name) as tell_left:

            def told(transfer: Transfer) -> None:
                tell_left(transfer.total_bytes - transfer.done_bytes + beside_bytes)
                tell(transfer)

            yield told

    async def _install(self, partial: PartialFile, sha256: str, name: str) -> Path:
        await run_to_end(partial.sync)
        # First the notes: nobody would look for them any more once the file has left.
        partial.forget_notes()
        return self._cache.install_blob(self._cache.partial / sha256, sha256, name)

    async def _fill(
        self,
        remote: Remote,
        partial: PartialFile,
        tell: OnTransfer,
        beside_bytes: int,
        elsewhere: Elsewhere | None,
        *,
        is_elsewhere: bool,
    ) -> Path:
        try:
            async with self._open_partial(
                partial, remote.sha256, remote.size_bytes, remote.name, beside_bytes, tell
            ) as told:
                await self._bring(remote, partial, told, elsewhere, is_elsewhere=is_elsewhere)
                if partial.is_joined and partial.digest() != remote.sha256:
                    # What an earlier try left may be of another file, or a server mixes two: once more, all of it by
                    # one connection, before anybody is accused.
                    partial.start_over()
                    await self._transfer(remote, partial, told, is_split=False)
            if partial.digest() != remote.sha256:
                raise corrupt(
                    f"'{remote.name}' must have sha256 {remote.sha256}, {remote.origin.says}; what came has "
                    f"{partial.digest()}. Nothing was installed. {remote.origin.check} Or a proxy changes it."
                )
        except AgentError as error:
            if error.cause is FailureCause.ARTIFACT_CORRUPT:
                partial.discard()
            raise
        return await self._install(partial, remote.sha256, remote.name)

    async def _bring(
        self,
        remote: Remote,
        partial: PartialFile,
        tell: OnTransfer,
        elsewhere: Elsewhere | None,
        *,
        is_elsewhere: bool,
    ) -> None:
        if elsewhere is None:
            return await self._transfer(remote, partial, tell)
        if is_elsewhere:
            await elsewhere.fill(remote.name, remote.sha256, remote.size_bytes, partial, tell)
        if partial.done_bytes < remote.size_bytes:
            with elsewhere.at_origin(remote.sha256, tell) as told:
                await self._transfer(remote, partial, told)

    async def _transfer(self, remote: Remote, partial: PartialFile, tell: OnTransfer, *, is_split: bool = True) -> None:
        """Until all bytes are there, over as many connections as it takes and patience allows."""
        meter = Meter(remote.size_bytes, tell)
        backoff = Backoff(self._web.patience, f"download of '{remote.name}'")
        # The furthest so far, not the last try's gain: a server that makes every try start over is no progress.
        furthest_bytes = partial.there_bytes
        while partial.done_bytes < remote.size_bytes:
            try:
                if is_split and is_worth_splitting(partial, remote.size_bytes):
                    await bring_parts(self._web, remote, partial, meter)
                else:
                    await self._try_transfer(remote, partial, meter)
                if partial.done_bytes < remote.size_bytes:
                    raise Transient(f"the body ended at {partial.done_bytes} of {remote.size_bytes} bytes")
            except Transient as failure:
                # A server that mixes files, or forgets that it knows ranges: one after the other from here on.
                is_split = is_split and not isinstance(failure, FileChanged)
                if partial.there_bytes - furthest_bytes >= _PROGRESS_BYTES:
                    furthest_bytes = partial.there_bytes
                    backoff.reset()
                await backoff.pause(failure)
            except OSError as error:
                raise self._cache.room.explain(error, remote.name, remote.size_bytes - partial.there_bytes) from error
        meter.observe_bytes(partial.done_bytes, last=True)

    async def _try_transfer(self, remote: Remote, partial: PartialFile, meter: Meter) -> None:
        """One connection."""
        headers: dict[str, str] = {}
        if partial.done_bytes:
            headers["Range"] = f"bytes={partial.done_bytes}-"
            if partial.validators and partial.validators.condition and partial.validators.url == remote.url:
                headers["If-Range"] = partial.validators.condition
        async with self._web.open_body(remote.url, headers, remote.origin) as response:
            if response.status_code == 200:
                begin_whole(response, remote, partial)
            elif is_part(response, remote, partial, partial.done_bytes, remote.size_bytes):
                partial.is_joined = partial.done_bytes > 0
            else:
                failure = changed(response, remote, partial.done_bytes, remote.size_bytes)
                partial.start_over()
                raise failure
            async with aclosing(watch_body(response, self._web.patience.stall_seconds)) as pieces:
                await self._take(pieces, remote, partial, meter)

    async def _take(self, pieces: AsyncGenerator[bytes], remote: Remote, partial: PartialFile, meter: Meter) -> None:
        """Write what comes, in chunks; what came last also when it breaks off."""
        buffer = bytearray()
        try:
            async for piece in pieces:
                buffer += piece
                if partial.done_bytes + len(buffer) > remote.size_bytes:
                    raise wrong_size(remote, f"more than {remote.size_bytes}")
                meter.observe_bytes(partial.done_bytes + len(buffer))
                await self._web.pace.wait(len(piece))
                if len(buffer) >= CHUNK_BYTES:
                    taken, buffer = bytes(buffer), bytearray()
                    await run_to_end(partial.append, taken)
        finally:
            partial.append(bytes(buffer))
