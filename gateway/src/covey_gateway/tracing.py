"""Spans of requests, sent by OTLP over HTTP; off unless `--otlp-endpoint` names a receiver. Needs the extra `otlp`.

A request has three: its own (`server`), `queue` until it was sent to an engine, `first byte` from then until the engine
answered. The first begins with the request, so that engines hear its id; all else is told when the record is closed, so
nothing is added to a chunk's way. OpenTelemetry's own library samples (by its `OTEL_TRACES_SAMPLER`; what the client
decided, unless told otherwise), gathers and sends from a thread; what its queue of 2,048 doesn't hold is dropped.

Rejected: the library's instrumentation of ASGI (the hot path is no ASGI), and spans of each chunk.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from covey_gateway.records import CLIENT_GONE, Record, blank
from covey_gateway.wire.tracing import Trace, own_trace

_PATH = "/v1/traces"
# What a receiver that doesn't answer may take of the gateway's end.
END_SECONDS = 3.0
# One try of a batch, its repetitions included.
_EXPORT_SECONDS = 10.0
# The library says the same of every batch; a person needs it once in a while.
_TOLD_AGAIN_SECONDS = 300.0


class Tracer:
    """`clock` is monotonic: of the records' times."""

    def __init__(self, endpoint: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        name = os.environ.get("OTEL_SERVICE_NAME") or "covey-gateway"
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint + _PATH, timeout=_EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("covey.gateway")
        _quieten(endpoint)

    def begin(self, record: Record, given: Trace | None) -> Trace:
        """The request's own span begins, below the client's where it named one."""
        parent = Context()
        if given is not None:
            above = api.SpanContext(int(given.id, 16), int(given.span, 16), True, api.TraceFlags(given.flags))
            parent = api.set_span_in_context(api.NonRecordingSpan(above), parent)
        span = self._tracer.start_span(
            f"{record.method} {blank(record.path)}",
            parent,
            api.SpanKind.SERVER,
            {"http.request.method": record.method, "url.path": blank(record.path)},
            start_time=self._wall(record.began_at),
        )
        made = span.get_span_context()
        return own_trace(given, made.trace_id, made.span_id, made.trace_flags, span)

    def end(self, record: Record) -> None:
        if record.trace is None or record.trace.own is None:
            return
        span: api.Span = record.trace.own
        if span.is_recording():
            self._tell(record, span)
        span.end(self._wall(record.ended_at))

    def _tell(self, record: Record, span: api.Span) -> None:
        span.set_attributes({name: value for name, value in _attributes(record).items() if value not in ("", None)})
        if record.status >= 500:
            span.set_status(api.StatusCode.ERROR, record.code)
        if not record.model:
            return
        sent_at = record.ended_at if record.sent_at is None else record.sent_at
        self._tell_part("queue", span, record.began_at, sent_at)
        if record.sent_at is not None:
            first_at = record.ended_at if record.first_byte_at is None else record.first_byte_at
            self._tell_part("first byte", span, record.sent_at, first_at)

    def _tell_part(self, name: str, span: api.Span, began_at: float, ended_at: float) -> None:
        part = self._tracer.start_span(name, api.set_span_in_context(span, Context()), start_time=self._wall(began_at))
        part.end(self._wall(ended_at))

    def _wall(self, at: float) -> int:
        """Nanoseconds since the epoch."""
        return time.time_ns() - int((self._clock() - at) * 1e9)

    async def close(self) -> None:
        """Send what is there, as far as the receiver takes it in time."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, END_SECONDS)


def _attributes(record: Record) -> dict[str, str | int | None]:
    """Names are OpenTelemetry's where it has one."""
    cost = record.cost
    is_counted = record.sent_at is not None
    return {
        "http.response.status_code": record.status,
        "error.type": record.code or ("client_gone" if record.status == CLIENT_GONE else ""),
        "client.address": record.client,
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": cost.prompt if is_counted else None,
        "gen_ai.usage.output_tokens": cost.completion if is_counted else None,
        "covey.request.id": blank(record.request_id),
        "covey.key": record.key,
        "covey.instance": record.endpoint,
    }


class _Seldom(logging.Filter):
    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._told_at = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or (now := time.monotonic()) - self._told_at < _TOLD_AGAIN_SECONDS:
            return False
        self._told_at = now
        record.msg = f"spans can't be sent to '{self._endpoint}', and are dropped: {record.getMessage()[:300]}"
        record.args, record.exc_info = (), None
        return True


def _quieten(endpoint: str) -> None:
    seldom = _Seldom(endpoint)
    for name in ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal"):
        logging.getLogger(name).addFilter(seldom)
