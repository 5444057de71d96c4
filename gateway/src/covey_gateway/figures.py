"""What is counted, in plain numbers: two dictionary look-ups a figure, and no library until somebody asks.

The labels are closed: formats and statuses are the gateway's own, models are declared ones. Of models the first
`MAX_MODELS` have series of their own, all others share one: a fleet that declares thousands in a year must not grow a
gateway's memory or a Prometheus.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from covey_api.meta import DEFAULT_NAMESPACE

from covey_gateway.records import Record

OK = 200
# What has waited for an engine and got none.
ENDED_WAITING = frozenset({499, 503, 504})
MAX_MODELS = 256
OTHER_MODEL = "other"
# From a cached prompt on a GPU to a long one on a processor, behind others.
WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
# Between two tokens: 1 ms is a small model on a GPU, 1 s a large one on a processor.
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of each bucket alone; the last is above all bounds."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class ModelFigures:
    requests: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    """By status and format."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ejections: int = 0
    held: Histogram = field(default_factory=lambda: Histogram(WAIT_BUCKETS))
    first_token: Histogram = field(default_factory=lambda: Histogram(WAIT_BUCKETS))
    token_interval: Histogram = field(default_factory=lambda: Histogram(TOKEN_BUCKETS))
    duration: Histogram = field(default_factory=lambda: Histogram(WAIT_BUCKETS))


@dataclass(frozen=True, slots=True)
class Present:
    """What is, at one moment."""

    connections: int = 0
    in_flight: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """By namespace and name of the Model."""
    held: int = 0
    in_line: int = 0
    """Requests that have an endpoint, and wait for their turn there."""
    is_ready: bool = False
    log_lines_dropped: int = 0


class Figures:
    def __init__(self) -> None:
        self.models: dict[str, ModelFigures] = {}
        self.limited: dict[str, int] = {}
        """Requests refused, by the limit of their key that was hit."""
        self._known: dict[tuple[str, str], ModelFigures] = {}
        """By names, which are declared ones: as many as models there are."""
        self.observe: Callable[[], Present] = Present

    def of_model(self, namespace: str, name: str) -> ModelFigures:
        known = self._known.get((namespace, name))
        if known is None:
            known = self._known[namespace, name] = self._find(namespace, name)
        return known

    def _find(self, namespace: str, name: str) -> ModelFigures:
        label = self.label(namespace, name)
        found = self.models.get(label)
        if found is None:
            found = self.models[label] = ModelFigures()
        return found

    def count_ejection(self, namespace: str, name: str) -> None:
        self.of_model(namespace, name).ejections += 1

    def whole(self) -> "Figures":
        """Of all workers, to be read."""
        return self

    def label(self, namespace: str, name: str) -> str:
        """Empty: a request that found no model."""
        label = name if namespace in ("", DEFAULT_NAMESPACE) else f"{namespace}/{name}"
        return label if not label or label in self.models or len(self.models) < MAX_MODELS else OTHER_MODEL

    def add(self, record: Record) -> None:
        """One request that is over."""
        model = self.of_model(record.namespace, record.model)
        kind = (record.status, record.format)
        model.requests[kind] = model.requests.get(kind, 0) + 1
        if record.limit:
            self.limited[record.limit] = self.limited.get(record.limit, 0) + 1
        if not record.model:
            return
        model.duration.observe(record.ended_at - record.began_at)
        if record.sent_at is None:
            if record.status in ENDED_WAITING:
                model.held.observe(record.ended_at - record.began_at)
            return
        model.held.observe(record.sent_at - record.began_at)
        cost = record.cost
        model.prompt_tokens += cost.prompt
        model.cached_tokens += cost.cached
        model.completion_tokens += cost.completion
        first, last = record.first_byte_at, record.last_byte_at
        if record.status == OK and first is not None and last is not None:
            model.first_token.observe(first - record.began_at)
            if cost.completion > 1:
                model.token_interval.observe((last - first) / (cost.completion - 1))
