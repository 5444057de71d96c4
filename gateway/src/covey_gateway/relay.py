"""What a request is: one for the relay, one for the ASGI app, or one that is refused by its head alone.

A hot path is taken out of uvicorn's hands before any ASGI: half the CPU of a request goes there otherwise.
"""

import asyncio
import time
from dataclasses import replace

import httptools
from covey_api.reasons import ErrorCode
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from covey_gateway.connection import ClientConnection
from covey_gateway.exchange import Exchange, choose_request_id
from covey_gateway.express import is_plain_head, prepare
from covey_gateway.images import Images
from covey_gateway.known import MAX_LEARNED, Known
from covey_gateway.limits import MAX_REFUSED
from covey_gateway.routing.access import admit, find_key
from covey_gateway.routing.cors import Headers, is_preflight, render_cors, render_preflight
from covey_gateway.routing.line import Ticket
from covey_gateway.routing.refusals import refuse_method
from covey_gateway.routing.table import Caller
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import Engines
from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.formats import HOT_PATHS
from covey_gateway.wire.head import RequestHead, parse_head


class Relay(ClientConnection):
    def __init__(
        self,
        config: Config,
        state: ServerState,
        traffic: Traffic,
        engines: Engines,
        images: Images,
        max_connections: int,
    ) -> None:
        super().__init__(config, state, traffic)
        self._images = images
        self._engines = engines
        self._max_connections = max_connections
        self._known: Known | None = None
        """What heads like the last plain one mean."""
        self._arriving: Known | None = None
        """Of the plain request that is received now."""
        self._began_with = b""
        """Bytes with which the request began whose head isn't read yet."""
        self._learned = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._max_connections + MAX_REFUSED:
            transport.abort()
        elif len(self.connections) > self._max_connections:
            message = f"the gateway has {self._max_connections} connections open, as many as it takes; try again"
            self.refuse_input(ApiError(503, ErrorCode.OVERLOADED, message, retry_after_seconds=1))

    def on_headers_complete(self) -> None:
        if self._is_deaf or self.parser.should_upgrade():
            return  # an upgrade is fed again without the offer
        began_with, self._began_with = self._began_with, b""  # what follows in the same read begins with something else
        version = self.parser.get_http_version()
        head = parse_head(self.parser.get_method(), self.url, version, self.headers)
        admitted = self._admit(head) if isinstance(head, RequestHead) else head
        cors: Headers = []
        if isinstance(head, RequestHead) and (origins := self.traffic.policy.cors_origins):
            cors = render_cors(origins, head.origin)
            if isinstance(admitted, Caller) and is_preflight(origins, head, self.headers):
                self._start_asgi(admitted, choose_request_id(head), [*cors, *render_preflight(self.headers)], True)
                return
        if isinstance(head, RequestHead) and isinstance(admitted, Caller) and head.path not in HOT_PATHS:
            self._start_asgi(admitted, choose_request_id(head), cors)
            return
        if isinstance(head, RequestHead) and isinstance(admitted, Caller) and not cors and version == "1.1":
            self._know(head, admitted, began_with)
        self.receive(
            Exchange(
                self,
                self.traffic,
                self._engines,
                self._images,
                head if isinstance(head, RequestHead) else None,
                admitted,
                # Of a head that is refused nobody knows where its request ends.
                keeps_alive=isinstance(head, RequestHead) and version == "1.1" and self.parser.should_keep_alive(),
                is_chunked=version == "1.1",
                path=self._path,
                cors=b"".join(b"%b: %b\r\n" % line for line in cors),
            )
        )

    def _know(self, head: RequestHead, caller: Caller, data: bytes) -> None:
        """Whether it may go the short way by its head, which began `data`."""
        if not is_plain_head(head):
            return
        traffic = self.traffic
        key = find_key(head, traffic.table.keys) if caller.key else None
        if caller.key and key is None:
            return
        ticket = Ticket(caller.key or self.address, caller.priority)
        expires_at = None if key is None else key.expires_at
        known = Known(head, caller, ticket, traffic.table, expires_at, self.parser.should_keep_alive())
        self._arriving = known
        if self._learned < MAX_LEARNED and data.startswith(b"POST "):
            self._learned += 1
            known.learn(data)
            self._known = known

    def begin_known(self, data: bytes) -> bool:
        known, now = self._known, self.now()
        body = None if known is None else known.find_body(data)
        if known is None or body is None:
            self._began_with = data
            return False
        self._learned = 0
        is_over = known.expires_at is not None and time.time() >= known.expires_at
        if known.table is self.traffic.table and not is_over:
            express = prepare(self, self.traffic, self._engines, self._images, known, body, now)
            if express is not None:
                self.begin_express(express)
                return True
        self._began_with = data
        return False

    def on_message_complete(self) -> None:
        known, self._arriving = self._arriving, None
        exchange = self._answering
        if known is None or not isinstance(exchange, Exchange) or exchange is not self._receiving or self._is_deaf:
            super().on_message_complete()
            return
        express = None
        if exchange.can_leave:
            body = exchange.release_body()
            express = prepare(self, self.traffic, self._engines, self._images, known, body, exchange.began_at)
            if express is None:
                exchange.take_back(body)
        if express is None:
            super().on_message_complete()
        else:
            self.begin_express(express)

    def _admit(self, head: RequestHead) -> Caller | ApiError:
        policy = self.traffic.policy
        if is_preflight(policy.cors_origins, head, self.headers):
            return admit(replace(policy, needs_key=False), head, {}, 0.0)
        admitted = admit(policy, head, self.traffic.table.keys, time.time())
        if isinstance(admitted, ApiError):
            return admitted
        if head.path in HOT_PATHS:
            return (
                admitted if head.method == b"POST" else refuse_method(head.method.decode(), head.path.decode(), "POST")
            )
        try:
            httptools.parse_url(self.url)
        except httptools.HttpParserInvalidURLError:
            return invalid_request("the request target must be a valid path")
        return admitted

    def _start_asgi(self, caller: Caller, request_id: str, more: Headers, is_preflight: bool = False) -> None:
        """uvicorn makes its cycle; its turn is ours to say, so its own pipeline stays empty."""
        headers, url = self.headers, self.url
        HttpToolsProtocol.on_message_begin(self)
        self.headers, self.url, self.scope["headers"] = headers, url, headers
        state = self.scope.setdefault("state", {})
        state.update(caller=caller, request_id=request_id)
        if is_preflight:
            state["preflight"] = True
        super().on_headers_complete()
        self.cycle.default_headers = [*self.cycle.default_headers, (b"x-request-id", request_id.encode()), *more]
        if self.pipeline:
            self.flow.resume_reading()
            self._start_asgi_task(*self.pipeline.pop())
