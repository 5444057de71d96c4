"""Request heads: what a client's head says, and the one ambiguity a parser leaves.

llhttp in its strict mode already refuses what requests are smuggled with: Content-Length beside Transfer-Encoding, two
Content-Lengths, folded lines, bare LF, bad chunk sizes. What it lets through is refused here: two Hosts, an unknown
transfer coding, chunked in HTTP/1.0, absolute request targets.
"""

import re
from dataclasses import dataclass

from covey_api.reasons import ErrorCode

from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.tracing import Trace, parse_trace

# Browsers and SDKs send 10 to 30 headers in 2 kB.
MAX_HEADERS = 100
MAX_HEAD_BYTES = 64 * 1024

_SINGLE = frozenset(
    (b"host", b"origin", b"authorization", b"x-api-key", b"content-length", b"transfer-encoding", b"expect")
)
_SECONDS = re.compile(rb"[0-9]{1,6}")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


@dataclass(frozen=True, slots=True)
class RequestHead:
    method: bytes
    path: bytes
    host: bytes | None
    origin: bytes | None
    credential: str | None
    """What follows `Bearer`, or the `x-api-key`."""
    request_id: str | None
    """The client's own `x-request-id`, if it is one that can be passed on."""
    content_length: int
    """Zero when the body is chunked or absent."""
    expects_continue: bool
    hold_seconds: int | None = None
    """The longest that the client wants to be held for (`x-covey-hold`); None: it doesn't say."""
    session: bytes = b""
    """The conversation, as the client names it (`x-session-id`); empty: it doesn't."""
    trace: Trace | None = None


def parse_head(
    method: bytes, target: bytes, version: str, headers: list[tuple[bytes, bytes]]
) -> RequestHead | ApiError:
    """`headers` with lower-case names, in order."""
    if len(headers) > MAX_HEADERS:
        return _too_large(f"a request must have at most {MAX_HEADERS} headers; got {len(headers)}")
    seen: dict[bytes, bytes] = {}
    total_bytes = len(target)
    for name, value in headers:
        if name in seen and name in _SINGLE:
            return invalid_request(f"the header '{name.decode('latin-1')}' must be given once")
        seen[name] = value
        total_bytes += len(name) + len(value)
    if total_bytes > MAX_HEAD_BYTES:
        return _too_large(f"a request head must have at most {MAX_HEAD_BYTES} bytes; got {total_bytes}")
    if not target.startswith(b"/") or not target.isascii():
        return invalid_request("the request target must be a path in ASCII that begins with '/'")
    if version not in ("1.0", "1.1"):
        return invalid_request(f"the protocol must be HTTP/1.1 or HTTP/1.0; got HTTP/{version}")
    if version == "1.1" and b"host" not in seen:
        return invalid_request("an HTTP/1.1 request must have a 'host' header")
    coding = seen.get(b"transfer-encoding")
    if coding is not None and (version == "1.0" or coding.strip().lower() != b"chunked"):
        return invalid_request("'transfer-encoding' must be 'chunked', in HTTP/1.1 only")
    hold_seconds = None
    if (hold := seen.get(b"x-covey-hold")) is not None:
        if not _SECONDS.fullmatch(hold):
            return invalid_request("'x-covey-hold' must be a whole number of seconds, 0 to be answered at once")
        hold_seconds = int(hold)
    return RequestHead(
        method=method,
        path=target.partition(b"?")[0],
        host=seen.get(b"host"),
        origin=seen.get(b"origin"),
        credential=_find_credential(seen),
        request_id=_find_request_id(seen),
        content_length=int(seen.get(b"content-length", b"0")),
        expects_continue=version == "1.1" and seen.get(b"expect", b"").lower() == b"100-continue",
        hold_seconds=hold_seconds,
        session=seen.get(b"x-session-id", b""),
        trace=parse_trace(headers) if b"traceparent" in seen else None,
    )


def is_request_id(text: str) -> bool:
    return text.isascii() and _REQUEST_ID.fullmatch(text.encode()) is not None


def _find_credential(headers: dict[bytes, bytes]) -> str | None:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and (token := token.strip()):
        return token.decode("latin-1")
    key = headers.get(b"x-api-key", b"").strip()
    return key.decode("latin-1") if key else None


def _find_request_id(headers: dict[bytes, bytes]) -> str | None:
    given = headers.get(b"x-request-id")
    return given.decode() if given is not None and _REQUEST_ID.fullmatch(given) else None


def _too_large(message: str) -> ApiError:
    return ApiError(431, ErrorCode.INVALID_REQUEST, message)
