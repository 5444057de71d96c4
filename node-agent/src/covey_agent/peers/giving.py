"""What one connection of another node is given: one range of one verified blob, or the reason why not. Blocking.

A request names a digest and nothing else. What it names is given if the cache holds it as it was verified; the file is
opened once and without following a link, so that what is sent is what was looked at.
"""

import os
import re
import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import h11
from covey_api.messages import FLEET_PREFIX

from covey_agent.peers.pace import PIECE_BYTES, ThreadPace

PATH = f"{FLEET_PREFIX}/blobs/sha256/"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
MAX_HEAD_BYTES = 16 * 1024


class Blobs(Protocol):
    def find_given(self, sha256: str) -> Path | None:
        """The blob, if it is here and as it was verified. Blocking."""
        ...


class Refusal(Exception):
    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


@dataclass(frozen=True, slots=True)
class Wish:
    """A blob, or a range of it; None where it was left open."""

    sha256: str
    first: int | None = None
    last: int | None = None
    is_range: bool = False

    def bounds(self, size_bytes: int) -> tuple[int, int]:
        """First byte, and the one after the last. Refusal when there are none."""
        if not self.is_range:
            return 0, size_bytes
        if self.first is None:
            first, end = max(0, size_bytes - (self.last or 0)), size_bytes
        else:
            first = self.first
            end = size_bytes if self.last is None else min(self.last + 1, size_bytes)
        if first >= end:
            raise Refusal(416, f"the blob has {size_bytes} bytes")
        return first, end


def read_request(peer: ssl.SSLSocket, deadline: float) -> Wish:
    """Refusal of what is no GET of a digest; TimeoutError at the deadline, however slowly bytes come."""
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    while True:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError as error:
            raise Refusal(error.error_status_hint, "this is no HTTP request that can be read") from error
        if isinstance(event, h11.Request):
            return _parse_wish(event)
        if event is not h11.NEED_DATA:
            raise ValueError("it said nothing")
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("it didn't say in time what it wants")
        peer.settimeout(left)
        parser.receive_data(peer.recv(MAX_HEAD_BYTES))


def _parse_wish(request: h11.Request) -> Wish:
    target = request.target.decode("ascii", "replace")
    if request.method != b"GET":
        raise Refusal(405, "only GET is answered here")
    digest = target.removeprefix(PATH)
    if not target.startswith(PATH) or not _DIGEST.fullmatch(digest):
        raise Refusal(404, f"only {PATH}DIGEST is answered here, 64 hex digits in lower case")
    ranges = [value.decode("ascii", "replace") for name, value in request.headers if name == b"range"]
    found = _RANGE.fullmatch(ranges[0]) if len(ranges) == 1 else None
    if found is None or found.group(0) == "bytes=-":
        return Wish(digest)
    first, last = (int(text) if text else None for text in found.groups())
    return Wish(digest, first, last, is_range=True)


def give(peer: ssl.SSLSocket, blobs: Blobs, wish: Wish, pace: ThreadPace, explain_refusal: Callable[[], str]) -> None:
    """Head and body. ValueError when the node is removed meanwhile, or the file becomes shorter."""
    path = blobs.find_given(wish.sha256)
    if path is None:
        raise Refusal(404, "this node has no such blob")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Refusal(404, "this node has no such blob any more") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Refusal(404, "this node has no such blob")
        at, end = wish.bounds(found.st_size)
        peer.sendall(_render_head(wish, at, end, found.st_size))
        buffer = memoryview(bytearray(min(PIECE_BYTES, end - at)))
        while at < end:
            count = os.preadv(descriptor, [buffer[: min(end - at, pace.piece_bytes)]], at)
            if not count:
                raise ValueError("the file became shorter while it was read")
            if why := explain_refusal():
                raise ValueError(why)
            peer.sendall(buffer[:count])
            pace.wait(count)
            at += count
    finally:
        os.close(descriptor)


def _render_head(wish: Wish, first: int, end: int, size_bytes: int) -> bytes:
    headers = [
        ("Content-Type", "application/octet-stream"),
        ("Content-Length", str(end - first)),
        ("Accept-Ranges", "bytes"),
        ("ETag", f'"{wish.sha256}"'),
        ("Connection", "close"),
    ]
    if wish.is_range:
        headers.append(("Content-Range", f"bytes {first}-{end - 1}/{size_bytes}"))
    return _render(206 if wish.is_range else 200, headers)


def refuse(peer: ssl.SSLSocket, refusal: Refusal) -> None:
    body = f"{refusal.words}\n".encode()
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), ("Connection", "close")]
    if refusal.status == 503:
        headers.append(("Retry-After", "2"))
    peer.sendall(_render(refusal.status, headers) + body)


def _render(status: int, headers: list[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Refused')}", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


_REASONS = {
    200: "OK",
    206: "Partial Content",
    404: "Not Found",
    405: "Method Not Allowed",
    416: "Range Not Satisfiable",
    503: "Service Unavailable",
}
