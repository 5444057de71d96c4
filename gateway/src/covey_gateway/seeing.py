"""What an operator may ask a gateway to tell: an access log, figures on a port of their own. Off unless asked for."""

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any

from covey_gateway.access_log import AccessLog
from covey_gateway.failures import StartError
from covey_gateway.traffic import Traffic

_log = logging.getLogger("covey.gateway")
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


def begin_access_log(
    where: str, traffic: Traffic, spawn: Spawn, *, is_shared: bool = False
) -> asyncio.Task[None] | None:
    """`-` is standard output, anything else a file, nothing no log. StartError where it can't be written to.

    `is_shared`: other workers write to it, too."""
    if not where:
        return None
    log = AccessLog(None if where == "-" else Path(where), is_shared=is_shared)
    try:
        log.open()
    except (OSError, ValueError) as error:
        raise _refuse_access_log(where, error) from None
    traffic.ledger.log = log
    return spawn(log.run())


def check_access_log(where: str) -> None:
    """StartError where the file can't be written to by who asks. It isn't made: others may write it later."""
    if where == "-":
        return
    try:
        path = Path(where)
        if path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            code = errno.EACCES if path.parent.is_dir() else errno.ENOENT
            raise OSError(code, f"{os.strerror(code)}: '{path.parent}'")
    except (OSError, ValueError) as error:
        raise _refuse_access_log(where, error) from None


def _refuse_access_log(where: str, error: Exception) -> StartError:
    words = getattr(error, "strerror", None) or str(error)
    return StartError(f"`--access-log` must be `-` or a file that can be written; '{where}': {words}")


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
