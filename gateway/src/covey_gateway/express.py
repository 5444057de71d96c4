"""A plain chat request on its shortest way: one object, which is the client's turn and the engine's receiver at once.

    prepare ─▶ start ─▶ (connected) ─▶ take … take ─▶ finished
                 └───────────┴────────────┴─▶ handed over (`handing`): an `Exchange` and its `Delivery` go on from there

It knows the one way that nearly every request goes, and takes only steps that these would take, by the same decisions
(`Traffic`, `Lines`, `Accounts`, `Ledger`). Whatever else happens is theirs: an endpoint that has no place, a refusal,
an error in the stream, a client that stalls or leaves, a deadline that is near, a cancel.

Bytes of an answer are only looked through for what must not pass as it is, and go on in the chunks in which they came.
Long functions here are meant: each call that they don't make is one a request, or one a chunk.
"""

from covey_gateway.delivery import is_progress_alone
from covey_gateway.fitting import fits_all
from covey_gateway.handing import Connection, Handing
from covey_gateway.images import Images
from covey_gateway.known import Known
from covey_gateway.routing.conversation import SHORT_BYTES, digest_messages
from covey_gateway.routing.table import Target
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import EngineConnection, Engines
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.formats import HOT_PATHS, OPENAI
from covey_gateway.wire.frames import END, HEAD_END, is_stream_head, split_frames
from covey_gateway.wire.head import RequestHead
from covey_gateway.wire.http import (
    LAST_CHUNK,
    render_answer,
    render_chunk,
    render_engine_start,
    render_stream_head,
)
from covey_gateway.wire.metering import drop_usage
from covey_gateway.wire.openai.answer import ChatAnswer
from covey_gateway.wire.openai.chat import PATH
from covey_gateway.wire.openai.passed import PassedChat, may_need_mending
from covey_gateway.wire.openai.plain import (
    MAX_PLAIN_BYTES,
    parse_plain,
    render_plain,
)
from covey_gateway.wire.request import counts_asked
from covey_gateway.wire.sse import may_tell_error

PLAIN_PATH = PATH.encode()
_FORMAT = HOT_PATHS[PLAIN_PATH][0]
_DONE = b"data: [DONE]\n\n"
_EVENT = b"data: {"
_EVENT_END = b"}\n\n\r\n"
_USAGE, _NO_USAGE = b'"usage"', b'"usage":null'
_PROGRESS = b'"prompt_progress"'
_READ_EVENTS = 2
# A chunk that isn't whole yet, an answer that is put together: of more the general way keeps account.
_MAX_PARTIAL_BYTES = 64 * 1024
_MAX_GATHERED_BYTES = 1024 * 1024


def is_plain_head(head: RequestHead) -> bool:
    """Whether a request with this head, by HTTP/1.1, may go the short way."""
    return (
        head.path == PLAIN_PATH
        and head.method == b"POST"
        and 0 < head.content_length <= MAX_PLAIN_BYTES
        and not head.expects_continue
        and head.hold_seconds is None
        and head.trace is None
    )


def prepare(
    client: Connection,
    traffic: Traffic,
    engines: Engines,
    images: Images,
    known: Known,
    body: bytes,
    began_at: float,
) -> "Express | None":
    """None: it isn't plain, or is to be refused; nothing was counted of it. Else it is its key's, and must start."""
    if len(body) > MAX_PLAIN_BYTES or traffic.ledger.tracer is not None:
        return None
    chat = parse_plain(body)
    if chat is None:
        return None
    route = known.routes.get(chat.model)
    if route is None:
        if (route := traffic.find_plain(known.caller, chat.model)) is None:
            return None
        known.remember(chat.model, route)
    if route.has_pool:
        return None
    if route.window_tokens is not None and (most := chat.most_tokens) is not None and most >= route.window_tokens:
        return None
    if (most := chat.most_tokens) is not None and not fits_all(most, len(body), route.targets):
        return None
    if not traffic.reserve_body(len(body)):
        return None
    if (key := known.caller.key) and traffic.accounts.begin(key) is not None:
        traffic.free_body(len(body))
        return None
    return Express(client, traffic, engines, images, known, route, chat, body, began_at)


