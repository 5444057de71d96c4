"""What an operator may ask a gateway to tell: an access log, figures on a port of their own. Off unless asked for."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any

from covey_gateway.access_log import AccessLog
from covey_gateway.failures import StartError
from covey_gateway.traffic import Traffic

_log = logging.getLogger("covey.gateway")
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


def begin_access_log(where: str, traffic: Traffic, spawn: Spawn) -> asyncio.Task[None] | None:
    """`-` is standard output, anything else a file, nothing no log. StartError where it can't be written to."""
    if not where:
        return None
    log = AccessLog(None if where == "-" else Path(where))
    try:
        log.open()
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise StartError(f"`--access-log` must be `-` or a file that can be written; '{where}': {words}") from None
    traffic.ledger.log = log
    return spawn(log.run())


async def trace_requests(endpoint: str, traffic: Traffic) -> None:
    """Until cancelled. StartError where the library for it isn't installed."""
    try:
        module = await asyncio.to_thread(import_module, "covey_gateway.tracing")
    except ImportError as error:
        words = f"`--otlp-endpoint` needs the extra `otlp`: install `covey-gateway[otlp]` ({error})"
        raise StartError(words) from None
    tracer = module.Tracer(endpoint, traffic.now)
    traffic.ledger.tracer = tracer
    _log.info("spans of requests go to '%s'", endpoint)
    try:
        await asyncio.Event().wait()
    finally:
        traffic.ledger.tracer = None
        await tracer.close()


async def serve_figures(host: str, port: int, traffic: Traffic) -> None:
    """Until cancelled. StartError where it can't listen."""
    from covey_gateway.server import bind_socket

    bound = bind_socket(host, port, "--metrics-listen")
    exposition = await asyncio.to_thread(import_module, "covey_gateway.exposition")
    server = await exposition.serve_figures(bound, traffic.ledger.figures)
    named = f"[{host}]" if ":" in host else host
    _log.info("figures on 'http://%s:%d%s'", named, bound.getsockname()[1], exposition.PATH)
    try:
        await asyncio.Event().wait()
    finally:
        server.close()
