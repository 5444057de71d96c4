"""Heads that the gateway writes, to clients and to engines. They are always written anew: nothing passes by default.

So hop-by-hop headers, an engine's CORS, `Server` and `Keep-Alive` can't reach a client, nor a client's to an engine.
"""

from functools import lru_cache
from http import HTTPStatus

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

_COMMON = (
    b"date: %b\r\nx-request-id: %b\r\nrequest-id: %b\r\nconnection: close\r\n",
    b"date: %b\r\nx-request-id: %b\r\nrequest-id: %b\r\n",
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def render_answer(
    status: int,
    body: bytes,
    *,
    request_id: str,
    date: bytes,
    keeps_alive: bool,
    retry_after_seconds: int | None = None,
    allow: str | None = None,
    content_type: bytes = b"application/json",
    more: bytes = b"",
) -> bytes:
    """A whole answer. `more`: header lines, each with its end."""
    return b"".join(
        (
            _STATUS_LINES[status],
            b"content-type: %b\r\n" % content_type,
            _common(request_id, date, keeps_alive),
            b"retry-after: %d\r\n" % retry_after_seconds if retry_after_seconds is not None else b"",
            b"allow: %b\r\n" % allow.encode() if allow is not None else b"",
            more,
            b"content-length: %d\r\n\r\n" % len(body),
            body,
        )
    )


def render_stream_head(
    *, request_id: str, date: bytes, keeps_alive: bool, is_chunked: bool, content_type: bytes, more: bytes = b""
) -> bytes:
    """The head of an event stream. Unchunked (HTTP/1.0) it ends with the connection.

    `x-accel-buffering` keeps a proxy in front from collecting tokens.
    """
    return b"".join(
        (
            _STATUS_LINES[200],
            b"content-type: %b\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n" % content_type,
            _common(request_id, date, keeps_alive and is_chunked),
            more,
            b"transfer-encoding: chunked\r\n\r\n" if is_chunked else b"\r\n",
        )
    )


def render_chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def render_engine_head(
    host: str, port: int, path: str, key: str, request_id: str, body_bytes: int, trace: str = ""
) -> bytes:
    """A request to an engine. `trace`: header lines, each with its end."""
    start = render_engine_start(host, port, path, key)
    return start + f"{request_id}\r\n{trace}content-length: {body_bytes}\r\n\r\n".encode()


@lru_cache(maxsize=1024)  # an endpoint and call each
def render_engine_start(host: str, port: int, path: str, key: str) -> bytes:
    """The head of a request to an engine, up to the request's id."""
    authorization = f"authorization: Bearer {key}\r\n" if key else ""
    return (
        f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\n{authorization}content-type: application/json\r\n"
        "accept: text/event-stream\r\nx-request-id: "
    ).encode()


def _common(request_id: str, date: bytes, keeps_alive: bool) -> bytes:
    """The id under both names: OpenAI's SDKs read the one, Anthropic's the other."""
    id_ = request_id.encode()
    return _COMMON[keeps_alive] % (date, id_, id_)
