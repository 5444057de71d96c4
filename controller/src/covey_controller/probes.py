"""What a kubelet asks: `/healthz` (restart me if not 200) and `/readyz` (send me connections if 200), without TLS.

A port of its own, since the others pass connections on to the leader, and a probe is about this process. Nothing secret
is answered. A replica is ready when it could lead, whether it does or not: it passes connections on meanwhile.
"""

import asyncio
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from covey_controller.serving.listener import serve
from covey_controller.serving.tls import bind_tcp

# The mirror is compared with a whole list once a minute, and a list that fails is tried again at once. That none comes
# to an end for this long is a reason to restart. That the API server is away is none, however long: who restarts then
# comes back without what it knows, and would again and again.
STALE_SECONDS = 600.0


def build_probe_app(is_ready: Callable[[], bool], is_alive: Callable[[], bool]) -> Starlette:
    def answer(is_well: bool, words: str) -> Response:
        return PlainTextResponse("ok" if is_well else words, 200 if is_well else 503)

    async def healthz(_: Request) -> Response:
        return answer(is_alive(), f"no list of the objects came to an end for {STALE_SECONDS:.0f} s")

    async def readyz(_: Request) -> Response:
        return answer(is_ready(), "the API server's objects have not been listed lately")

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)])


async def serve_probes(host: str, port: int, is_ready: Callable[[], bool], is_alive: Callable[[], bool]) -> None:
    """Until cancelled. ListenFailed says why it can't listen."""
    bound = await bind_tcp(host, port, "--probe-listen")
    try:
        app = build_probe_app(is_ready, is_alive)
        await serve(app, bound, closing=asyncio.Event(), on_listening=lambda: None)
    finally:
        bound.close()
