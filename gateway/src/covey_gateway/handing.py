"""A plain request on its short way (`express`): how far it is, and how it leaves that way for the general one.

Nothing was done on the short way that `Exchange` and `Delivery` would have to undo: they are made when something else
happens than nearly always does, are told how far the request is, take its place with its client, its engine, `Traffic`
and `Cancels`, and do what is to be done.
"""

from typing import Protocol

from covey_gateway.delivery import Ask, Delivery
from covey_gateway.exchange import Exchange, choose_request_id
from covey_gateway.images import Images
from covey_gateway.known import Known
from covey_gateway.limits import SILENCE_SECONDS
from covey_gateway.records import Record
from covey_gateway.reply import NoReply, Reply, resume_events
from covey_gateway.routing.table import PlainRoute, Target
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import EngineConnection, Engines
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.formats import OPENAI
from covey_gateway.wire.metering import Meter
from covey_gateway.wire.openai.answer import ChatAnswer
from covey_gateway.wire.openai.chat import PATH, parse_chat
from covey_gateway.wire.openai.passed import PassedChat
from covey_gateway.wire.openai.plain import PlainChat, withholds_usage
from covey_gateway.wire.request import Call, Teller

# How long before a deadline of its endpoint's somebody must look closer: twice the time between two looks.
_CARE_SECONDS = 2.0


class Connection(Protocol):
    """The client's."""

    @property
    def address(self) -> str: ...

    def now(self) -> float: ...

    def write(self, data: bytes, /) -> None: ...

    def is_stalled(self) -> bool: ...

    def end_answer(self, *, keeps_alive: bool, is_read: bool) -> None: ...

    def change_turn(self, before: "Handing", after: Exchange) -> None:
        """Another one answers this request from here on."""
        ...


