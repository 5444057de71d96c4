"""Serve an app on one bound socket until cancelled, and end within two seconds whatever is still open.

It drives uvicorn's protocol class with an accept loop of its own. `uvicorn.Server` would install signal handlers, which
are the process's to set, wake ten times a second for ever, and wait for streams that never end.

Each connection is looked at when it is accepted: while another process leads, its bytes are passed on to that one,
before TLS. The alternatives to accepting ourselves: asyncio's server with a protocol that decides in `connection_made`
comes after TLS has begun for it, so the leader would read everything through one more copy or TLS twice; two servers
on one socket, of which one listens at a time, drop what waits in the backlog at each change. Here a connection that is
served is handed to the loop as a socket, without a copy, and one that is passed on never meets TLS in this process.
Each also begins with the TLS context of that moment, so an authority can be replaced while serving.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from covey_controller.serving.guests import Guests
from covey_controller.serving.members import Members
from covey_controller.serving.passing import Passing
from covey_controller.serving.protocol import BoundedProtocol, Reflex

# An agent and a gateway hold about three connections each: room for a thousand of them.
MAX_CONNECTIONS = 4096
# Above the clients' 10 s, so that the side that dials is the one that closes an idle connection.
KEEPALIVE_SECONDS = 30
HANDSHAKE_SECONDS = 10.0
BACKLOG = 512
# Calls that run have this long to finish their answer; then their connections are cut. Streams end at once.
DRAIN_SECONDS = 1.0
_CUT_SECONDS = 0.5
# How soon a change of leadership ends the connections of before. Until then their calls are refused, and a client that
# lost its leader waits longer to redial. Both listeners look, for as long as the process lives: each look wakes it.
LOOK_SECONDS = 1.0
# Who lost the lead and can't ask who has it now doesn't keep its clients: a lease lasts for so long.
OTHER_LEADS_SECONDS = 15.0
# Out of descriptors: who waits in the backlog is taken when some were closed.
_PAUSE_SECONDS = 1.0
_log = logging.getLogger(__name__)


class ListenFailed(Exception):
    """The address can't be bound; the words say what to do."""


async def serve(
    app: ASGIApp,
    bound: socket.socket,
    *,
    closing: asyncio.Event,
    on_listening: Callable[[], None],
    tls: Callable[[], ssl.SSLContext] | None = None,
    elsewhere: Callable[[], str | None] | None = None,
    is_leading: Callable[[], bool] = lambda: False,
    reflex: Reflex | None = None,
) -> None:
    """Until cancelled. Then `closing` is set, at which the app's streams must end.

    `elsewhere` is the `HOST:PORT` to pass connections on to, None to answer them here. Without it nobody else leads.
    `is_leading`: whether this process does, where others may.
    """
    bound.listen(BACKLOG)
    bound.setblocking(False)
    listener = _Listener(app, tls, elsewhere, reflex)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(listener.accept_for_ever(bound, group))
            if elsewhere is not None:
                group.create_task(listener.watch_leadership(elsewhere, is_leading))
            on_listening()
    finally:
        closing.set()
        await listener.end_connections()


class _Listener:
    def __init__(
        self,
        app: ASGIApp,
        tls: Callable[[], ssl.SSLContext] | None,
        elsewhere: Callable[[], str | None] | None,
        reflex: Reflex | None,
    ) -> None:
        self._config = uvicorn.Config(
            app,
            interface="asgi3",
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEPALIVE_SECONDS,
        )
        self._config.load()
        self._tls = tls
        self._elsewhere = elsewhere
        self._reflex = reflex
        self._state = ServerState()
        self._loop = asyncio.get_running_loop()
        self._passing = Passing(MAX_CONNECTIONS)
        self._guests = Guests()
        self._members = Members()
        self._beginning = 0
        """Connections whose handshake isn't over."""

    async def accept_for_ever(self, bound: socket.socket, group: asyncio.TaskGroup) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(bound)
            except OSError as error:
                _log.error("no connection can be accepted, next try in a second: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            # Those that are served count too: whoever shows no certificate may stay, and each takes memory.
            if self._beginning + len(self._state.connections) >= MAX_CONNECTIONS:
                accepted.close()
                continue
            self._beginning += 1
            host = "" if bound.family is socket.AF_UNIX else str(address[0])
            group.create_task(self._begin(accepted, host))

    async def watch_leadership(self, elsewhere: Callable[[], str | None], is_leading: Callable[[], bool]) -> None:
        """End what was begun under another leadership: its clients dial again and meet the present one."""
        led_at: float | None = None
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            address, now = elsewhere(), self._loop.time()
            self._passing.end_except(address)
            if is_leading():
                led_at = now
            is_over = led_at is not None and now - led_at >= OTHER_LEADS_SECONDS
            if address is not None or is_over:
                led_at = None
                for connection in list(self._state.connections):
                    connection.transport.abort()

    async def end_connections(self) -> None:
        self._passing.end_except(None)
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=DRAIN_SECONDS)
        for connection in list(self._state.connections):
            connection.transport.abort()
        # Who waits for the peer sees it gone and ends by itself; what hangs in something else is cancelled.
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=_CUT_SECONDS)
        for task in list(self._state.tasks):
            task.cancel()

    async def _begin(self, accepted: socket.socket, host: str) -> None:
        """Pass the connection on, or serve it: also when the leader can't be reached, for the app then says so."""
        try:
            accepted.setblocking(False)
            address = self._elsewhere() if self._elsewhere is not None else None
            if address is not None and await self._passing.begin(accepted, address):
                return
            await self._serve(accepted, host)
        except asyncio.CancelledError:
            accepted.close()
            raise
        except Exception:  # one connection must not end the others
            accepted.close()
            _log.exception("a connection could not be begun")
        finally:
            self._beginning -= 1

    async def _serve(self, accepted: socket.socket, host: str) -> None:
        tls = self._tls() if self._tls is not None else None
        guest = self._guests.enter(host, partial(_shut, accepted))
        is_served = False
        try:
            await self._loop.connect_accepted_socket(
                lambda: BoundedProtocol(
                    self._config, self._state, {}, self._loop, reflex=self._reflex, members=self._members
                ).on_known(lambda: self._guests.leave(guest)),
                accepted,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if tls is not None else None,
            )
            is_served = True
        except OSError:
            pass  # a peer that leaves, or speaks no TLS, or shows a certificate of another authority
        finally:
            if not is_served:
                self._guests.leave(guest)


def _shut(accepted: socket.socket) -> None:
    """Whoever has the socket now, a handshake or a protocol, sees its end and closes it."""
    with suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)
