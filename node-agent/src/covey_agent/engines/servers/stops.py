"""Stop texts in a stream: what may still become one is held back."""


class Stops:
    """Feed pieces to `take`; what it returns may be shown."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts
        self._held = ""
        self.met: str | None = None

    @property
    def is_met(self) -> bool:
        return self.met is not None

    def take(self, piece: str) -> str:
        if self.is_met:
            return ""
        text = self._held + piece
        found = [(place, stop) for stop in self._texts if (place := text.find(stop)) >= 0]
        if found:
            place, self.met = min(found)
            self._held = ""
            return text[:place]
        held = max((_overlap(text, stop) for stop in self._texts), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """What was held back, once nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of `text` begin `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
