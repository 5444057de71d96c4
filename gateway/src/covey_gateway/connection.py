"""One client connection as bytes and turns: uvicorn's own protocol with the order of requests in our hands.

The rule that keeps it simple: requests of a connection are strictly one after another. While an answer is due, what
arrives behind its request is held as bytes and parsed afterwards; only requests that came in one read with it are
parsed already, and wait in a short queue. (uvicorn pauses reading instead, and then can't see a client leave.)

A client that closes its side counts as gone, also if it only half-closed: an engine's slot is worth more than the rare
client that sends, half-closes and then reads. Deadlines are checked by the server's sweep, not by timers of their own.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import httptools
from covey_api.reasons import ErrorCode
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from covey_gateway.exchange import Exchange
from covey_gateway.express import Express
from covey_gateway.handing import Handing
from covey_gateway.limits import (
    BODY_SECONDS,
    BODY_SILENCE_SECONDS,
    CLIENT_STALL_SECONDS,
    HEAD_SECONDS,
    KEEP_ALIVE_SECONDS,
    LINGER_SECONDS,
    MAX_HELD_BYTES,
    MAX_PIPELINED,
)
from covey_gateway.records import Record
from covey_gateway.routing.refusals import refuse_method, refuse_slow
from covey_gateway.traffic import Traffic
from covey_gateway.wire.errors import ApiError, invalid_request
from covey_gateway.wire.formats import choose_format
from covey_gateway.wire.head import MAX_HEAD_BYTES, MAX_HEADERS
from covey_gateway.wire.http import render_answer

_log = logging.getLogger(__name__)

_UPGRADE_HEADERS = frozenset((b"upgrade", b"http2-settings", b"connection"))

Turn = Exchange | Express | RequestResponseCycle
"""A request whose answer is due: a hot one, or one that an ASGI app answers."""
_HOT = (Exchange, Express)


class _Phase(Enum):
    """What of a request the parser reads next."""

    BETWEEN = auto()
    HEAD = auto()
    BODY = auto()


class ClientConnection(HttpToolsProtocol):
    """`Relay` decides what a request is; this class, when it is read and when its turn has come."""

    def __init__(self, config: Config, state: ServerState, traffic: Traffic) -> None:
        super().__init__(config, state, app_state={}, _loop=asyncio.get_running_loop())
        self._asgi: Any = None
        self.traffic = traffic
        # Both several times a request: a method around each would cost as much as what it calls.
        self.now: Callable[[], float] = self.loop.time
        self.write: Callable[[bytes], None] = self._write_nowhere
        self.address = ""
        self._phase = _Phase.BETWEEN
        self._phase_since = self._read_at = self.now()
        self._head_bytes = self._kept_bytes = 0
        self._receiving: Turn | None = None
        self._answering: Turn | None = None
        self._queue: deque[Turn] = deque()
        self._held: list[bytes] = []
        self._held_bytes = 0
        # Nothing more is parsed: the connection ends when what is due was answered.
        self._is_deaf = False
        self._lingers_until: float | None = None
        self._stalled_since: float | None = None
        self._start_parser()

    def _start_parser(self) -> None:
        # Strict, unlike uvicorn's, which lets data after `Connection: close` through.
        self.parser = httptools.HttpRequestParser(self)

    def _write_nowhere(self, data: bytes) -> None:
        raise AssertionError("a connection that isn't made was written to")

    # What the event loop calls.

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.write = transport.write
        self.address = self.client[0] if self.client else ""

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._read_at = self.now()
        if self._answering is None and self._phase is _Phase.BETWEEN and not self._held:
            if not self.begin_known(data):
                self._feed(data)
            return
        if not self._is_answer_due() and not self._held:
            self._feed(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > MAX_HELD_BYTES:
            self.flow.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._is_deaf = True
        for turn in (self._receiving, self._answering, *self._queue):
            if isinstance(turn, _HOT):
                turn.abandon()
        self._answering = self._receiving = None
        self._queue.clear()
        self._held.clear()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_since = self.now()
        if isinstance(self._answering, _HOT):
            self._answering.pause_engine()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_since = None
        if isinstance(self._answering, _HOT):
            self._answering.resume_engine()

    # Reading.

    def begin_known(self, data: bytes) -> bool:
        """Whether these bytes, at a request's beginning, are one that needn't be parsed: it is under way then."""
        return False

    def _is_answer_due(self) -> bool:
        """Whether what arrives now belongs behind a request that is read and not answered."""
        return self._answering is not None and self._receiving is not self._answering

    def _feed(self, data: bytes) -> None:
        rest = self._feed_once(data)
        offers = 0
        while rest and not self._is_deaf:
            offers += 1
            if offers > MAX_PIPELINED:
                message = f"at most {MAX_PIPELINED} requests that offer an upgrade may come at once"
                self.refuse_input(invalid_request(message))
                return
            rest = self._feed_once(rest)

    def _feed_once(self, data: bytes) -> bytes:
        """What is to be fed next: a request that offered an upgrade, without the offer, and what came after it."""
        was_in_head = self._phase is _Phase.HEAD
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._drop_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            _log.exception("a request could not be taken")
            self.transport.abort()
        except httptools.HttpParserError as error:
            self.refuse_input(invalid_request(f"the request must be HTTP/1.1: {error}"))
        if was_in_head and self._phase is _Phase.HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                message = f"a request head must have at most {MAX_HEAD_BYTES} bytes"
                self.refuse_input(ApiError(431, ErrorCode.INVALID_REQUEST, message))
        return b""

    @property
    def _path(self) -> bytes:
        """Of the request that is read, or of the one before; empty before the first."""
        return (self.url or b"").partition(b"?")[0]

    def _feed_held(self) -> None:
        if not self._held or self._is_deaf or self._is_answer_due():
            return
        data = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        self.flow.resume_reading()
        self._feed(data)

    def _drop_upgrade(self, rest: bytes) -> bytes:
        """Some clients (Java's) offer h2c with every request; whoever offers it also takes HTTP/1.1."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.refuse_input(refuse_method("CONNECT", "the gateway", "GET, POST"))
            return b""
        lines = [b"%b %b HTTP/1.1\r\n" % (method, self.url)]
        lines += [b"%b: %b\r\n" % header for header in self.headers if header[0] not in _UPGRADE_HEADERS]
        if any(name == b"connection" and b"close" in value.lower() for name, value in self.headers):
            lines.append(b"connection: close\r\n")
        self._start_parser()
        self._phase = _Phase.BETWEEN
        return b"".join((*lines, b"\r\n", rest))

    def refuse_input(self, error: ApiError) -> None:
        """Nothing more can be read of this connection; what is due is answered first."""
        if self._is_deaf:
            return
        self._is_deaf = True
        receiving = self._receiving
        if isinstance(receiving, Exchange) and not receiving.is_over:
            receiving.break_body(error)
        elif self._phase is _Phase.BODY:
            self.transport.close()
        elif self._answering is None:
            form = choose_format(self._path)
            content = form.render_envelope(error)
            self.traffic.ledger.close(self._record_refusal(form.name, error, len(content)))
            self.write(
                render_answer(
                    error.status,
                    content,
                    request_id="-",
                    date=self.traffic.date,
                    keeps_alive=False,
                    retry_after_seconds=error.retry_after_seconds,
                )
            )
            self._linger()

    def _record_refusal(self, form: str, error: ApiError, answer_bytes: int) -> Record:
        """Of what never became a request."""
        return Record(
            "-",
            self._path.decode("latin-1"),
            "-",
            self._phase_since,
            format=form,
            client=self.address,
            status=error.status,
            code=error.code.value,
            answer_bytes=answer_bytes,
        )

    # What the parser calls; `Relay` adds `on_headers_complete`.

    def on_message_begin(self) -> None:
        # Not uvicorn's: a hot request needs no scope, and `Relay` makes one for the others.
        self.url = b""
        self.headers = []
        self._phase = _Phase.HEAD
        self._phase_since = self.now()
        self._head_bytes = self._kept_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is not _Phase.HEAD or self._is_deaf:  # a trailer is dropped
            return
        self._kept_bytes += len(name) + len(value)
        if len(self.headers) < MAX_HEADERS and self._kept_bytes <= MAX_HEAD_BYTES:
            self.headers.append((name.lower(), value))
            return
        # At once: one read holds thousands, and a head that never ends would keep them all.
        message = f"a request must have at most {MAX_HEADERS} headers, and its head {MAX_HEAD_BYTES} bytes"
        self.refuse_input(ApiError(431, ErrorCode.INVALID_REQUEST, message))

    def on_body(self, body: bytes) -> None:
        if self._is_deaf or self._phase is not _Phase.BODY:
            return
        if isinstance(self._receiving, Exchange):
            self._receiving.take_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_deaf or self._phase is not _Phase.BODY:
            return
        self._phase = _Phase.BETWEEN
        self._phase_since = self.now()
        receiving, self._receiving = self._receiving, None
        if isinstance(receiving, Exchange):
            receiving.complete_body()
        else:
            super().on_message_complete()

    # Turns.

    def receive(self, turn: Turn) -> None:
        """The head of this request is read; its body follows."""
        self._phase = _Phase.BODY
        self._phase_since = self.now()
        self._receiving = turn
        if self._answering is None:
            self._begin(turn)
        elif len(self._queue) < MAX_PIPELINED:
            self._queue.append(turn)
        else:
            self._is_deaf = True

    def begin_express(self, express: Express) -> None:
        """A whole request that is answered at once; it is read."""
        self._phase = _Phase.BETWEEN
        self._phase_since = self.now()
        self._receiving, self._answering = None, express
        express.start()

    def change_turn(self, before: Handing, after: Exchange) -> None:
        if self._answering is before:
            self._answering = after

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """uvicorn would answer this now; it is when its turn has come."""
        self._asgi = app
        self.receive(cycle)

    def _begin(self, turn: Turn) -> None:
        self._answering = turn
        if isinstance(turn, Exchange):
            turn.begin()
        elif isinstance(turn, RequestResponseCycle):
            super()._start_asgi_task(turn, self._asgi)

    def on_response_complete(self) -> None:
        """An ASGI app has answered."""
        self.server_state.total_requests += 1
        self._advance()

    def end_answer(self, *, keeps_alive: bool, is_read: bool) -> None:
        """A hot request was answered."""
        self.server_state.total_requests += 1
        if not is_read:
            self._linger()
        elif not keeps_alive:
            self.transport.close()
        self._advance()

    def _advance(self) -> None:
        self._answering = None
        self._phase_since = self._read_at = self.now()
        if self.transport.is_closing() or self._lingers_until is not None:
            return
        if self._queue:
            self._begin(self._queue.popleft())
        elif self._is_deaf:
            self._linger()
        if self._held:
            # Not from here: an answer may end inside the parser's own call.
            self.loop.call_soon(self._feed_held)

    # Writing and the end.

    def is_stalled(self) -> bool:
        return self._stalled_since is not None

    def _linger(self) -> None:
        """Close once the answer is sent and what still comes was read: a reset would destroy the answer."""
        self._is_deaf = True
        if self.transport.is_closing():
            return
        self._lingers_until = self.now() + LINGER_SECONDS
        self.flow.resume_reading()
        if self.transport.can_write_eof():  # TLS can't: there the client sees the end by the length it was told
            self.transport.write_eof()

    def shutdown(self) -> None:
        """Take no more requests; the connection ends with the answer that is due."""
        self._queue.clear()
        turn = self._answering
        if turn is None:
            self.transport.close()
        elif isinstance(turn, _HOT):
            turn.keeps_alive = False
        else:
            turn.keep_alive = False

    def end_now(self, error: ApiError) -> None:
        """The time to end by itself is over."""
        if isinstance(self._answering, _HOT):
            self._answering.fail(error)
        if not self.transport.is_closing():
            self.transport.close()

    def check_deadlines(self, now: float) -> None:
        """1. What lingers, 2. a client that takes nothing, 3. an engine, 4. idle, a head or a body too slow."""
        if self._lingers_until is not None:
            if now >= self._lingers_until:
                self.transport.abort()
        elif self._stalled_since is not None and now - self._stalled_since > CLIENT_STALL_SECONDS:
            self.transport.abort()
        elif self._is_answer_due():
            if isinstance(self._answering, _HOT):
                self._answering.check_deadlines(now)
        elif self._phase is _Phase.BETWEEN:
            if now - self._phase_since > KEEP_ALIVE_SECONDS:
                self.transport.close()
        elif self._phase is _Phase.HEAD:
            if now - self._phase_since > HEAD_SECONDS:
                self.refuse_input(refuse_slow(f"the request's head must arrive within {HEAD_SECONDS:.0f} s"))
        elif now - self._read_at > BODY_SILENCE_SECONDS or now - self._phase_since > BODY_SECONDS:
            limits = f"within {BODY_SECONDS:.0f} s, without a pause of {BODY_SILENCE_SECONDS:.0f} s"
            self.refuse_input(refuse_slow(f"the request's body must arrive {limits}"))
