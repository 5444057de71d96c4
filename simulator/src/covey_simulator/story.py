"""What happened in one run, in the plan's own words, and what must never happen.

The trace is a digest over every word and every line that crossed: two runs of one seed have the same.
"""

import hashlib
from collections import deque
from collections.abc import Callable

# What a person reads of a failed run; the whole is told again by running the seed with `--verbose`.
MAX_LINES = 400


class Violation(Exception):
    """A rule that no fault may break was broken."""


class Story:
    """`clock` is the loop's; a line is kept for people, and counted in the trace."""

    def __init__(self, clock: Callable[[], float], *, is_told: bool = False) -> None:
        self._clock = clock
        self._is_told = is_told
        self._digest = hashlib.sha256()
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self.violations: list[str] = []

    @property
    def trace(self) -> str:
        return self._digest.hexdigest()[:16]

    def tell(self, who: str, words: str) -> None:
        line = f"{self._clock():9.3f}  {who:<12} {words}"
        self.lines.append(line)
        self._digest.update(line.encode())
        if self._is_told:
            print(line)

    def count(self, crossed: bytes) -> None:
        """What crossed between two parts: in the trace only."""
        self._digest.update(crossed)

    def violate(self, rule: str) -> None:
        """Remember it, once; the run ends at its next look."""
        if rule not in self.violations:
            self.tell("VIOLATION", rule)
            self.violations.append(rule)