class Handing:
    """A request that goes the short way, as far as it is, and how it leaves it."""

    __slots__ = (
        "_answer_bytes",
        "_asked_at",
        "_began_at",
        "_body",
        "_body_bytes",
        "_chat",
        "_client",
        "_connection",
        "_drops_usage",
        "_engines",
        "_first_byte_at",
        "_gathered_bytes",
        "_has_event",
        "_has_head",
        "_has_turn",
        "_heard_at",
        "_heir",
        "_images",
        "_is_done",
        "_is_ending",
        "_is_flowing",
        "_known",
        "_last_byte_at",
        "_meter",
        "_now",
        "_rest",
        "_route",
        "_sent_at",
        "_target",
        "_teller",
        "_told_events",
        "_traffic",
        "_wants_stream",
        "_withholds_usage",
        "keeps_alive",
        "request_id",
    )

    def __init__(
        self,
        client: Connection,
        traffic: Traffic,
        engines: Engines,
        images: Images,
        known: Known,
        route: PlainRoute,
        chat: PlainChat,
        body: bytes,
        began_at: float,
    ) -> None:
        self.keeps_alive = known.keeps_alive
        self.request_id = choose_request_id(known.head)
        self._client = client
        self._now = client.now
        self._traffic = traffic
        self._engines = engines
        self._images = images
        self._known = known
        self._route = route
        self._chat: PlainChat | None = chat
        self._body: bytes = body
        self._body_bytes = len(body)
        self._began_at = self._heard_at = self._asked_at = began_at
        self._wants_stream = bool(chat.stream)
        self._withholds_usage = withholds_usage(chat)
        self._meter = Meter(Call.CHAT)
        self._target: Target | None = None
        self._drops_usage = False
        self._connection: EngineConnection | None = None
        self._heir: Delivery | None = None
        """Who goes on with it."""
        self._teller: Teller | None = None
        self._sent_at: float | None = None
        self._first_byte_at: float | None = None
        self._last_byte_at: float | None = None
        self._has_turn = False
        self._has_head = False
        self._has_event = False
        self._is_done = False
        """Whether the last event was the format's own end."""
        self._is_flowing = False
        """Whether it is a stream that goes on, of which all that came is written."""
        self._is_ending = False
        """Whether all of the answer is written, or about to be."""
        self._told_events = 0
        self._answer_bytes = 0
        self._rest: bytes = b""
        self._gathered_bytes: int = 0

    def _make_record(self, status: int) -> Record:
        model, target = self._route.model, self._target
        record = Record(
            "POST",
            PATH,
            self.request_id,
            self._began_at,
            OPENAI.name,
            self._client.address,
        )
        record.key = self._known.caller.key
        record.namespace, record.model = model.namespace, model.name
        record.endpoint = target.instance_id if target is not None else ""
        record.status, record.is_stream = status, self._wants_stream
        record.request_bytes, record.answer_bytes = self._body_bytes, self._answer_bytes
        record.sent_at = self._sent_at
        record.first_byte_at, record.last_byte_at = (
            self._first_byte_at,
            self._last_byte_at,
        )
        return record

    # What is owed to it (`Awaiting`).

    @property
    def last_byte_at(self) -> float | None:
        return self._last_byte_at

    @property
    def silent_since(self) -> float | None:
        return None if self._connection is None or self._client.is_stalled() else self._heard_at

    @property
    def needs_slot(self) -> bool:
        return True

    # All that isn't the short way.

    def _pass_on(self, data: bytes) -> None:
        """These bytes of the engine's are for the general way."""
        connection = self._connection
        if connection is None:
            raise AssertionError("an answer came from nowhere")
        if self._heir is None:
            self._hand_over()
        connection.data_received(data)

    def _hand_over(self) -> Exchange:
        """What was sent, or is about to be, goes on in general."""
        target, connection, traffic = self._target, self._connection, self._traffic
        if target is None:
            raise AssertionError("a request without an endpoint was sent")
        exchange, ask, error = self._make_exchange()
        heir = self._heir = Delivery(exchange, self._client, traffic, target, ask, self.request_id)
        heir.go_on(
            self._engines,
            connection,
            heard_at=self._heard_at,
            asked_at=self._asked_at,
            has_turn=self._has_turn and connection is not None,
            told_events=self._told_events,
            first_byte_at=self._first_byte_at,
            last_byte_at=self._last_byte_at,
            reply=self._resume_reply(ask.teller),
        )
        exchange.go_on_with(heir)
        traffic.replace(target, self, heir)
        if connection is not None:
            connection.hand_over(heir, self._rest, has_head=self._has_head)
        if error is not None:
            exchange.fail(error)
        return exchange

    def _make_exchange(self) -> tuple[Exchange, Ask, ApiError | None]:
        """ApiError: it can't be asked again, and is to fail with this as soon as everything it holds is the exchange's.
        No request comes so far that isn't one for the general way, too; of a bug there nobody else is to suffer."""
        known, traffic, model = self._known, self._traffic, self._route.model
        exchange = Exchange(
            self._client,
            traffic,
            self._engines,
            self._images,
            known.head,
            known.caller,
            keeps_alive=self.keeps_alive,
            is_chunked=True,
            request_id=self.request_id,
        )
        parsed = None if self._has_head else parse_chat(self._body)
        request, error = (None, parsed) if isinstance(parsed, ApiError) else (parsed, None)
        teller: Teller = self._teller or (PassedChat(model.name) if self._wants_stream else ChatAnswer(model.name))
        ask = Ask(model, request, teller, self._meter, known.ticket)
        is_told = self._has_head and self._wants_stream
        held_bytes = 0 if self._has_head else self._body_bytes
        exchange.go_on(
            self._make_record(200 if is_told else 0),
            ask,
            held_bytes,
            has_head_sent=is_told,
        )
        traffic.cancels.unfollow(self.request_id, self)
        traffic.cancels.follow(self.request_id, known.caller, exchange)
        self._client.change_turn(self, exchange)
        return exchange, ask, error

    def _resume_reply(self, teller: Teller) -> Reply:
        if not self._has_head:
            return NoReply()
        return resume_events(
            self._route.model.name,
            teller,
            self._meter,
            self._wants_stream,
            drops_usage=self._drops_usage,
            has_begun=self._has_event,
            is_done=self._is_done,
        )

    def on_unreachable(self, reason: str) -> None:
        self._give_heir().on_unreachable(reason)

    def on_engine_lost(self, reason: str) -> None:
        self._give_heir().on_engine_lost(reason)

    def _give_heir(self) -> Delivery:
        if self._heir is None:
            self._hand_over()
        if self._heir is None:
            raise AssertionError("nobody goes on with a request that was handed over")
        return self._heir

    def abandon(self) -> None:
        """Its client is gone."""
        self._hand_over().abandon()

    def fail(self, error: ApiError) -> None:
        self._hand_over().fail(error)

    def cancel(self) -> None:
        self._hand_over().cancel()

    def pause_engine(self) -> None:
        if not self._is_ending:
            self._hand_over().pause_engine()

    def resume_engine(self) -> None:
        """It never was paused."""

    def check_deadlines(self, now: float) -> None:
        """Whether a deadline is near, or the time to say that a stream lives; the endpoint's own are whole seconds."""
        target = self._target
        if target is None or self._connection is None:
            self._hand_over().check_deadlines(now)
            return
        limits = target.timeouts
        soonest = min(SILENCE_SECONDS, limits.queue_seconds, limits.first_token_seconds, limits.between_tokens_seconds)
        is_long = limits.total_seconds and now - self._asked_at > limits.total_seconds - _CARE_SECONDS
        if is_long or now - self._heard_at > soonest - _CARE_SECONDS:
            self._hand_over().check_deadlines(now)
