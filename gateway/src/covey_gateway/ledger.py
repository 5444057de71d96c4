"""Where each request ends up when it is over: in the figures, in its key's usage, in the access log.

One call a request. What its tokens are worth is known by then: the engine's figures, or an estimate by what prompts
of its model have come to per byte.
"""

from collections.abc import Callable
from typing import Protocol

from covey_gateway.figures import Figures
from covey_gateway.records import Record
from covey_gateway.wire.metering import Meter
from covey_gateway.wire.tracing import Trace

# A prompt of a model that has answered nobody yet: English text in JSON. Each later one moves the guess by a fifth.
_BYTES_PER_TOKEN = 4.0
_WEIGHT = 0.2
# Models that were declared since the start; the guess for any beyond is the first one.
_MAX_MODELS = 1024


class Line(Protocol):
    """Who writes records down."""

    @property
    def dropped(self) -> int:
        """Lines that were not written, since the start."""
        ...

    def write(self, record: Record) -> None: ...


class Spans(Protocol):
    """Who traces requests."""

    def begin(self, record: Record, given: Trace | None) -> Trace:
        """`given`: by the client."""
        ...

    def end(self, record: Record) -> None: ...


class Ledger:
    """`clock` is monotonic. `on_cost`: what the request of a key came to that reached an engine."""

    def __init__(self, clock: Callable[[], float], on_cost: Callable[[Record], None]) -> None:
        self.figures = Figures()
        self.log: Line | None = None
        self.tracer: Spans | None = None
        self._clock = clock
        self._on_cost = on_cost
        self._bytes_per_token: dict[tuple[str, str], float] = {}

    def close(self, record: Record, meter: Meter | None = None) -> None:
        """It is over. `meter`: of what was asked of an engine."""
        record.ended_at = self._clock()
        if meter is not None and record.sent_at is not None:
            self._add_cost(record, meter)
        self.figures.add(record)
        if self.log is not None:
            self.log.write(record)
        if self.tracer is not None:
            self.tracer.end(record)

    def _add_cost(self, record: Record, meter: Meter) -> None:
        name = (record.namespace, record.model)
        known = self._bytes_per_token.get(name, _BYTES_PER_TOKEN)
        cost = record.cost = meter.cost(max(1, round(record.request_bytes / known)))
        if not cost.is_estimated and cost.prompt and (name in self._bytes_per_token or self._has_room()):
            found = record.request_bytes / cost.prompt
            is_first = name not in self._bytes_per_token
            self._bytes_per_token[name] = found if is_first else known + _WEIGHT * (found - known)
        if record.key and meter.has_reached:
            self._on_cost(record)

    def _has_room(self) -> bool:
        return len(self._bytes_per_token) < _MAX_MODELS
