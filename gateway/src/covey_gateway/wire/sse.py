"""Server-sent events as bytes: only whole events are passed on, so that an error event never lands inside another.

Engines write one event at a time, so the usual piece ends where an event ends and passes without a copy.
"""

from collections.abc import Iterator

from covey_gateway.limits import MAX_EVENT_BYTES

_ENDS = (b"\n\n", b"\r\n\r\n")
DONE = b"[DONE]"
ERROR_FIELD = b"error:"
"""Engines that write their error as a field of its own; SDKs read past it."""


class EventTooLong(Exception):
    """An event without an end."""


class EventBuffer:
    """Cuts a byte stream at ends of events."""

    __slots__ = ("_rest", "_tail")

    def __init__(self) -> None:
        self._rest = b""
        self._tail = b""

    def feed(self, piece: bytes) -> bytes:
        """The whole events that are there by now, perhaps none. EventTooLong when one that isn't exceeds its bound."""
        if self._rest:
            piece = self._rest + piece
            self._rest = b""
        if not piece.endswith(_ENDS):
            end = _find_end(piece)
            piece, self._rest = piece[:end], piece[end:]
            if len(self._rest) > MAX_EVENT_BYTES:
                raise EventTooLong
        if piece:
            self._tail = (self._tail + piece[-32:])[-32:]
        return piece

    @property
    def is_done(self) -> bool:
        """Whether the last event was the format's own end."""
        return self._tail.rstrip().endswith((b"data: [DONE]", b"data:[DONE]"))


def _find_end(piece: bytes) -> int:
    """Where the last whole event ends; zero if none does."""
    return max((at + len(end) for end in _ENDS if (at := piece.rfind(end)) >= 0), default=0)


def split_events(events: bytes) -> Iterator[bytes]:
    """Each of the whole events, with its end."""
    for event in events.replace(b"\r\n", b"\n").split(b"\n\n"):
        if event:
            yield event + b"\n\n"


def may_tell_error(events: bytes) -> bool:
    """Whether it is worth a look: an `error` as a key or a value of JSON, whose texts escape quotes, or as a field."""
    return b'"error"' in events or events.startswith(ERROR_FIELD) or b"\n" + ERROR_FIELD in events


def split_data(events: bytes) -> Iterator[bytes]:
    """The data of each event, also of the `error:` field that some engines write."""
    for line in events.splitlines():
        field, colon, value = line.partition(b":")
        if colon and field in (b"data", b"error"):
            yield value.strip()
