"""Stop texts in a stream: what may still become one is held back."""


class Stops:
    """Feed pieces to `take`; what it returns may be shown."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts
        self._held = ""
        self.is_met = False

    def take(self, piece: str) -> str:
        if self.is_met:
            return ""
        text = self._held + piece
        found = [place for stop in self._texts if (place := text.find(stop)) >= 0]
        if found:
            self.is_met, self._held = True, ""
            return text[: min(found)]
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
