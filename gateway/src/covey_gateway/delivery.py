"""One request at one endpoint: connect, send, wait for the head, pass on what comes.

It has taken a place among the endpoint's requests in flight and gives it back exactly once. A reused connection that
the engine closed before it answered is replaced by a new one, once: engines close idle connections when they like, and
that is no failure of theirs.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from covey_api.messages import ServedModel
from covey_api.reasons import ErrorCode

from covey_gateway.counting import Count, can_count
from covey_gateway.fitting import Fit, plan_fit
from covey_gateway.limits import COUNT_SECONDS
from covey_gateway.reply import Broken, NoReply, Refusal, Reply, choose_reply
from covey_gateway.routing.line import NO_TICKET, Ticket
from covey_gateway.routing.refusals import refuse_displaced, refuse_pool
from covey_gateway.routing.reservation import plan_reservation
from covey_gateway.routing.table import Target
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import EngineConnection, Engines
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.http import render_engine_head
from covey_gateway.wire.metering import Meter
from covey_gateway.wire.request import Call, Request, Teller, render_request


@dataclass(slots=True)
class Ask:
    """What is asked of an engine."""

    model: ServedModel
    request: Request | None
    """None once an engine answers."""
    teller: Teller
    meter: Meter
    ticket: Ticket = NO_TICKET
    trace: str = ""
    """Header lines that tell the engine which trace it is in."""


class Sender(Protocol):
    """The exchange that asked."""

    def tell_sent(self) -> None: ...

    def look_again(self) -> None: ...

    def may_go_elsewhere(self, delivery: "Delivery") -> bool: ...

    def go_elsewhere(self, delivery: "Delivery", reason: str) -> None: ...

    def accept_head(self) -> None: ...

    def begin_stream(self) -> None: ...

    def write_events(self, events: bytes) -> None: ...

    def end_stream(self) -> None: ...

    def answer(self, content: bytes) -> None: ...

    def fail(self, error: ApiError) -> None: ...


class Pace(Protocol):
    """The client's connection, as far as time and backpressure go."""

    def now(self) -> float: ...

    def is_stalled(self) -> bool: ...


# What llama-server tells while it reads a prompt.
_PROGRESS = b'"prompt_progress"'
_ERROR = b'"error"'
_NO_SLOT = "had no slot free for the request within `queueSeconds`"
# What an engine answers that takes no request for now.
_TAKES_NOTHING = (429, 503)
# Whose engine has told so many has read the prompt.
_READ_EVENTS = 2


def is_progress_alone(piece: bytes) -> bool:
    """Comments, and events that say how far the prompt is."""
    told = piece.count(_PROGRESS)
    return (told > 0 or piece.startswith(b":")) and piece.count(b"data:") <= told


