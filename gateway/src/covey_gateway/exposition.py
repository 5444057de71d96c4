"""`/metrics`: the figures in OpenMetrics or Prometheus' own text, and the port of their own where there is one.

Loaded when somebody asks, or `--metrics-listen` says that somebody will: the library takes longer to load than a
gateway may take to answer after it was killed.
"""

import asyncio
import socket
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from covey_gateway.figures import Figures, Histogram, ModelFigures
from covey_gateway.limits import MAX_SCRAPE_BYTES, MAX_SCRAPES, SCRAPE_SECONDS

PATH = "/metrics"
_PREFIX = "covey_gateway"
_COUNTERS = (
    ("prompt_tokens", "Tokens of prompts, cached ones included."),
    ("cached_tokens", "Of the prompts' tokens, those that an engine had in its cache."),
    ("completion_tokens", "Tokens that engines generated; of answers that broke off, as many as events came."),
    ("ejections", "How often an endpoint was set aside: it refused, or broke off before a byte."),
)
_HISTOGRAMS = (
    ("held_seconds", "held", "From a request's arrival until it was sent to an engine, or ended without."),
    ("first_token_seconds", "first_token", "From a request's arrival until the first event of an engine's answer."),
    ("token_interval_seconds", "token_interval", "Between two tokens: the mean of each answer."),
    ("request_seconds", "duration", "From a request's arrival to its end, of those that named a model."),
)


class GatewayCollector(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        models = sorted(self._figures.models.items())
        named = [(label, model) for label, model in models if label]
        yield _requests(models)
        for name, words in _COUNTERS:
            family = CounterMetricFamily(f"{_PREFIX}_{name}", words, labels=["model"])
            for label, model in named:
                family.add_metric([label], getattr(model, name))
            yield family
        for name, attribute, words in _HISTOGRAMS:
            histogram = HistogramMetricFamily(f"{_PREFIX}_{name}", words, labels=["model"])
            for label, model in named:
                _add_histogram(histogram, label, getattr(model, attribute))
            yield histogram
        yield self._limited()
        yield from self._present()

    def _limited(self) -> Metric:
        words = "Requests refused because a limit of their key was hit."
        family = CounterMetricFamily(f"{_PREFIX}_limited_requests", words, labels=["limit"])
        for limit in ("requestsPerMinute", "tokensPerMinute", "tokensPerDay", "concurrency"):
            family.add_metric([limit], self._figures.limited.get(limit, 0))
        return family

    def _present(self) -> Iterator[Metric]:
        present = self._figures.observe()
        in_flight = GaugeMetricFamily(f"{_PREFIX}_in_flight_requests", "Requests at engines now.", labels=["model"])
        by_label: dict[str, int] = {}
        for (namespace, name), count in present.in_flight.items():
            label = self._figures.label(namespace, name)
            by_label[label] = by_label.get(label, 0) + count
        for label, count in sorted(by_label.items()):
            in_flight.add_metric([label], count)
        yield in_flight
        yield GaugeMetricFamily(f"{_PREFIX}_held_requests", "Requests that wait for a model.", value=present.held)
        words = "Requests in line before an endpoint."
        yield GaugeMetricFamily(f"{_PREFIX}_queued_requests", words, value=present.in_line)
        yield GaugeMetricFamily(f"{_PREFIX}_connections", "Clients connected.", value=present.connections)
        words = "1 where it could serve: a table was applied, and there is a key where one is needed."
        yield GaugeMetricFamily(f"{_PREFIX}_ready", words, value=float(present.is_ready))
        words = "Lines of the access log that were dropped: nobody took them in time."
        yield CounterMetricFamily(f"{_PREFIX}_log_lines_dropped", words, value=present.log_lines_dropped)


def _requests(models: list[tuple[str, ModelFigures]]) -> Metric:
    words = "Requests that are over. `model` is empty where none was found; 499: the client left before the end."
    family = CounterMetricFamily(f"{_PREFIX}_requests", words, labels=["model", "code", "format"])
    for label, model in models:
        for (status, form), count in sorted(model.requests.items()):
            family.add_metric([label, str(status), form], count)
    return family


def _add_histogram(family: HistogramMetricFamily, label: str, histogram: Histogram) -> None:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    family.add_metric([label], buckets, histogram.total)


def render_figures(figures: Figures, accept: str) -> Response:
    registry = CollectorRegistry()
    registry.register(GatewayCollector(figures.whole()))
    encode, media_type = choose_encoder(accept)
    return Response(encode(registry), headers={"content-type": media_type, "cache-control": "no-store"})


class _Scrape(HttpToolsProtocol):
    """One connection, one request, and an end: whoever reaches the port must not take the descriptors of clients."""

    def __init__(self, config: Config, state: ServerState) -> None:
        super().__init__(config, state, app_state={}, _loop=asyncio.get_running_loop())
        self._bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > MAX_SCRAPES:
            transport.abort()
        else:
            self._deadline = self.loop.call_later(SCRAPE_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > MAX_SCRAPE_BYTES:
            self.transport.abort()
        elif not self.transport.is_closing():
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)


async def serve_figures(bound: socket.socket, figures: Figures) -> asyncio.Server:
    """On a port of their own, without a login: whom the network lets through is not this process's to say."""

    async def metrics(request: Request) -> Response:
        return render_figures(figures, request.headers.get("accept", ""))

    app = Starlette(routes=[Route(PATH, metrics)])
    config = Config(app, lifespan="off", ws="none", log_config=None, access_log=False, server_header=False)
    config.load()
    state = ServerState()
    state.default_headers = [(b"connection", b"close")]
    return await asyncio.get_running_loop().create_server(lambda: _Scrape(config, state), sock=bound)
