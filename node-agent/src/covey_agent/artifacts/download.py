"""The one downloader: models and engines come through here.

A download is identified by the sha256 that the index gave; where the bytes come from doesn't matter. It grows in
`partial/<digest>` and survives every interruption there; its validators (ETag, Last-Modified) lie beside it, so that a
changed file starts over at once and not only at the digest.
"""

import hashlib
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import httpx
from covey_api.meta import Message
from covey_api.reasons import FailureCause
from covey_api.units import format_bytes
from pydantic import ValidationError

from covey_agent.artifacts.cache import Cache, hold_partial, run_to_end, write_atomically
from covey_agent.artifacts.flight import Flights, Meter
from covey_agent.artifacts.web import Backoff, Transient, Web, corrupt
from covey_agent.ports import AgentError, OnTransfer

# One write and one hash update: large enough that the hop to a thread costs nothing beside it.
CHUNK_BYTES = 1024 * 1024
# Read back in one hop to a thread: a cancelled download waits for no more than this.
TAKE_UP_BYTES = 16 * CHUNK_BYTES
# A connection that brought less than this in `stall_seconds` is as good as dead: 1 KiB/s.
_STALL_BYTES = 64 * 1024
# A try that brought this much counts as progress and gives all tries back; it bounds the tries by the file's size.
_PROGRESS_BYTES = 1024 * 1024
# Another process that downloads the same digest may itself be waiting out its longest pauses.
_LOCK_PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Remote:
    """A file at an index. `url` carries no credentials."""

    url: str
    name: str
    sha256: str
    size_bytes: int


