"""HTTP/1.1 with bounds that uvicorn's own protocol class lacks, and the connection made visible to the app.

uvicorn limits neither the length of a request's head, nor the time it may take, nor how many requests wait on one
connection: a peer that sends a byte a minute would hold it for ever, and one that sends thousands fill the memory. And
it gives an app no peer certificate and no way to cut a reader off that stopped reading; `scope["extensions"]
["covey.connection"]` has both.

What a large fleet at rest says is one call over and over. For it there is a reflex: an answer in the read that brought
the whole call, without a task and without the app. It only ever says yes; whatever it doesn't answer the app gets as
if nothing had been asked before.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from covey_api.messages import CertificateRole
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from covey_controller.serving.members import Members

# Our own clients send heads of under 1 KiB at once.
MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 10.0
# Calls of one connection that wait behind the one that is answered. Our own clients send one after the other; uvicorn
# would keep thousands, and read on after each answer.
MAX_PIPELINED = 4
_EXTENSION = "covey.connection"
_URI_PREFIX = "covey://"
_REFLEX_HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as its certificate says."""

    role: CertificateRole
    name: str
    not_before: float
    """Seconds since the epoch from which on the certificate is valid."""


@dataclass(frozen=True, slots=True)
class Connection:
    peer: Peer | None
    """None without a certificate. One of another authority doesn't get this far."""
    abort: Callable[[], None]
    """End the connection now; what the peer hasn't read is lost."""


Reflex = Callable[[Peer, bytes, bytes], bytes | None]
"""From who calls, URL and body of a POST to the JSON of a 200. None: the app answers, and nothing was done."""


def connection_of(scope: Scope) -> Connection:
    return scope["extensions"][_EXTENSION]


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A head has `HEAD_SECONDS` from its first byte (the first one from the connection's begin)."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        reflex: Reflex | None = None,
        members: Members | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._members = members
        self._leave: Callable[[], None] = lambda: None
        self._reflex = reflex
        self._held: bytes | None = None
        """Body so far of a call that a reflex may answer; the app knows nothing of it yet."""
        self._in_head = True
        self._head_bytes = 0
        self._head_deadline: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self._on_known: Callable[[], None] = lambda: None
        """The peer is a guest no more: it showed a certificate, or is gone."""

    def on_known(self, call: Callable[[], None]) -> "BoundedProtocol":
        self._on_known = call
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = cast("asyncio.Transport", transport)
        super().connection_made(opened)
        peer = _parse_peer(opened)
        self._connection = Connection(peer, opened.abort)
        if peer is not None:
            self._on_known()
            if self._members is not None:
                self._leave = self._members.enter(peer.role, peer.name, opened.abort)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        self._on_known()
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        held = self._take_held()
        if held is not None and not self.transport.is_closing():  # it didn't come whole, and may still
            self._hand_over(held)
        if self._in_head and self._head_bytes:
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.abort()
            elif self._head_deadline is None:
                self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast("dict[str, Any]", self.scope)
        scope["extensions"] = {_EXTENSION: self._connection}

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._head_arrived()
        if len(self.pipeline) >= MAX_PIPELINED:
            self.transport.abort()
            raise ConnectionAbortedError(f"more than {MAX_PIPELINED} calls wait on one connection")
        if self._can_reflex():
            self._held = b""
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._held is not None:
            self._held += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = True
        held = self._take_held()
        content = self._answer_by_reflex(held) if held is not None else None
        if content is not None:
            self.transport.write(_REFLEX_HEAD % len(content) + content)
            self.on_response_complete()
            return
        if held is not None:
            self._hand_over(held)
        super().on_message_complete()

    def _can_reflex(self) -> bool:
        """Nothing is under way on this connection, and the peer reads what it is sent."""
        before, parser = cast("RequestResponseCycle | None", self.cycle), self.parser
        return (
            self._reflex is not None
            and self._peer is not None
            and parser is not None
            and (before is None or before.response_complete)
            and not self.flow.write_paused
            and not self.expect_100_continue
            and parser.get_method() == b"POST"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
        )

    def _answer_by_reflex(self, body: bytes) -> bytes | None:
        if self._reflex is None or self._peer is None:
            return None
        return self._reflex(self._peer, self.url, body)

    @property
    def _peer(self) -> Peer | None:
        return self._connection.peer if self._connection is not None else None

    def _take_held(self) -> bytes | None:
        held, self._held = self._held, None
        return held

    def _hand_over(self, held: bytes) -> None:
        """To the app, as if it came now."""
        super().on_headers_complete()
        if held:
            super().on_body(held)

    def _await_head(self) -> None:
        self._head_deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _head_arrived(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None


def _parse_peer(transport: asyncio.Transport) -> Peer | None:
    """Role and name from the certificate that the handshake verified; None if there is none or it isn't one of ours."""
    tls = cast("ssl.SSLObject | None", transport.get_extra_info("ssl_object"))
    certificate = tls.getpeercert() if tls is not None else None
    if not certificate:
        return None
    alternatives = cast("tuple[tuple[str, str], ...]", certificate.get("subjectAltName", ()))
    for kind, value in alternatives:
        role, _, name = value.removeprefix(_URI_PREFIX).partition("/")
        if kind == "URI" and value.startswith(_URI_PREFIX) and role in set(CertificateRole):
            return Peer(CertificateRole(role), name, ssl.cert_time_to_seconds(str(certificate["notBefore"])))
    return None
