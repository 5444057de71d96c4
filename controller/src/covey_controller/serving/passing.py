"""Connections passed on to the leader byte for byte: no TLS, no HTTP, no more kept than a socket is slow to take.

Each side's end of writing is passed on as such (half-close); the end of either connection ends the other. What was
passed on to one leader is ended at the next.
"""

import asyncio
import logging
import socket
from contextlib import suppress
from typing import cast

# In a cluster's network a leader that lives takes a connection in milliseconds. Clients wait 5 s.
CONNECT_SECONDS = 3.0
_log = logging.getLogger(__name__)


class Passing:
    """At most `limit` connections; the one above is closed at once, and its client tries again later."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: set[_Side] = set()
        self._beginning = 0
        self._complaint = ""

    @property
    def count(self) -> int:
        return (len(self._open) + 1) // 2 + self._beginning

    async def begin(self, accepted: socket.socket, address: str) -> bool:
        """True once the socket is passed on, or closed. False if the leader can't be reached: it is still whole."""
        if self.count >= self._limit:
            accepted.close()
            return True
        self._beginning += 1
        try:
            return await self._begin(accepted, address)
        finally:
            self._beginning -= 1

    def end_except(self, address: str | None) -> None:
        """End what was passed on to any other address than the present leader's."""
        for side in list(self._open):
            if side.address != address:
                side.abort()

    async def _begin(self, accepted: socket.socket, address: str) -> bool:
        loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        inner, outer = _Side(self._open, address), _Side(self._open, address)
        inner.join(outer)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.create_connection(lambda: inner, host.strip("[]"), int(port))
        except (OSError, ValueError) as error:  # a TimeoutError is an OSError
            self._complain(f"'{address}' can't be reached ({error or 'no answer'})")
            return False
        self._complaint = ""
        try:
            await loop.connect_accepted_socket(lambda: outer, accepted)
        except BaseException as error:
            inner.abort()
            if isinstance(error, OSError):
                accepted.close()
                return True
            raise
        return True

    def _complain(self, words: str) -> None:
        if words != self._complaint:
            _log.warning("connections for the leader are answered with 503: %s", words)
        self._complaint = words


class _Side(asyncio.Protocol):
    """One of the two connections of a passage; `other` is its counterpart."""

    def __init__(self, open_sides: "set[_Side]", address: str) -> None:
        self.address = address
        self._open = open_sides
        self._transport: asyncio.Transport | None = None
        self._has_read_all = False
        self._is_ended = False
        self.other = self

    def join(self, other: "_Side") -> None:
        self.other, other.other = other, self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open.add(self)
        if self._is_ended:
            self._transport.abort()
        elif self.other.is_made:
            self.other.resume()
        else:
            self.pause()

    @property
    def is_made(self) -> bool:
        return self._transport is not None

    def data_received(self, data: bytes) -> None:
        self.other.send(data)

    def eof_received(self) -> bool:
        """True keeps the way back open."""
        self._has_read_all = True
        if self.other._has_read_all:
            self.other.close()
            self.close()
        else:
            self.other.finish()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        self._is_ended = True
        self.other.close()

    def pause_writing(self) -> None:
        self.other.pause()

    def resume_writing(self) -> None:
        self.other.resume()

    # What the counterpart asks for.

    def send(self, data: bytes) -> None:
        if (transport := self._living()) is not None:
            transport.write(data)

    def finish(self) -> None:
        if (transport := self._living()) is not None:
            with suppress(OSError):
                transport.write_eof()

    def pause(self) -> None:
        if (transport := self._living()) is not None:
            transport.pause_reading()

    def resume(self) -> None:
        if (transport := self._living()) is not None:
            transport.resume_reading()

    def close(self) -> None:
        """After what is still to be written; as soon as it is open, if it isn't yet."""
        self._is_ended = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._is_ended = True
        if self._transport is not None:
            self._transport.abort()

    def _living(self) -> asyncio.Transport | None:
        return None if self._transport is None or self._transport.is_closing() else self._transport
