"""Serve an app on one bound socket until cancelled, and end within two seconds whatever is still open.

It drives uvicorn's protocol class with asyncio's own server. `uvicorn.Server` would install signal handlers, which are
the process's to set, wake ten times a second for ever, and wait for streams that never end.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from covey_controller.serving.protocol import BoundedProtocol

# An agent and a gateway hold about three connections each: room for a thousand of them.
MAX_CONNECTIONS = 4096
# Above the clients' 10 s, so that the side that dials is the one that closes an idle connection.
KEEPALIVE_SECONDS = 30
HANDSHAKE_SECONDS = 10.0
BACKLOG = 512
# Calls that run have this long to finish their answer; then their connections are cut. Streams end at once.
DRAIN_SECONDS = 1.0
_CUT_SECONDS = 0.5


class ListenFailed(Exception):
    """The address can't be bound; the words say what to do."""


async def serve(
    app: ASGIApp,
    bound: socket.socket,
    *,
    closing: asyncio.Event,
    on_listening: Callable[[], None],
    tls: ssl.SSLContext | None = None,
) -> None:
    """Until cancelled. Then `closing` is set, at which the app's streams must end."""
    config = uvicorn.Config(
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
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()

    def open_connection() -> BoundedProtocol:
        return BoundedProtocol(config, state, {}, loop)

    handshake_seconds = HANDSHAKE_SECONDS if tls is not None else None
    if bound.family == socket.AF_UNIX:
        server = await loop.create_unix_server(open_connection, sock=bound, backlog=BACKLOG)
    else:
        server = await loop.create_server(
            open_connection, sock=bound, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=handshake_seconds
        )
    try:
        on_listening()
        await asyncio.Event().wait()
    finally:
        server.close()
        closing.set()
        await _end_connections(state)


async def _end_connections(state: ServerState) -> None:
    for connection in list(state.connections):
        connection.shutdown()
    if state.tasks:
        await asyncio.wait(list(state.tasks), timeout=DRAIN_SECONDS)
    for connection in list(state.connections):
        connection.transport.abort()
    # Who waits for the peer sees it gone and ends by itself; what hangs in something else is cancelled.
    if state.tasks:
        await asyncio.wait(list(state.tasks), timeout=_CUT_SECONDS)
    for task in list(state.tasks):
        task.cancel()
