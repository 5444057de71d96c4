"""Which web pages may read the gateway's answers: none, unless their origin is on the list that whoever runs it gave.

A page's request reaches the gateway in any case; what these headers decide is whether its browser lets the page see the
answer, and send what is more than a form. Cookies are never allowed: keys are sent by the page itself.
"""

import re
from collections.abc import Iterable

from covey_gateway.wire.head import RequestHead

ANY = "*"
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")
# How long a browser may go without asking again; Chromium takes no more than two hours.
_MAX_AGE_SECONDS = 600

Headers = list[tuple[bytes, bytes]]

_LIMITS = (b"limit", b"remaining", b"reset")
# What a page may read beside the answer: who it was, when to come again, what its key may still ask for.
EXPOSED = b", ".join(
    (
        b"x-request-id, request-id, retry-after",
        *(b"x-ratelimit-%b-%b" % (each, what) for what in (b"requests", b"tokens") for each in _LIMITS),
        *(b"anthropic-ratelimit-%b-%b" % (what, each) for what in (b"requests", b"tokens") for each in _LIMITS),
    )
)


def parse_origins(texts: Iterable[str]) -> frozenset[bytes]:
    """ValueError names the one that is none."""
    origins: set[bytes] = set()
    for text in texts:
        if text != ANY and _ORIGIN.fullmatch(text.lower()) is None:
            raise ValueError(f"an origin must be like 'https://app.example' or 'http://localhost:3000'; got '{text}'")
        origins.add(text.lower().encode())
    return frozenset(origins)


def is_allowed(origins: frozenset[bytes], origin: bytes | None) -> bool:
    return bool(origins) and origin is not None and (origin.lower() in origins or ANY.encode() in origins)


def render_cors(origins: frozenset[bytes], origin: bytes | None) -> Headers:
    """What an answer to this origin has; nothing for one that isn't allowed."""
    if not origins:
        return []
    # A cache must not show one origin's answer to another one.
    headers = [(b"vary", b"origin")]
    if origin is not None and is_allowed(origins, origin):
        headers.append((b"access-control-allow-origin", origin))
        headers.append((b"access-control-expose-headers", EXPOSED))
    return headers


def is_preflight(origins: frozenset[bytes], head: RequestHead, headers: Headers) -> bool:
    """Whether a browser asks beforehand, for a page that may. It sends no key then."""
    if head.method != b"OPTIONS" or not is_allowed(origins, head.origin):
        return False
    return any(name == b"access-control-request-method" for name, _ in headers)


def render_preflight(headers: Headers) -> Headers:
    """What a preflight's answer has beside: whatever head fields the page wants to send, since all are read by name."""
    asked = dict(headers)
    answer = [(b"access-control-allow-methods", b"GET, POST"), (b"access-control-max-age", b"%d" % _MAX_AGE_SECONDS)]
    if _NAMES.fullmatch(names := asked.get(b"access-control-request-headers", b"")):
        answer.append((b"access-control-allow-headers", names))
    if asked.get(b"access-control-request-private-network") == b"true":
        answer.append((b"access-control-allow-private-network", b"true"))
    return answer
