"""What one answer brings of a file: whether it is what was asked for, and its bytes as long as they come."""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import httpx
from covey_api.units import format_bytes

from covey_agent.artifacts.partial import PartialFile, Validators
from covey_agent.artifacts.web import INDEX, Origin, Transient, corrupt, parse_count
from covey_agent.ports import AgentError

# A connection that brought less than this in `stall_seconds` is as good as dead: 1 KiB/s.
_STALL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Remote:
    """A file to be fetched. `url` carries no credentials."""

    url: str
    name: str
    sha256: str
    size_bytes: int
    origin: Origin = INDEX


def read_validators(response: httpx.Response, remote: Remote) -> Validators:
    return Validators(
        url=remote.url,
        etag=response.headers.get("etag", ""),
        last_modified=response.headers.get("last-modified", ""),
    )


def begin_whole(response: httpx.Response, remote: Remote, partial: PartialFile) -> None:
    """The answer is the whole file: what was there makes way. AgentError where it has another size."""
    length = parse_count(response.headers.get("content-length", ""))
    if length not in (None, remote.size_bytes):
        raise wrong_size(remote, str(length))
    partial.begin(read_validators(response, remote))


def is_part(response: httpx.Response, remote: Remote, partial: PartialFile, start: int, end: int) -> bool:
    """Whether the answer is these bytes of the file that the others are of, as far as the server tells."""
    expected = f"bytes {start}-{end - 1}/{remote.size_bytes}"
    is_other = partial.validators is not None and partial.validators.contradicts(read_validators(response, remote))
    return response.status_code == 206 and response.headers.get("content-range", "") == expected and not is_other


class FileChanged(Transient):
    """What comes is of another file than what is there, or not what was asked for."""


def changed(response: httpx.Response, remote: Remote, start: int, end: int) -> FileChanged:
    expected, got = f"bytes {start}-{end - 1}/{remote.size_bytes}", response.headers.get("content-range", "")
    return FileChanged(f"the file changed while it came (asked for '{expected}', got {response.status_code} '{got}')")


def wrong_size(remote: Remote, found: str) -> AgentError:
    return corrupt(
        f"'{remote.name}' must have {remote.size_bytes} bytes, {remote.origin.says}; the server sends {found} bytes. "
        f"Nothing was installed. {remote.origin.check} Or a proxy changes it."
    )


async def watch_body(response: httpx.Response, stall_seconds: float) -> AsyncGenerator[bytes]:
    """The body, as long as it comes faster than a stalled connection. (Full silence is httpx's own read timeout.)"""
    since, received_bytes = time.monotonic(), 0
    async for piece in response.aiter_raw():
        yield piece
        received_bytes += len(piece)
        if (now := time.monotonic()) - since >= stall_seconds:
            if received_bytes < _STALL_BYTES:
                raise Transient(f"the body came with {format_bytes(received_bytes)} in {now - since:.0f} s")
            since, received_bytes = now, 0
