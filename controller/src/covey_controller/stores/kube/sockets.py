"""The sockets of one HTTP session, known one by one so that all of them can be closed when it ends.

A connection over TLS says goodbye and waits for the other side to answer, half a minute long; a loop that ends
meanwhile leaves its socket to the garbage collector. aiohttp cuts off those that its pool holds, and knows no more of
one that it gave back to be closed, or that was still being made. A socket that is shut down here is at its end for
whoever uses it: its connection is closed by its own loop a moment later. Rejected: to wait for the goodbyes, which
never come from a network that was cut.
"""

import asyncio
import socket
import ssl
import weakref
from contextlib import suppress
from errno import ECONNABORTED
from typing import Any

import aiohttp

Address = tuple[int, int, int, str, tuple[Any, ...]]
"""As `getaddrinfo` gives them."""
# A loop closes a socket that is at its end in one turn; a busy machine needs longer.
CLOSE_SECONDS = 2.0
LOOK_SECONDS = 0.005


class Sockets:
    """All open sockets of one session. `open` in the session's loop; `shut_down` in any thread."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._is_ending = False

    def open(self, address: Address) -> socket.socket:
        """The connector's `socket_factory`. OSError once the session is being ended."""
        if self._is_ending:
            raise OSError(ECONNABORTED, "this session is being ended")
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._made.add(made)
        return made

    def shut_down(self) -> None:
        """No byte passes any more, and no socket is made; each is closed by whoever uses it."""
        self._is_ending = True
        for each in self._left():
            with suppress(OSError):  # not connected yet
                each.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Until none is open. One that nobody closes for `CLOSE_SECONDS` is closed here."""
        self.shut_down()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._left():  # noqa: ASYNC110 - a socket tells nobody that it is closed
                    await asyncio.sleep(LOOK_SECONDS)
        for each in self._left():
            each.close()

    def _left(self) -> list[socket.socket]:
        return [each for each in list(self._made) if each.fileno() >= 0]


def connect_with(sockets: Sockets, *, limit: int, tls: ssl.SSLContext | bool = True) -> aiohttp.TCPConnector:
    """A connector whose every socket is one of these."""
    return aiohttp.TCPConnector(socket_factory=sockets.open, limit=limit, ssl=tls)
