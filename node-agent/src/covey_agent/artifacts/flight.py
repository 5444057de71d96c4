"""One piece of work at a time per key, however many ask for it, with its progress told to all of them.

Whoever comes first does the work; the others wait, and find it done. If the first is cancelled the next one goes on
from what is on disk. Sharing one task was the alternative: it would have to outlive whoever started it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from covey_agent.ports import AgentError, OnTransfer, Transfer

T = TypeVar("T")

# Progress is for people and for reports every two seconds: five times a second is smooth enough.
_REPORT_SECONDS = 0.2
# The rate is the mean of the last samples: five seconds of them.
_SAMPLES = 25


@dataclass(slots=True)
class _Flight:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    listeners: list[OnTransfer] = field(default_factory=list[OnTransfer])
    failure: AgentError | None = None

    def tell(self, transfer: Transfer) -> None:
        for listener in tuple(self.listeners):
            listener(transfer)


class Flights:
    """Work under way, by key."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight] = {}

    async def run(self, key: str, on_transfer: OnTransfer, work: Callable[[OnTransfer], Awaitable[T]]) -> T:
        """Do the work alone. `work` must first look whether it is done already. Who waited for a failure shares it."""
        flight = self._flights.setdefault(key, _Flight())
        flight.listeners.append(on_transfer)
        try:
            async with flight.lock:
                if flight.failure is not None:
                    raise AgentError(flight.failure.cause, flight.failure.message, flight.failure.retry_after_seconds)
                try:
                    return await work(flight.tell)
                except AgentError as error:
                    flight.failure = error
                    raise
        finally:
            flight.listeners.remove(on_transfer)
            if not flight.listeners:
                self._flights.pop(key, None)


class Meter:
    """Turns byte counts into Transfers with a rate, a few times a second."""

    def __init__(self, total_bytes: int, on_transfer: OnTransfer) -> None:
        self._total_bytes = total_bytes
        self._on_transfer = on_transfer
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)

    def observe_bytes(self, done_bytes: int, *, last: bool = False) -> None:
        now = time.monotonic()
        if self._samples and now - self._samples[-1][0] < _REPORT_SECONDS and not last:
            return
        if self._samples and done_bytes < self._samples[-1][1]:
            self._samples.clear()  # started over
        self._samples.append((now, done_bytes))
        first_at, first_bytes = self._samples[0]
        rate = int((done_bytes - first_bytes) / (now - first_at)) if now > first_at else 0
        self._on_transfer(Transfer(done_bytes, self._total_bytes, rate))
