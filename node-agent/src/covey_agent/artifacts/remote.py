"""A file at the far end of HTTP, read where it is: any range of it, or its start, and nothing more than was asked for.

Who wants the start only is also served by hosts without ranges: the body is read until there is enough, and dropped.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx

from covey_agent.artifacts.web import INDEX, Origin, Transient, Web, corrupt, parse_count, persist, unavailable

# One range request of a header read: most headers are in the first two.
RANGE_BYTES = 1024 * 1024


class RemoteFile:
    """A file by its URL; `size_bytes` is 0 until it is known."""

    def __init__(self, web: Web, url: str, name: str, size_bytes: int, origin: Origin = INDEX) -> None:
        self._web = web
        self._url = url
        self._name = name
        self._origin = origin
        self._has_ranges = True
        self.size_bytes = size_bytes
        self.received_bytes = 0

    async def observe_size(self) -> None:
        """Learn the size where nobody gave it. Also from a server without ranges, which then is known as one."""
        if not self.size_bytes:
            await persist(self._web.patience, f"'{self._name}'", self._try_observe)

    async def read_at(self, offset: int, length: int) -> bytes:
        return await persist(self._web.patience, f"header of '{self._name}'", lambda: self._try_read(offset, length))

    async def read_pieces(self) -> AsyncGenerator[bytes]:
        """The content from its start; the size must be known."""
        if not self._has_ranges:
            async with aclosing(self._read_whole()) as pieces:
                async for piece in pieces:
                    yield piece
            return
        at = 0
        while at < self.size_bytes:
            piece = await self.read_at(at, min(RANGE_BYTES, self.size_bytes - at))
            yield piece
            at += len(piece)

    async def _read_whole(self) -> AsyncGenerator[bytes]:
        """Over one connection; a break in the few pieces of a header isn't worth another try's code."""
        try:
            async with self._web.open(self._url, {}, self._origin) as response:
                async for piece in response.aiter_raw():
                    self.received_bytes += len(piece)
                    yield piece
        except Transient as failure:
            raise unavailable(f"header of '{self._name}': {failure.message}.") from failure

    async def _try_observe(self) -> None:
        async with self._web.open(self._url, {"Range": "bytes=0-0"}, self._origin) as response:
            _, total = self._span(response)
            if response.status_code == 206 and total:
                self.size_bytes = total
                return
            length = parse_count(response.headers.get("content-length", ""))
            if response.status_code != 200 or not length:
                raise unavailable(
                    f"the server of '{self._name}' does not tell its size (it answers {response.status_code}), so no "
                    f"room can be kept for it. {self._origin.check}"
                )
            self._has_ranges = False
            self.size_bytes = length

    async def _try_read(self, offset: int, length: int) -> bytes:
        wanted = {"Range": f"bytes={offset}-{offset + length - 1}"}
        async with self._web.open(self._url, wanted, self._origin) as response:
            span, total = self._span(response)
            if response.status_code != 206:
                raise unavailable(
                    f"the server of '{self._name}' answers range requests with {response.status_code}, so a header "
                    "can't be read without fetching all of it. Use a server that honours `Range`, or a file:// source."
                )
            if span != f"bytes {offset}-{offset + length - 1}" or not total:
                raise Transient(f"asked for bytes {offset}-{offset + length - 1}, got '{span}/{total}'")
            self.size_bytes = total
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                self.received_bytes += len(piece)
                if len(body) > length:
                    raise corrupt(f"the server of '{self._name}' sends more bytes than it was asked for.")
            if len(body) < length:
                raise Transient(f"got {len(body)} of {length} bytes")
            return bytes(body)

    def _span(self, response: httpx.Response) -> tuple[str, int]:
        """The range that was sent and the whole size; 0 when the server doesn't say."""
        span, _, text = response.headers.get("content-range", "").partition("/")
        total = parse_count(text) or 0
        if total and self.size_bytes and total != self.size_bytes:
            raise corrupt(
                f"'{self._name}' must have {self.size_bytes} bytes, {self._origin.says}; the server has {total}. "
                f"{self._origin.check} Or a proxy before it changes what it sends."
            )
        return span, total