class Express(Handing):
    __slots__ = ()

    # Sending.

    def start(self) -> None:
        traffic, known = self._traffic, self._known
        traffic.cancels.follow(self.request_id, known.caller, self)
        target = self._choose()
        if isinstance(target, ApiError):
            exchange, _, _ = self._make_exchange()
            exchange.fail(target)
            return
        self._target = target
        if not traffic.lines.enter_at_once(target, known.ticket):
            exchange, ask, error = self._make_exchange()
            if error is None:
                exchange.deliver_at(target, ask)
            else:
                traffic.release(target)
                exchange.fail(error)
            return
        self._sent_at = self._now()
        self._drops_usage = self._withholds_usage and counts_asked(target.engine)
        self._has_turn = traffic.follow(target, self)
        self._engines.connect(target, self)

    def _choose(self) -> Target | ApiError:
        known, route, chat = self._known, self._route, self._chat
        conversation = None
        owner, session = known.caller.key, known.head.session
        if chat is not None and len(route.targets) > 1 and (session or self._body_bytes >= SHORT_BYTES):
            key = (route.model.namespace, route.model.name)
            conversation = digest_messages(chat.messages, key, session, owner)
        return self._traffic.take_one(route.model, route.targets, conversation, owner, known.ticket)

    def on_connected(self, connection: EngineConnection) -> None:
        target, chat = self._target, self._chat
        if self._heir is not None or target is None or chat is None or self._client.is_stalled():
            self._give_heir().on_connected(connection)
            return
        self._connection = connection
        self._heard_at = self._asked_at = self._now()
        counts = not self._wants_stream or self._drops_usage
        content = render_plain(chat, self._route.model.name, counts=counts)
        self._chat = None
        start = render_engine_start(target.host, target.port, PATH, target.key)
        id_ = self.request_id.encode()
        connection.send_express(self, b"%b%b\r\ncontent-length: %d\r\n\r\n%b" % (start, id_, len(content), content))
        self._meter.begin(target.context_tokens)

    # Answering.

    def take(self, data: bytes) -> None:
        """What the engine sent. First one event in one chunk of a stream that flows: nearly always it is that."""
        if self._is_flowing and data.endswith(_EVENT_END):
            payload = data[data.find(b"\n") + 1 : -2]
            if (
                data.startswith(b"%x\r\n" % len(payload))
                and payload.startswith(_EVENT)
                and payload.find(b"\n") == len(payload) - 2
                and b'"error"' not in payload
                and b'"tool_calls"' not in payload
                and b'"reasoning"' not in payload
                and b'"chat.completion"' not in payload
                and (_USAGE not in payload or not self._drops_usage)
            ):
                self._heard_at = self._last_byte_at = self._now()
                self._meter.count(payload)
                self._answer_bytes += len(data)
                self._client.write(data)
                return
        self._take_any(data)

    def _take_any(self, data: bytes) -> None:
        self._heard_at = now = self._now()
        if self._rest:
            data = self._rest + data
            self._rest = b""
        end = 0
        if not self._has_head:
            end = data.find(HEAD_END) + 4
            if end < 4 or not self._is_usual(data[:end]):
                self._pass_on(data)
                return
        frames = split_frames(data[end:] if end else data)
        rest_bytes = 0 if frames is None else len(data) - end - frames[1]
        if frames is None or self._is_strange(frames[0], rest_bytes) or not self._gather(frames[0]):
            self._pass_on(data)
            return
        out = b""
        if end:
            data = data[end:]
            out = self._accept_head(now)
        payload, taken, is_end = frames
        if not is_end and taken < len(data):
            self._rest = data[taken:]
            self._is_flowing = False
        if payload:
            self._note(payload, now)
        if is_end and not self._is_done:  # it broke off, in order
            self._tell(out, payload, b"")
            self._pass_on(END)
            return
        self._is_ending = is_end
        if is_end and (key := self._known.caller.key):  # before its client hears the end, and asks again at once
            self._traffic.accounts.end(key)
        if payload and self._wants_stream and self._must_change(payload):
            self._tell(out, payload, LAST_CHUNK if is_end else b"")
        elif self._wants_stream:
            out += data[:taken] if self._rest else data
            if out:
                self._write(out)
        if is_end:
            self._end()

    def _is_strange(self, payload: bytes, rest_bytes: int) -> bool:
        """Whether it isn't to be read here: part of an event, or an error, or too much."""
        return (
            (bool(payload) and not payload.endswith(b"\n\n"))
            or (not self._has_event and bool(payload) and not payload.startswith(_EVENT))
            or may_tell_error(payload)
            or rest_bytes > _MAX_PARTIAL_BYTES
        )

    def _note(self, payload: bytes, now: float) -> None:
        self._last_byte_at = now
        self._has_event = True
        if self._first_byte_at is None and not is_progress_alone(payload):
            self._first_byte_at = now
        if self._told_events < _READ_EVENTS and _PROGRESS not in payload:
            self._told_events += payload.count(b"data:")
        self._meter.count(payload)
        self._is_done = payload.endswith(_DONE)
        self._is_flowing = (
            self._wants_stream and not self._is_done and not self._rest and self._told_events >= _READ_EVENTS
        )

    def _is_usual(self, head: bytes) -> bool:
        """Whether it is the head of an answer for the short way."""
        connection = self._connection
        if connection is None:
            return False
        if head == connection.known_head:
            return True
        is_usual = is_stream_head(head)
        if is_usual:
            connection.known_head = head
        return is_usual

    def _accept_head(self, now: float) -> bytes:
        """The engine answers, and needs the request no more. What a stream begins with."""
        target = self._target
        if target is None:
            raise AssertionError("an answer came from nowhere")
        self._has_head = True
        self._last_byte_at = now
        self._traffic.confirm(target)
        self._body = b""
        self._traffic.free_body(self._body_bytes)
        return self._render_stream_head() if self._wants_stream else b""

    def _must_change(self, payload: bytes) -> bool:
        if may_need_mending(payload):
            return True
        return self._drops_usage and _USAGE in payload and payload.count(_USAGE) != payload.count(_NO_USAGE)

    def _tell(self, out: bytes, payload: bytes, last: bytes) -> None:
        """A piece that can't pass as it came, or must not yet."""
        if not self._wants_stream:
            return
        if self._teller is None:
            self._teller = PassedChat(self._route.model.name)
        if self._drops_usage:
            payload = drop_usage(payload)
        told = self._teller.take(payload) if payload else b""
        if told and not isinstance(told, ApiError):
            out += render_chunk(told)
        if out or last:
            self._write(out + last)

    def _gather(self, payload: bytes) -> bool:
        """Whether it is in the answer, where one is put together; else nothing of it is."""
        if self._wants_stream or not payload:
            return True
        answer = self._teller
        if answer is None:
            answer = self._teller = ChatAnswer(self._route.model.name)
        self._gathered_bytes += len(payload)
        if self._gathered_bytes > _MAX_GATHERED_BYTES or not isinstance(answer, ChatAnswer):
            return False
        return not isinstance(answer.take_plain(payload), ApiError)

    def _end(self) -> None:
        """The engine's answer is whole."""
        connection, target = self._connection, self._target
        if connection is None or target is None:
            raise AssertionError("an answer came from nowhere")
        content = b"" if self._wants_stream or self._teller is None else self._teller.end()
        self._connection = None
        connection.finish_express()
        if not self._wants_stream:
            self._write(
                render_answer(
                    200,
                    content,
                    request_id=self.request_id,
                    date=self._traffic.date,
                    keeps_alive=self.keeps_alive,
                    more=self._render_allowances(),
                )
            )
        self._give_back(target)
        self._client.end_answer(keeps_alive=self.keeps_alive, is_read=True)

    def _give_back(self, target: Target) -> None:
        traffic, known = self._traffic, self._known
        traffic.cancels.unfollow(self.request_id, self)
        traffic.succeed(target)
        traffic.unfollow(target, self)
        traffic.release(target)
        traffic.lines.end(target, known.ticket, is_left=False)
        traffic.ledger.close(self._make_record(200), self._meter)

    def _render_stream_head(self) -> bytes:
        return render_stream_head(
            request_id=self.request_id,
            date=self._traffic.date,
            keeps_alive=self.keeps_alive,
            is_chunked=True,
            content_type=_FORMAT.stream_type,
            more=self._render_allowances(),
        )

    def _render_allowances(self) -> bytes:
        key = self._known.caller.key
        return self._traffic.render_allowances(OPENAI.render_allowances, key) if key else b""

    def _write(self, data: bytes) -> None:
        self._answer_bytes += len(data)
        self._client.write(data)
