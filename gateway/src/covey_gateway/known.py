"""The head of a request that came before on the same connection: what it meant then it means again.

Clients send the same head with each request of a connection, but for the length of the body. It was parsed once, and
checked, and whoever sent it admitted; the same bytes at the same place, a request's beginning, need none of it again.
What depends on more than bytes is kept with it: the table by which its key was found, the key's end.
"""

import re
from dataclasses import dataclass, field

from covey_gateway.routing.line import Ticket
from covey_gateway.routing.table import Caller, PlainRoute, RoutingTable
from covey_gateway.wire.head import RequestHead

# Heads of SDKs have some 700 bytes; each connection keeps one.
MAX_KNOWN_BYTES = 4096
# A client whose heads differ each time (an id, a trace) gains nothing by it.
MAX_LEARNED = 4
# Models that one client asks for by turns.
_MAX_ROUTES = 16

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,7})[ \t]*\r\n", re.IGNORECASE)


@dataclass(slots=True)
class Known:
    """A plain request's head, and who sent it."""

    head: RequestHead
    caller: Caller
    ticket: Ticket
    table: RoutingTable
    """By which it was admitted; by another it must be again."""
    expires_at: float | None
    """Of its key; seconds since the epoch."""
    keeps_alive: bool
    before: bytes = b""
    """The head up to the body's length; empty: it isn't known by its bytes."""
    after: bytes = b""
    routes: dict[str, PlainRoute] = field(default_factory=dict[str, PlainRoute])

    def learn(self, data: bytes) -> None:
        """`data` begins with this head."""
        end = data.find(b"\r\n\r\n") + 4
        found = _LENGTH.findall(data[: end - 2]) if 4 <= end <= MAX_KNOWN_BYTES else []
        if len(found) == 1 and self.keeps_alive:
            match = _LENGTH.search(data)
            if match is not None:
                self.before, self.after = data[: match.start(1)], data[match.end(1) : end]

    def find_body(self, data: bytes) -> bytes | None:
        """The body of a request with this head, if that is all of `data`."""
        if not self.before or not data.startswith(self.before):
            return None
        start = len(self.before)
        end = data.find(b"\r", start, start + 8)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self.after, end):
            return None
        begin = end + len(self.after)
        return data[begin:] if len(data) - begin == int(digits) else None

    def remember(self, name: str, route: PlainRoute) -> None:
        if len(self.routes) >= _MAX_ROUTES:
            self.routes.clear()
        self.routes[name] = route
