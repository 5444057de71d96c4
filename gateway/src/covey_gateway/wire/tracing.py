"""W3C Trace Context: which trace a request belongs to, as its client says and as its engine hears. Pure.

A client's `traceparent` passes to the engine as it came; one that isn't of the form is left out, and its `tracestate`
with it, as the recommendation says: an engine must not start from half of a trace.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

_PARENT = re.compile(
    rb"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
# The recommendation asks for 512 at least; vendors stay below, and every engine's head has room for this.
MAX_STATE_BYTES = 2048
_STATE = re.compile(rb"[\x20-\x7e\t]*")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class Trace:
    id: str
    """32 hexadecimal digits."""
    span: str
    """Of whoever asks the engine: the client's, or the gateway's own where it has one. 16 digits."""
    flags: int
    state: str = ""
    own: Any = None
    """The gateway's own span, where it makes one; nobody but who made it knows what it is."""

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & _SAMPLED)


def parse_trace(headers: list[tuple[bytes, bytes]]) -> Trace | None:
    """`headers` with lower-case names. None: the client names no trace, or none that can be read."""
    parents = [value for name, value in headers if name == b"traceparent"]
    found = _PARENT.fullmatch(parents[0].strip()) if len(parents) == 1 else None
    if found is None or found["version"] == b"ff" or (found["version"] == b"00" and found["more"] is not None):
        return None
    trace, span = found["trace"].decode(), found["span"].decode()
    if not int(trace, 16) or not int(span, 16):
        return None
    state = b",".join(value.strip() for name, value in headers if name == b"tracestate")
    if len(state) > MAX_STATE_BYTES or not _STATE.fullmatch(state):
        state = b""
    return Trace(trace, span, int(found["flags"], 16), state.decode())


def render_trace(trace: Trace) -> str:
    """Header lines for an engine, each with its end. A version that isn't known is told as the one that is."""
    state = f"tracestate: {trace.state}\r\n" if trace.state else ""
    return f"traceparent: 00-{trace.id}-{trace.span}-{trace.flags:02x}\r\n{state}"


def own_trace(trace: Trace | None, id_: int, span: int, flags: int, own: Any) -> Trace:
    """The same trace with the gateway's own span between client and engine; a new one where there was none."""
    found = Trace(f"{id_:032x}", f"{span:016x}", flags, own=own)
    return found if trace is None else replace(found, state=trace.state)
