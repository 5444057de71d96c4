"""The listening socket and the one clock of the gateway: accept, sweep deadlines, drain.

uvicorn's own server is not used: its signals, its 10 Hz tick and its way to shut down (which waits, then cancels, and
tells streams nothing) are all replaced here; what remains of it is a call to `create_server`.
"""

import asyncio
import errno
import logging
import resource
import socket
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from covey_api.reasons import ErrorCode
from uvicorn import Config
from uvicorn.server import ServerState

from covey_gateway.connection import ClientConnection
from covey_gateway.failures import StartError
from covey_gateway.figures import Present
from covey_gateway.images import Images
from covey_gateway.limits import MAX_CONNECTIONS, MAX_REFUSED, RESERVED_FILES, SWEEP_SECONDS
from covey_gateway.recorded import Recorded
from covey_gateway.relay import Relay
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import Engines
from covey_gateway.wire.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from covey_gateway.tls import TlsDoor

# Connections that wait to be accepted; a burst of a thousand clients starts within one sweep of the loop.
_BACKLOG = 1024
_DRAIN_CHECK_SECONDS = 0.05

_log = logging.getLogger(__name__)


def bind_socket(host: str, port: int, flag: str = "--listen", *, is_shared: bool = False) -> socket.socket:
    """StartError if the address is taken or not this machine's. `is_shared`: other processes of this user listen there,
    too."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise StartError(f"`{flag}` must be HOST:PORT of this machine; '{host}' is no address: {error}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            words = f"port {port} on {host} is taken by another process (another `covey up`?); stop it or use `{flag}`"
        else:
            words = f"{host}:{port} can't be listened on: {error.strerror}"
        raise StartError(words) from None
    return bound


def choose_max_connections(files: int) -> int:
    """How many clients a process of so many descriptors takes: with an engine's connection for each.

    Clients that took all would leave none for engines, which would then look as if they refused.
    """
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, (files - RESERVED_FILES - MAX_REFUSED) // 2))


class LateApp:
    """The app for what isn't hot. Loading it is a tenth of the gateway's start, and clients wait for no part of it."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._app: ASGIApp | None = None

    async def load(self) -> "ASGIApp":
        app = self._app
        if app is None:
            module = await asyncio.to_thread(import_module, "covey_gateway.app")
            app = self._app = module.build_app(self._traffic)
        return app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if "preflight" in scope.get("state", {}):  # all of its answer is in the head that the relay gave it
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        app = await self.load()
        await app(scope, receive, send)


class GatewayServer:
    def __init__(self, traffic: Traffic, engines: Engines, images: Images) -> None:
        self._traffic = traffic
        self._images = images
        self._engines = engines
        self._state = ServerState()
        self.app = LateApp(traffic)
        # The server header and the access log would only cost; proxy headers are believed from nobody.
        self._config = Config(
            Recorded(self.app, traffic),
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        self._config.load()
        self._server: asyncio.Server | None = None
        self._door: TlsDoor | None = None
        traffic.ledger.figures.observe = self._observe_figures
        self._accepted = asyncio.Event()
        self._is_resting = True

    def _observe_figures(self) -> Present:
        log = self._traffic.ledger.log
        return self._traffic.observe_figures(len(self._state.connections), log.dropped if log is not None else 0)

    async def start(self, bound: socket.socket, door: "TlsDoor | None" = None) -> None:
        """`door`: clients speak TLS, and come by it."""
        loop = asyncio.get_running_loop()
        self.check_deadlines(time.time(), loop.time())
        most = choose_max_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        accept: Callable[[], asyncio.Protocol] = partial(self._accept, most)
        if door is None:
            self._server = await loop.create_server(accept, sock=bound, backlog=_BACKLOG)
            return

        def has_room(in_handshake: int) -> bool:
            return len(self._state.connections) + in_handshake < most + MAX_REFUSED

        door.open(bound, _BACKLOG, accept, has_room)
        self._door = door

    def _accept(self, most: int) -> Relay:
        if self._is_resting:  # the date is as old as the sweep's last look
            self.check_deadlines(time.time(), asyncio.get_running_loop().time())
        self._accepted.set()
        return Relay(self._config, self._state, self._traffic, self._engines, self._images, most)

    async def sweep(self) -> None:
        """Check all deadlines, again and again, until cancelled. Without a connection there are none, and it rests, but
        that other workers wait for what clients left here."""
        while True:
            self._is_resting = True
            await self._accepted.wait()
            self._is_resting = False
            # One that was accepted a moment ago isn't among the connections yet.
            while self._has_deadlines:
                self._accepted.clear()
                await asyncio.sleep(SWEEP_SECONDS)
                self.check_deadlines(time.time(), asyncio.get_running_loop().time())

    @property
    def _has_deadlines(self) -> bool:
        is_used = self._accepted.is_set() or bool(self._state.connections)
        return is_used or self._engines.has_idle or self._traffic.lines.has_any

    def check_deadlines(self, wall: float, now: float) -> None:
        """End what is over its time by now; `wall` dates the answers of the next second."""
        self._traffic.set_date(wall)
        self._state.default_headers = [(b"date", self._traffic.date)]
        for connection in self._connections():
            try:
                connection.check_deadlines(now)
            except Exception:  # whatever is wrong with one client's request, the others are served on
                _log.exception("a request's deadlines could not be checked; its connection is ended")
                connection.transport.abort()
        log = self._traffic.ledger.log
        self._traffic.tell_process(len(self._state.connections), log.dropped if log is not None else 0)
        self._traffic.look_for_silent()
        self._traffic.lines.look_again()
        self._engines.close_idle(now)

    def _connections(self) -> list[ClientConnection]:
        return [one for one in self._state.connections if isinstance(one, ClientConnection)]

    async def drain(self, seconds: float) -> None:
        """Accept nothing more, let answers that are due end within `seconds`, end the rest with an error."""
        await self._stop_accepting()
        for connection in self._connections():
            connection.shutdown()
        for _ in range(int(seconds / _DRAIN_CHECK_SECONDS)):
            if not self._state.connections:
                break
            await asyncio.sleep(_DRAIN_CHECK_SECONDS)
        if left := self._connections():
            _log.warning("%d requests did not end within %.0f s and are ended now", len(left), seconds)
            error = ApiError(503, ErrorCode.OVERLOADED, "the gateway is stopping", retry_after_seconds=1)
            for connection in left:
                connection.end_now(error)
            # A turn of the loop, so that what was written leaves.
            await asyncio.sleep(_DRAIN_CHECK_SECONDS)
            for connection in self._connections():  # of clients that take nothing
                connection.transport.abort()
        self._engines.close()

    async def _stop_accepting(self) -> None:
        """From here on nothing is accepted, and what was accepted before is among the connections.

        asyncio accepts in one turn of the loop, makes the transport in the next, for which the server must still be
        open (else the socket is lost, and stays open), and tells the protocol of it in the one after.
        """
        if self._door is not None:
            self._door.close()
        if self._server is not None:
            loop = asyncio.get_running_loop()
            for listening in self._server.sockets:
                loop.remove_reader(listening.fileno())  # uvloop has none here, and makes transports at once
            await asyncio.sleep(0)
            self._server.close()
            await asyncio.sleep(0)