class Validators(Message):
    """What the server said of the file when its first bytes came."""

    url: str
    etag: str = ""
    last_modified: str = ""

    @property
    def condition(self) -> str:
        """Value of `If-Range`: a strong validator, or nothing."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.last_modified

    def contradicts(self, other: "Validators") -> bool:
        return bool(self.url == other.url and self.etag and other.etag and self.etag != other.etag)


class _Sink:
    """The partial file: grows, is hashed as it grows, can start over. Methods that touch the disk block."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._notes = path.with_name(path.name + ".json")
        self._hash = hashlib.sha256()
        self.done_bytes = 0
        self.validators: Validators | None = None
        self.is_joined = False
        """True when the bytes came over more than one connection."""

    def open(self, size_bytes: int) -> None:
        """Look at what an earlier try left."""
        if os.fstat(self._descriptor).st_size > size_bytes:
            self.start_over()
        try:
            self.validators = Validators.model_validate_json(self._notes.read_bytes())
        except (OSError, ValidationError):
            self.validators = None

    def take_up(self) -> bool:
        """Hash the next piece of what an earlier try left; False at its end."""
        piece = os.pread(self._descriptor, TAKE_UP_BYTES, self.done_bytes)
        self._hash.update(piece)
        self.done_bytes += len(piece)
        return bool(piece)

    def begin(self, validators: Validators) -> None:
        """The first byte is about to come."""
        self.start_over()
        self.validators = validators
        write_atomically(self._notes, validators.model_dump_json().encode())

    def append(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            view = view[os.pwrite(self._descriptor, view, self.done_bytes + len(piece) - len(view)) :]
        self._hash.update(piece)
        self.done_bytes += len(piece)

    def start_over(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self._hash = hashlib.sha256()
        self.done_bytes = 0
        self.validators = None
        self.is_joined = False

    def digest(self) -> str:
        return self._hash.hexdigest()

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def forget_notes(self) -> None:
        self._notes.unlink(missing_ok=True)

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)
        self.forget_notes()


class Downloader:
    """Brings remote files into the cache, verified."""

    def __init__(self, web: Web, cache: Cache) -> None:
        self._web = web
        self._cache = cache
        self._flights = Flights()

    async def download(self, remote: Remote, on_transfer: OnTransfer, *, beside_bytes: int = 0) -> Path:
        """The blob. `beside_bytes`: what else the caller will write for it, so that a full disk is known at once."""

        async def work(tell: OnTransfer) -> Path:
            if blob := self._cache.find_blob(remote.sha256, remote.size_bytes):
                return blob
            path = self._cache.partial / remote.sha256
            async with hold_partial(path, _LOCK_PATIENCE_SECONDS) as descriptor:
                # Another process may have been the holder until now.
                if blob := self._cache.find_blob(remote.sha256, remote.size_bytes):
                    path.unlink()
                    return blob
                return await self._fill(remote, _Sink(descriptor, path), tell, beside_bytes)

        return await self._flights.run(remote.sha256, on_transfer, work)

    async def _fill(self, remote: Remote, sink: _Sink, tell: OnTransfer, beside_bytes: int) -> Path:
        await run_to_end(sink.open, remote.size_bytes)
        while await run_to_end(sink.take_up):
            pass
        self._cache.require_space(remote.size_bytes - sink.done_bytes + beside_bytes, remote.name)
        try:
            await self._transfer(remote, sink, tell)
            if sink.is_joined and sink.digest() != remote.sha256:
                # What an earlier try left may be of another file: once more, all of it, before anybody is accused.
                sink.start_over()
                await self._transfer(remote, sink, tell)
            if sink.digest() != remote.sha256:
                raise corrupt(
                    f"'{remote.name}' must have sha256 {remote.sha256}, as the index says; what came has "
                    f"{sink.digest()}. Nothing was installed. Check the index, or a proxy before it."
                )
        except AgentError as error:
            if error.cause is FailureCause.ARTIFACT_CORRUPT:
                sink.discard()
            raise
        await run_to_end(sink.sync)
        path = self._cache.install_blob(self._cache.partial / remote.sha256, remote.sha256)
        sink.forget_notes()
        return path

    async def _transfer(self, remote: Remote, sink: _Sink, tell: OnTransfer) -> None:
        """Until all bytes are there, over as many connections as it takes and patience allows."""
        meter = Meter(remote.size_bytes, tell)
        backoff = Backoff(self._web.patience, f"download of '{remote.name}'")
        while sink.done_bytes < remote.size_bytes:
            before = sink.done_bytes
            try:
                await self._try_transfer(remote, sink, meter)
                if sink.done_bytes < remote.size_bytes:
                    raise Transient(f"the body ended at {sink.done_bytes} of {remote.size_bytes} bytes")
            except Transient as failure:
                if sink.done_bytes - before >= _PROGRESS_BYTES:
                    backoff.reset()
                await backoff.pause(failure)
            except OSError as error:
                raise self._cache.explain(error, remote.name, remote.size_bytes - sink.done_bytes) from error
        meter.observe_bytes(sink.done_bytes, last=True)

    async def _try_transfer(self, remote: Remote, sink: _Sink, meter: Meter) -> None:
        """One connection."""
        headers: dict[str, str] = {}
        if sink.done_bytes:
            headers["Range"] = f"bytes={sink.done_bytes}-"
            if sink.validators and sink.validators.condition and sink.validators.url == remote.url:
                headers["If-Range"] = sink.validators.condition
        async with self._web.open(remote.url, headers) as response:
            _begin(response, remote, sink)
            buffer = bytearray()
            try:
                async for piece in _watched(response, self._web.patience.stall_seconds):
                    buffer += piece
                    if sink.done_bytes + len(buffer) > remote.size_bytes:
                        raise _wrong_size(remote, f"more than {remote.size_bytes}")
                    meter.observe_bytes(sink.done_bytes + len(buffer))
                    if len(buffer) >= CHUNK_BYTES:
                        taken, buffer = bytes(buffer), bytearray()
                        await run_to_end(sink.append, taken)
            finally:
                sink.append(bytes(buffer))


def _begin(response: httpx.Response, remote: Remote, sink: _Sink) -> None:
    """Check that the answer's body goes on where the partial file ends; start over where it is the whole file."""
    found = Validators(
        url=remote.url,
        etag=response.headers.get("etag", ""),
        last_modified=response.headers.get("last-modified", ""),
    )
    if response.status_code == 200:
        length = response.headers.get("content-length", "")
        if length.isdigit() and int(length) != remote.size_bytes:
            raise _wrong_size(remote, length)
        sink.begin(found)
        return
    expected = f"bytes {sink.done_bytes}-{remote.size_bytes - 1}/{remote.size_bytes}"
    got = response.headers.get("content-range", "")
    if response.status_code == 206 and got == expected and not (sink.validators and sink.validators.contradicts(found)):
        sink.is_joined = sink.done_bytes > 0
        return
    sink.start_over()
    raise Transient(f"the file changed while it came (asked for '{expected}', got {response.status_code} '{got}')")


def _wrong_size(remote: Remote, found: str) -> AgentError:
    return corrupt(
        f"'{remote.name}' must have {remote.size_bytes} bytes, as the index says; the server sends {found} bytes. "
        "Nothing was installed. Check the index, or a proxy before it."
    )


async def _watched(response: httpx.Response, stall_seconds: float) -> AsyncGenerator[bytes]:
    """The body, as long as it comes faster than a stalled connection. (Full silence is httpx's own read timeout.)"""
    since, received_bytes = time.monotonic(), 0
    async for piece in response.aiter_raw():
        yield piece
        received_bytes += len(piece)
        if (now := time.monotonic()) - since >= stall_seconds:
            if received_bytes < _STALL_BYTES:
                raise Transient(f"the body came with {format_bytes(received_bytes)} in {now - since:.0f} s")
            since, received_bytes = now, 0
