"""Which parts a fault touches, or touched a moment ago: what is said of those may be old."""


class Calm:
    """Which faults touch which part now, and when the last one left it."""

    def __init__(self) -> None:
        self._causes: dict[str, set[str]] = {}
        self._until: dict[str, float] = {}

    def begin(self, part: str, cause: str) -> None:
        self._causes.setdefault(part, set()).add(cause)

    def end(self, part: str, cause: str, until: float) -> None:
        """The fault is over; what it leaves behind is, at `until`."""
        self._causes.get(part, set()).discard(cause)
        self._until[part] = max(until, self._until.get(part, 0.0))

    def holds(self, now: float, seconds: float, *parts: str) -> bool:
        return all(not self._causes.get(part) and now - self._until.get(part, 0.0) >= seconds for part in parts)
