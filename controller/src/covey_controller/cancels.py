"""Requests that somebody wants ended, on their way from one gateway to all others.

Kept for streams that are open and haven't sent them yet, in memory only: a wish is worth as much as its request is
alive. A stream that opens gets none of before: the same id may be another request's by then.
"""

from collections import deque

from covey_api.messages import Cancel, Endpoints

# More than come between two turns of a stream; the oldest are dropped.
MAX_CANCELS = 256


class Cancels:
    def __init__(self) -> None:
        self.newest = 0
        """How many there were so far."""
        self._kept: deque[tuple[int, str, Cancel]] = deque(maxlen=MAX_CANCELS)

    def add(self, gateway: str, cancel: Cancel) -> None:
        self.newest += 1
        self._kept.append((self.newest, gateway, cancel))

    def after(self, number: int, gateway: str) -> tuple[Cancel, ...]:
        """Those that this gateway should hear of, and didn't itself bring."""
        return tuple(cancel for each, origin, cancel in self._kept if each > number and origin != gateway)


def render_line(cancels: tuple[Cancel, ...]) -> Endpoints:
    """A line of the gateways' stream that is no table."""
    return Endpoints(term=-1, serial=-1, cancels=cancels)
