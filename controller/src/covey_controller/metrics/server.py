"""`/metrics`, on a port of its own that is closed unless asked for: OpenMetrics, or Prometheus' own text.

A port of its own, because all others answer to other people: the probes' to anybody who reaches the pod, those of the
two APIs to the leader's peers, for they pass connections on, and a figure is about this process. Plain HTTP: figures
hold counts, and no name of anything. Whom the network lets through is the NetworkPolicy's (docs/adr/0019-metrics.md).
"""

import asyncio
import logging

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from covey_controller.serving.listener import serve
from covey_controller.serving.tls import bind_tcp, render_url

PATH = "/metrics"
_log = logging.getLogger(__name__)


def build_metrics_app(registry: CollectorRegistry) -> Starlette:
    async def metrics(request: Request) -> Response:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": media_type, "cache-control": "no-store"})

    return Starlette(routes=[Route(PATH, metrics)])


async def serve_metrics(host: str, port: int, registry: CollectorRegistry) -> None:
    """Until cancelled. ListenFailed says why it can't listen."""
    bound = await bind_tcp(host, port, "--metrics-listen")
    try:
        where = render_url(bound, "http")
        await serve(
            build_metrics_app(registry),
            bound,
            closing=asyncio.Event(),
            on_listening=lambda: _log.info("figures on '%s%s'", where, PATH),
        )
    finally:
        bound.close()
