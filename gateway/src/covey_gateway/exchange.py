"""One request as its client sees it: received whole, understood, answered once.

    receiving ─▶ understood ─▶ delivered ─▶ answering ─▶ over
        └─────────────┴────────────┴─ fail: a JSON answer └─ fail: an error event, then the end

Nothing is written before a `Delivery` has the engine's head, so a refusal has its own status also for a stream, unless
the client of a stream has waited for `SILENCE_SECONDS`: then the head is sent, and from then on what keeps the stream
alive, as often as it is silent so long. A request whose endpoint failed before a byte goes elsewhere once. One whose
model has no endpoint is held (`waiting`), understood and not delivered.
"""

import asyncio
import logging
import os
from typing import Protocol

from covey_api.reasons import ErrorCode

from covey_gateway.delivery import Ask, Delivery
from covey_gateway.images import Images
from covey_gateway.limits import MAX_BODY_BYTES, SILENCE_SECONDS
from covey_gateway.records import CLIENT_GONE, Record, blank
from covey_gateway.routing.line import Ticket
from covey_gateway.routing.refusals import refuse_cancelled, refuse_too_large, refuse_unready
from covey_gateway.routing.table import Caller, Target
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import Engines
from covey_gateway.waiting import Hold
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.formats import HOT_PATHS, choose_format
from covey_gateway.wire.head import RequestHead
from covey_gateway.wire.http import CONTINUE, LAST_CHUNK, render_answer, render_chunk, render_stream_head
from covey_gateway.wire.metering import Meter
from covey_gateway.wire.request import Parsed, Question, Request
from covey_gateway.wire.tracing import render_trace

_log = logging.getLogger(__name__)

# Refusals that tell of a state: the log would only repeat what `covey why` says, or that an endpoint was set aside.
_EXPECTED = frozenset((ErrorCode.MODEL_LOADING, ErrorCode.MODEL_UNAVAILABLE, ErrorCode.UPSTREAM_UNAVAILABLE))


def choose_request_id(head: RequestHead | None) -> str:
    """The client's own, else a random one."""
    return (head.request_id if head else None) or f"req-{os.urandom(8).hex()}"


class Client(Protocol):
    """The connection a request came on, as far as the request needs it."""

    @property
    def address(self) -> str:
        """Where it comes from; empty: nobody knows."""
        ...

    def now(self) -> float: ...

    def write(self, data: bytes, /) -> None: ...

    def is_stalled(self) -> bool:
        """Whether the client takes less than it is sent."""
        ...

    def end_answer(self, *, keeps_alive: bool, is_read: bool) -> None:
        """The answer is written; next is the following request, or the connection's end (`is_read`: nothing of the
        request is still to come)."""
        ...


