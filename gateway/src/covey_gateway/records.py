"""What is written down of one request: enough for an access log, for figures and for its key's usage; never a body or
a key.

Names that a client chose (path, request id) are cut and blanked where they look like a key; the model is the declared
one's name, so a client can't make names up.
"""

import re
from dataclasses import dataclass

from covey_gateway.wire.metering import NO_COST, Cost
from covey_gateway.wire.tracing import Trace

# Clients choose paths; the longest that means something here has some 60 characters.
_MAX_PATH = 256
_SECRET = re.compile(r"sk-[A-Za-z0-9_-]+")
# As nginx says it: the client was gone before the answer's end. It is told to nobody.
CLIENT_GONE = 499


@dataclass(slots=True)
class Record:
    """Times are the gateway's monotonic seconds."""

    method: str
    path: str
    request_id: str
    began_at: float
    format: str = ""
    client: str = ""
    """Address it came from."""
    key: str = ""
    """`namespace/name` of the AccessKey; empty: none was sent, or it was refused."""
    namespace: str = ""
    model: str = ""
    """The Model's name; empty: none was found."""
    endpoint: str = ""
    """The last instance that it was sent to."""
    status: int = 0
    """Of an error in a stream that had begun: the error's."""
    code: str = ""
    """The error's; empty: there was none."""
    limit: str = ""
    """Which of its key's limits was hit."""
    is_stream: bool = False
    request_bytes: int = 0
    answer_bytes: int = 0
    sent_at: float | None = None
    """When it was first sent to an engine: until then it was held."""
    first_byte_at: float | None = None
    """When the answer's first byte came from the engine."""
    last_byte_at: float | None = None
    ended_at: float = 0.0
    cost: Cost = NO_COST
    trace: Trace | None = None
    """What its engine was told; None: it belongs to no trace."""


def blank(text: str) -> str:
    """Fit to be written down."""
    cut = text[:_MAX_PATH]
    return _SECRET.sub("sk-…", cut) if "sk-" in cut else cut
