"""Servers that asked to be left alone for longer than a download waits: nobody asks them before."""

import time

# Whoever asks for more is asked again all the same: by then a person may have changed something.
LONGEST_SECONDS = 3600.0
_MAX_SERVERS = 256


class Pauses:
    """By scheme, host and port."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def note(self, server: str, asked_seconds: float) -> None:
        now = time.monotonic()
        self._until = {each: until for each, until in self._until.items() if until > now}
        if len(self._until) < _MAX_SERVERS:
            self._until[server] = now + min(asked_seconds, LONGEST_SECONDS)

    def left_seconds(self, server: str) -> float:
        """0: it may be asked."""
        return max(0.0, self._until.get(server, 0.0) - time.monotonic())