class Delivery:
    def __init__(self, sender: Sender, pace: Pace, traffic: Traffic, target: Target, ask: Ask, request_id: str) -> None:
        self.target = target
        self.ask = ask
        self._sender = sender
        self._pace = pace
        self._traffic = traffic
        self._request_id = request_id
        self._engines: Engines | None = None
        self._connection: EngineConnection | None = None
        self._reply: Reply = NoReply()
        self._has_begun = False
        """Whether a byte of the answer has come, and not only how far its prompt is."""
        self._is_over = False
        self._ticket = ask.ticket
        self._bounded: Request | None = None
        """With the bound for its answer that this endpoint's cache asks for; another endpoint's may be wider."""
        self._fit: Fit | None = None
        self._is_in_line = False
        self._is_sent = False
        self._count: Count | None = None
        """While the engine is asked for the prompt's length."""
        self._is_counted = False
        """Whether it was."""
        self.needs_slot = ask.request is None or ask.request.call is not Call.COUNT
        """A tokenizer answers beside what the slots do."""
        self._heard_at = self._asked_at = pace.now()
        self._turn_at: float | None = None
        """When a slot was free for it; None: it waits behind others."""
        self._told_events = 0
        """But for how far the prompt is. The first may be the role alone, which is told before the prompt is read."""
        self._has_ended = False
        """The engine said itself that it failed: it reads no prompt any more."""
        self.first_byte_at: float | None = None
        self.last_byte_at: float | None = None

    @property
    def silent_since(self) -> float | None:
        """Since when the engine owes a byte; None while it isn't its turn."""
        return None if self._connection is None or self._pace.is_stalled() else self._heard_at

    def start(self, engines: Engines) -> None:
        self._engines = engines
        if not self.needs_slot:
            self._has_ended = True  # nothing is read on
            self.take_turn()
            return
        self._reserve(engines, None)

    def _reserve(self, engines: Engines, counted: int | None) -> None:
        """`counted`: the prompt's tokens, by the engine; None: nobody has counted them."""
        ask, target, request = self.ask, self.target, self.ask.request
        if (pool_tokens := self._traffic.lines.pool_of(target)) and request is not None:
            reservation = plan_reservation(request, target, pool_tokens, counted)
            if reservation.tokens > pool_tokens:
                least = plan_reservation(request, target, pool_tokens, 0)
                if least.tokens <= pool_tokens and not self._is_counted and can_count(request):
                    self._ask_count(engines, request)
                    return
                found = (reservation.tokens, reservation.prompt_tokens, pool_tokens)
                self._sender.fail(refuse_pool(ask.model.name, request, *found, is_counted=counted is not None))
                return
            self._bounded = reservation.request
            self._ticket = replace(self._ticket, tokens=reservation.tokens)
        self._is_in_line = True
        self._traffic.lines.enter(target, self, self._ticket)

    def _ask_count(self, engines: Engines, request: Request) -> None:
        self._is_counted = True
        arguments = (engines, self.target, request, self.ask.model.name, self._request_id)
        self._count = Count(*arguments, partial(self._take_count, engines), self.on_unreachable)
        self._count.start()

    def _take_count(self, engines: Engines, counted: int | None) -> None:
        self._count = None
        self._reserve(engines, counted)

    def go_on(
        self,
        engines: Engines,
        connection: EngineConnection | None,
        *,
        heard_at: float,
        asked_at: float,
        has_turn: bool,
        told_events: int,
        first_byte_at: float | None,
        last_byte_at: float | None,
        reply: Reply,
    ) -> None:
        """It was sent by somebody else, is followed by `Traffic` and has its place in the line."""
        self._engines, self._connection = engines, connection
        self._is_in_line = self._is_sent = True
        self._heard_at, self._asked_at = heard_at, asked_at
        self._turn_at = asked_at if has_turn else None
        self._told_events = told_events
        self._has_begun = first_byte_at is not None
        self.first_byte_at, self.last_byte_at = first_byte_at, last_byte_at
        self._reply = reply

    # What its line tells.

    def take_turn(self) -> None:
        if self._engines is None:
            raise AssertionError("a request that is over was sent")
        self._is_sent = True
        self._sender.tell_sent()
        self._traffic.follow(self.target, self)
        self._engines.connect(self.target, self)

    def lose_place(self) -> None:
        self._is_in_line = False
        self._sender.fail(refuse_displaced(self.ask.model.name))

    def change_line(self) -> None:
        self._is_in_line = False
        self._release(refused=None)
        self._sender.look_again()

    def abandon(self) -> None:
        self._release(refused=None)

    def _release(self, refused: str | None, aside_seconds: int | None = None, *, is_busy: bool = False) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._engines = None
        if self._count is not None:
            self._count.close()
            self._count = None
        if self._connection is not None:
            self._spare_unread()
        if self._is_sent:
            self._traffic.unfollow(self.target, self)  # while it is known what the engine owes it
        is_left = self._connection is not None
        is_read_on = self._connection is not None and self._turn_at is not None
        is_read_on = is_read_on and self._told_events < _READ_EVENTS and not self._has_ended
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        self._traffic.release(
            self.target, refused=refused, aside_seconds=aside_seconds, is_busy=is_busy, is_read_on=is_read_on
        )
        if self._is_in_line:
            self._is_in_line = False
            if self._is_sent:
                self._traffic.lines.end(self.target, self._ticket, is_left=is_left)
            else:
                self._traffic.lines.leave(self.target, self, self._ticket)

    def _spare_unread(self) -> None:
        """What left while it waited behind others was read by nobody."""
        self._look_for_turn(self._pace.now())
        if self.ask.request is not None and self._turn_at is None:
            self.ask.meter.has_begun = False

    # What the connection tells.

    def on_connected(self, connection: EngineConnection) -> None:
        if self._is_over:
            connection.retire()
            return
        self._connection = connection
        self._heard_at = self._asked_at = self._pace.now()
        self._look_for_turn(self._asked_at)
        target, request = self.target, self._bounded or self.ask.request
        if request is None:
            raise AssertionError("a request that an engine answered is sent again")
        content = render_request(request, self.ask.model.name, target.engine)
        self._fit = plan_fit(self.ask.request or request, len(content), target, self.ask.model.name)
        if self._fit is not None:
            content = render_request(replace(request, wants_progress=True), self.ask.model.name, target.engine)
        head = render_engine_head(
            target.host, target.port, request.call, target.key, self._request_id, len(content), self.ask.trace
        )
        connection.send(self, head, content)
        self.ask.meter.begin(target.context_tokens)
        if self._pace.is_stalled():
            connection.pause()

    def on_unreachable(self, reason: str) -> None:
        if not self._is_over:
            self._release(refused=reason)
            self._sender.go_elsewhere(self, reason)

    def on_engine_lost(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if connection is None or not connection.has_answered:
            self.ask.meter.has_begun = self.ask.meter.has_reached = False
        if connection is not None and connection.has_answered:
            self._fail(ApiError(502, ErrorCode.UPSTREAM_ENDED, f"the engine ended the answer early: {reason}"))
        elif connection is not None and connection.is_reused and self._engines is not None:
            self._engines.connect(self.target, self, fresh=True)
        else:
            self.on_unreachable(reason)

    def on_engine_head(self, status: int, content_type: bytes, retry_after_seconds: int | None) -> None:
        if status in _TAKES_NOTHING and self.ask.request is not None and self._sender.may_go_elsewhere(self):
            self._turn_down(status, retry_after_seconds)
            return
        if status < 500 or status == 501:
            self._traffic.confirm(self.target)
        self._heard_at = self.last_byte_at = self._pace.now()
        ask = self.ask
        if ask.request is not None:
            self._reply = choose_reply(
                status,
                content_type,
                retry_after_seconds,
                ask.request,
                ask.teller,
                ask.model.name,
                ask.meter,
                self.target.engine,
                self._fit,
            )
        self.ask.request = self._bounded = None
        self._sender.accept_head()
        if self._reply.is_stream:
            self._sender.begin_stream()

    def _turn_down(self, status: int, retry_after_seconds: int | None) -> None:
        """The engine took nothing, for now: it loads its model, or has as much as it wants. Another endpoint may."""
        self._has_ended = True
        self.ask.meter.has_begun = self.ask.meter.has_reached = False
        reason = f"it answered {status}"
        self._release(refused=reason, aside_seconds=retry_after_seconds, is_busy=True)
        self._sender.go_elsewhere(self, reason)

    def on_engine_body(self, piece: bytes) -> None:
        self._heard_at = self.last_byte_at = self._pace.now()
        if not self._has_begun and not is_progress_alone(piece):
            self._has_begun = True
            self.first_byte_at = self._heard_at
        if self._told_events < _READ_EVENTS and _PROGRESS not in piece:
            self._told_events += piece.count(b"data:")
            self._has_ended = self._has_ended or _ERROR in piece
        taken = self._reply.take(piece)
        if self._fit is not None and self._reply.is_stream:
            self._fit = None
            self._sender.begin_stream()
        if isinstance(taken, Broken):
            if taken.told:
                self._sender.write_events(taken.told)
            self._fail(taken.error)
        elif isinstance(taken, ApiError):
            self._fail(taken)
        elif taken:
            self._sender.write_events(taken)

    def on_engine_end(self) -> None:
        self._connection = None
        ending = self._reply.end()
        if isinstance(ending, Refusal):
            self._fail(ending.error)
            return
        self._traffic.succeed(self.target)
        if self._reply.is_stream:
            if ending:
                self._sender.write_events(ending)
            self._sender.end_stream()
        else:
            self._sender.answer(ending)

    def _fail(self, error: ApiError) -> None:
        self._traffic.fail(self.target, error)
        self._sender.fail(error)

    # Time and backpressure.

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._heard_at = self._pace.now()
        if self._connection is not None:
            self._connection.resume()

    def check_deadlines(self, now: float) -> None:
        """An engine that is silent too long has failed. A client that is slow is not the engine's fault."""
        if self._count is not None and self._engines is not None and now - self._asked_at > COUNT_SECONDS:
            self._count.close()
            self._take_count(self._engines, None)
            return
        if self._is_in_line and not self._is_sent:
            if now - self._asked_at > (limit := self.target.timeouts.queue_seconds):
                # First out of its line, which may be moved elsewhere for this very failure.
                self._is_in_line = False
                self._traffic.lines.leave(self.target, self, self._ticket)
                self._fail(ApiError(504, ErrorCode.UPSTREAM_TIMEOUT, f"the engine {_NO_SLOT} ({limit} s)"))
            return
        if self._connection is None or self._pace.is_stalled():
            return
        timeouts = self.target.timeouts
        self._look_for_turn(now)
        if self._has_begun:
            since, limit = self._heard_at, timeouts.between_tokens_seconds
            words = "was silent in its answer for `betweenTokensSeconds`"
        elif self._turn_at is None:
            since, limit = self._asked_at, timeouts.queue_seconds
            words = _NO_SLOT
        else:
            since, limit = self._turn_at, timeouts.first_token_seconds
            words = "began no answer for `firstTokenSeconds`"
        if now - since <= limit and timeouts.total_seconds and now - self._asked_at > timeouts.total_seconds:
            since, limit = self._asked_at, timeouts.total_seconds
            words = "has not ended its answer after `totalSeconds`"
        if now - since > limit:
            self._fail(ApiError(504, ErrorCode.UPSTREAM_TIMEOUT, f"the engine {words} ({limit} s)"))

    def _look_for_turn(self, now: float) -> None:
        if self._turn_at is None and self._traffic.has_turn(self.target, self):
            self._turn_at = now