class Exchange:
    def __init__(
        self,
        client: Client,
        traffic: Traffic,
        engines: Engines,
        images: Images,
        head: RequestHead | None,
        admitted: Caller | ApiError,
        *,
        keeps_alive: bool,
        is_chunked: bool,
        path: bytes = b"",
        cors: bytes = b"",
        request_id: str = "",
    ) -> None:
        """`head` is None when it could not be read; `path` says then whose envelope the refusal has.

        `is_chunked`: the client understands chunks (HTTP/1.1). `cors`: header lines for the page that asks.
        """
        self._cors = cors
        self._is_body_wanted = head is None or head.method != b"HEAD"
        self.keeps_alive = keeps_alive
        self.is_over = False
        self._client = client
        self._traffic = traffic
        self._engines = engines
        self._images = images
        self._gathering: asyncio.Task[None] | None = None
        self._is_chunked = is_chunked
        self._awaits_continue = head is not None and head.expects_continue
        self._request_id = request_id or choose_request_id(head)
        self._admitted = admitted
        priority = admitted.priority if isinstance(admitted, Caller) else 0
        self._hold = Hold(traffic.waiting, self, head.hold_seconds if head else None, priority)
        self._session = head.session if head is not None else b""
        self._is_first = False
        self._is_whole = False
        # The rest of the body is not worth waiting for.
        self._is_hopeless = False
        self._has_head_sent = False
        # One buffer: a list of chunks of two bytes would take thirty times what is counted.
        self._body = bytearray()
        self._body_bytes = 0
        self._reserved_bytes = 0
        self._question: Question | None = None
        """What waits for its model to be ready."""
        self._ask: Ask | None = None
        self._delivery: Delivery | None = None
        self._was_elsewhere = False
        self._wants_stream = False
        self._written_at = client.now()
        self._format, self._parse = choose_format(path), None
        self._key = ""
        """Whose limits count it, while it is under way."""
        self._meter: Meter | None = None
        self._record = Record(
            head.method.decode("latin-1") if head is not None else "-",
            (head.path if head is not None else path).decode("latin-1"),
            self._request_id,
            self._written_at,
            client=client.address,
        )
        if head is not None:
            self._format, self._parse = HOT_PATHS.get(head.path) or (choose_format(head.path), None)
        self._record.format = self._format.name
        if head is not None and self._parse is not None:
            tracer = traffic.ledger.tracer
            self._record.trace = head.trace if tracer is None else tracer.begin(self._record, head.trace)
        if head is not None and head.content_length > MAX_BODY_BYTES:
            self._refuse_body(refuse_too_large(MAX_BODY_BYTES))

    # Receiving.

    def begin(self) -> None:
        """Its turn to be answered has come: all earlier requests of the connection were."""
        self._is_first = True
        is_refused = isinstance(self._admitted, ApiError)
        if self._is_whole or self._is_hopeless or (is_refused and self._awaits_continue):
            self._proceed()
        elif self._awaits_continue:
            self._client.write(CONTINUE)

    def take_body(self, piece: bytes) -> None:
        self._body_bytes += len(piece)
        if self.is_over or self._is_hopeless:
            return
        if self._body_bytes > MAX_BODY_BYTES:
            self._refuse_body(refuse_too_large(MAX_BODY_BYTES))
        elif isinstance(self._admitted, ApiError):
            return
        elif self._traffic.reserve_body(len(piece)):
            self._reserved_bytes += len(piece)
            self._body += piece
        else:
            message = "the gateway holds as many request bodies as it may; try again"
            self._refuse_body(ApiError(503, ErrorCode.OVERLOADED, message, retry_after_seconds=1))

    def complete_body(self) -> None:
        self._is_whole = True
        if self._is_first and not self.is_over:
            self._proceed()

    def break_body(self, error: ApiError) -> None:
        """The rest of the request can't be read."""
        self._refuse_body(error)

    def _refuse_body(self, error: ApiError) -> None:
        self._is_hopeless = True
        if not isinstance(self._admitted, ApiError):
            self._admitted = error
        self._free_body()
        if self._is_first and not self.is_over:
            self._proceed()

    def _free_body(self) -> None:
        self._body = bytearray()
        self._traffic.free_body(self._reserved_bytes)
        self._reserved_bytes = 0

    def _proceed(self) -> None:
        """1. What was refused. 2. A limit of its key. 3. What can't be understood. 4. An endpoint."""
        if isinstance(self._admitted, ApiError):
            self.fail(self._admitted)
            return
        if (key := self._admitted.key) and (spent := self._begin_for_key(key)) is not None:
            self.fail(spent)
            return
        parsed = self._understand()
        if isinstance(parsed, ApiError):
            self.fail(parsed)
        elif isinstance(parsed, Question):
            self._tell(parsed, self._admitted)
        else:
            self._begin_asking(parsed, self._admitted)

    def _begin_for_key(self, key: str) -> ApiError | None:
        self._record.key = key
        spent = self._traffic.accounts.begin(key)
        if spent is None:
            self._key = key
        return spent

    def _understand(self) -> Parsed:
        if self._parse is None:
            raise AssertionError("a path that takes no requests was admitted")
        body, self._body = self._body, bytearray()
        return self._parse(bytes(body))

    def _tell(self, question: Question, caller: Caller, *, may_wait: bool = True) -> None:
        """What the gateway knows itself."""
        model = self._traffic.resolve(caller, question.model)
        if isinstance(model, ApiError):
            self.fail(model)
        elif not question.needs_ready or self._traffic.targets_of(model):
            listing = self._traffic.render_listing(question.model, model)
            content_type = self._format.stream_type if question.is_stream else b"application/json"
            self._write_answer(200, question.answer(listing), content_type=content_type)
        elif may_wait and self._hold.begin(model, self._client.now()):
            if self._question is None:
                self._question = question
                self._traffic.cancels.follow(self._request_id, caller, self)
        else:
            self.fail(refuse_unready(model))

    def _begin_asking(self, request: Request, caller: Caller) -> None:
        model = self._traffic.find_model(caller, request)
        if isinstance(model, ApiError):
            self.fail(model)
            return
        self._traffic.cancels.follow(self._request_id, caller, self)
        self._wants_stream = request.wants_stream
        self._written_at = self._client.now()
        self._meter = Meter(request.call, request.n, is_single=request.is_single)
        ticket = Ticket(caller.key or self._client.address, caller.priority)
        record = self._record
        trace = "" if record.trace is None else render_trace(record.trace)
        self._ask = Ask(model, request, request.make_teller(model.name), self._meter, ticket, trace)
        record.namespace, record.model, record.is_stream = model.namespace, model.name, request.wants_stream
        if request.media:
            self._gathering = self._images.gather(request, self)
        else:
            self._hold_or_deliver(self._ask)

    def take_images(self, found: Request | ApiError) -> None:
        """All are in the request now, or one is not to be had."""
        if self._ask is None or self.is_over:
            return
        if isinstance(found, ApiError):
            self.fail(found)
            return
        self._ask.request = found
        self._hold_or_deliver(self._ask)

    def _hold_or_deliver(self, ask: Ask) -> None:
        if self._traffic.targets_of(ask.model) or not self._hold.begin(ask.model, self._client.now()):
            self._deliver(ask)

    def look_again(self) -> None:
        """Its model may have an endpoint now, or be gone, or never get one."""
        self._hold.end()
        self._delivery = None
        ask = self._ask
        if self._question is not None and not isinstance(self._admitted, ApiError):
            self._tell(self._question, self._admitted)
            return
        if ask is None or ask.request is None or isinstance(self._admitted, ApiError):
            return
        model = self._traffic.find_model(self._admitted, ask.request)
        if isinstance(model, ApiError):
            self.fail(model)
        else:
            ask.model = model
            self._hold_or_deliver(ask)

    def give_way(self) -> None:
        """Its place among those that are held is another one's."""
        if self._ask is not None:
            self._hold.give_up()
            self._deliver(self._ask)
        elif self._question is not None and not isinstance(self._admitted, ApiError):
            self._hold.give_up()
            self._tell(self._question, self._admitted, may_wait=False)

    def reserve(self, count: int) -> bool:
        is_free = not self.is_over and self._traffic.reserve_body(count)
        self._reserved_bytes += count if is_free else 0
        return is_free

    def _deliver(self, ask: Ask, excluded: str | None = None) -> None:
        owner = "" if isinstance(self._admitted, ApiError) else self._admitted.key
        target = self._traffic.take(ask.model, excluded, ask.request, self._session, owner, ask.ticket)
        if isinstance(target, ApiError):
            self.fail(target)
            return
        self.deliver_at(target, ask)

    def deliver_at(self, target: Target, ask: Ask) -> None:
        """It was taken for this request."""
        self._record.endpoint = target.instance_id
        self._delivery = Delivery(self, self._client, self._traffic, target, ask, self._request_id)
        self._delivery.start(self._engines)

    # Where somebody else began it.

    def release_body(self) -> bytes:
        """All of it, for who answers the request instead; nothing is kept of it here."""
        body = bytes(self._body)
        self._free_body()
        return body

    def take_back(self, body: bytes) -> None:
        """It is answered here."""
        if self._traffic.reserve_body(len(body)):
            self._body += body
            self._reserved_bytes = len(body)

    @property
    def can_leave(self) -> bool:
        """Whether it is whole, admitted, and its turn: nothing was done for it yet."""
        is_admitted = not isinstance(self._admitted, ApiError)
        return is_admitted and self._is_first and not self._is_hopeless and not self.is_over

    @property
    def began_at(self) -> float:
        return self._record.began_at

    def go_on(self, record: Record, ask: Ask, held_bytes: int, *, has_head_sent: bool) -> None:
        """`held_bytes`: of its body, reserved still."""
        self._is_first = self._is_whole = True
        self._record, self._ask, self._meter = record, ask, ask.meter
        self._key, self._wants_stream = record.key, record.is_stream
        self._body_bytes, self._reserved_bytes = record.request_bytes, held_bytes
        self._has_head_sent = has_head_sent

    def go_on_with(self, delivery: Delivery) -> None:
        self._delivery = delivery

    # What its delivery tells.

    def tell_sent(self) -> None:
        """Its turn has come: until now it waited."""
        if self._record.sent_at is None:
            self._record.sent_at = self._client.now()

    def may_go_elsewhere(self, delivery: Delivery) -> bool:
        return not self._was_elsewhere and self._traffic.has_other(delivery.target)

    def go_elsewhere(self, delivery: Delivery, reason: str) -> None:
        """The endpoint failed before a byte of an answer."""
        self._delivery = None
        if self._was_elsewhere:
            name = delivery.ask.model.name
            message = f"two endpoints of model '{name}' failed before they answered; the last: {reason}"
            self.fail(ApiError(502, ErrorCode.UPSTREAM_UNAVAILABLE, message, retry_after_seconds=1))
            return
        self._was_elsewhere = True
        self._deliver(delivery.ask, excluded=delivery.target.id)

    def accept_head(self) -> None:
        """An engine answers: the request is needed no more."""
        self._free_body()

    def begin_stream(self) -> None:
        if self._has_head_sent:
            return
        self._has_head_sent = True
        self.keeps_alive = self.keeps_alive and self._is_chunked
        self._record.status = 200
        self._write(
            render_stream_head(
                request_id=self._request_id,
                date=self._traffic.date,
                keeps_alive=self.keeps_alive,
                is_chunked=self._is_chunked,
                content_type=self._format.stream_type,
                more=self._cors + self._render_allowances(),
            )
        )

    def write_events(self, events: bytes) -> None:
        self._written_at = self._client.now()
        self._write(render_chunk(events) if self._is_chunked else events)

    def end_stream(self) -> None:
        self._end_for_key()
        if self._is_chunked:
            self._write(LAST_CHUNK)
        self._finish()

    def answer(self, content: bytes) -> None:
        self._write_answer(200, content)

    def fail(self, error: ApiError) -> None:
        """Tell the client: as an answer while nothing was sent, else as an event of its stream."""
        if self.is_over:
            return
        if error.status >= 500 and error.code not in _EXPECTED:
            _log.warning("request %s: %d %s: %s", blank(self._request_id), error.status, error.code, error.log_words)
        record = self._record
        record.status, record.code, record.limit = error.status, error.code.value, error.limit
        if not self._has_head_sent:
            self.keeps_alive = self.keeps_alive and self._is_whole
            self._write_answer(error.status, self._format.render_envelope(error), error)
            return
        if self._ask is not None:
            self.write_events(self._ask.teller.fail(error))
        # A chunked answer ends whole: the head promised to keep the connection, and the next request may be under way.
        self.keeps_alive = self.keeps_alive and self._is_whole
        self.end_stream()

    def _write_answer(
        self, status: int, content: bytes, error: ApiError | None = None, content_type: bytes = b"application/json"
    ) -> None:
        self._record.status = status
        answer = render_answer(
            status,
            content,
            request_id=self._request_id,
            date=self._traffic.date,
            keeps_alive=self.keeps_alive,
            retry_after_seconds=error.retry_after_seconds if error else None,
            allow=error.allow if error else None,
            content_type=content_type,
            more=self._cors + self._render_allowances(),
        )
        self._end_for_key()
        # A client that asked for the head alone would take a body for the next answer.
        self._write(answer if self._is_body_wanted else answer[: len(answer) - len(content)])
        self._finish()

    def _write(self, content: bytes) -> None:
        self._record.answer_bytes += len(content)
        self._client.write(content)

    def _render_allowances(self) -> bytes:
        key = self._record.key
        return self._traffic.render_allowances(self._format.render_allowances, key) if key else b""

    def _finish(self) -> None:
        self._give_back()
        self._client.end_answer(keeps_alive=self.keeps_alive, is_read=self._is_whole)

    def abandon(self) -> None:
        """Its client is gone: end what an engine still does for it."""
        if not self.is_over:
            self._record.status = CLIENT_GONE
            self._give_back()

    def _give_back(self) -> None:
        """It is over, however it ended: everything it holds, once."""
        self.is_over = True
        self._hold.end()
        self._free_body()
        self._traffic.cancels.unfollow(self._request_id, self)
        if self._gathering is not None:
            self._gathering.cancel()
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            self._record.first_byte_at, self._record.last_byte_at = delivery.first_byte_at, delivery.last_byte_at
            delivery.abandon()
        self._end_for_key()
        self._record.request_bytes = self._body_bytes
        self._traffic.ledger.close(self._record, self._meter)

    def _end_for_key(self) -> None:
        """Before its client hears the end: that may ask again at once, at another worker."""
        if self._key:
            key, self._key = self._key, ""
            self._traffic.accounts.end(key)

    def cancel(self) -> None:
        _log.info("request %s was cancelled by its id", blank(self._request_id))
        self.fail(refuse_cancelled())

    # Time and backpressure.

    def pause_engine(self) -> None:
        if self._delivery is not None:
            self._delivery.pause()

    def resume_engine(self) -> None:
        if self._delivery is not None:
            self._delivery.resume()

    def check_deadlines(self, now: float) -> None:
        """1. The engine's, or how long it is held. 2. A stream that was silent too long says that it lives."""
        if self._delivery is not None:
            self._delivery.check_deadlines(now)
        elif not self._hold.is_held:
            return
        elif self._hold.is_over(now):
            self._hold.give_up()
            if self._ask is not None:
                self._deliver(self._ask)
            elif self._question is not None and not isinstance(self._admitted, ApiError):
                self._tell(self._question, self._admitted, may_wait=False)
        silent_seconds = now - self._written_at
        if self.is_over or not self._wants_stream or silent_seconds < SILENCE_SECONDS or self._client.is_stalled():
            return
        if self._format.keep_alive:
            self.begin_stream()
            self.write_events(self._format.keep_alive)
