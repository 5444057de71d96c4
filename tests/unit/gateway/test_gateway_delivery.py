"""What a request costs whose engine hasn't answered, by how it ended."""

from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import msgspec
import pytest
from covey_api.messages import ModelState, Order, ServedModel
from covey_api.placement import RequestTimeouts
from covey_gateway.delivery import Ask, Delivery, Sender
from covey_gateway.ledger import Ledger
from covey_gateway.records import Record
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.table import Target, build_table
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import EngineConnection, Engines
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.metering import Meter
from covey_gateway.wire.openai.passed import PassedChat
from covey_gateway.wire.request import Call, Request

MODEL = ServedModel(namespace="default", name="m", state=ModelState.READY)
TARGET = Target("i", "i", "default", "m", "127.0.0.1", 1, "", 1, 1, 2048, confirmed=True)
BYTES = 4000
"""Of a request: 1000 tokens of a model that nobody was answered by yet."""


class Connection:
    """An engine's, as far as a delivery needs it."""

    is_reused = False
    has_answered = False

    def send(self, *_: object) -> None: ...

    def abort(self) -> None: ...


class Dial:
    """Connects when it is told to."""

    def connect(self, *_: object, **__: object) -> None: ...


class Exchange:
    def tell_sent(self) -> None: ...

    def look_again(self) -> None: ...

    def accept_head(self) -> None: ...

    def begin_stream(self) -> None: ...

    def write_events(self, *_: object) -> None: ...

    def may_go_elsewhere(self, *_: object) -> bool:
        return False

    def go_elsewhere(self, *_: object) -> None: ...

    def fail(self, *_: object) -> None: ...


class Told(Exchange):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def look_again(self) -> None:
        self.calls.append("look again")

    def fail(self, *_: object) -> None:
        self.calls.append("fail")


class Wanderer(Exchange):
    """Has another endpoint to go to."""

    def may_go_elsewhere(self, *_: object) -> bool:
        return True


class Pace:
    at = 0.0

    def now(self) -> float:
        return self.at

    def is_stalled(self) -> bool:
        return False


class Watched(Traffic):
    """Keeps of each that is released whether it is read on."""

    @cached_property
    def read_on(self) -> list[bool]:
        return []

    def release(
        self,
        target: Target,
        *,
        refused: str | None = None,
        aside_seconds: int | None = None,
        is_busy: bool = False,
        is_read_on: bool = False,
    ) -> None:
        self.read_on.append(is_read_on)
        super().release(target, refused=refused, aside_seconds=aside_seconds, is_busy=is_busy, is_read_on=is_read_on)


class Rig:
    def __init__(self, *targets: Target) -> None:
        self.traffic = Watched(AccessPolicy(needs_local_origin=True, needs_key=False), lambda: 0.0)
        self.traffic.apply_table(build_table(Order(term=1, serial=1), [MODEL], targets or [TARGET], []))
        self.charged: list[Record] = []
        self.traffic.ledger = Ledger(lambda: 0.0, self.charged.append)

    def started(
        self, call: Call = Call.CHAT, sender: Exchange | None = None, pace: Pace | None = None
    ) -> tuple[Delivery, Meter]:
        target = self.traffic.take(MODEL)
        assert isinstance(target, Target)
        meter = Meter(call)
        request = Request(call, "m", {}, cast(Any, None))
        ask = Ask(MODEL, request, PassedChat("m"), meter)
        made = Delivery(cast(Sender, sender or Exchange()), pace or Pace(), self.traffic, target, ask, "r")
        made.start(cast(Engines, Dial()))
        return made, meter

    def over(self, delivery: Delivery, meter: Meter) -> int | None:
        """What its key is charged; None: it isn't even counted."""
        delivery.abandon()
        record = Record("POST", "/", "r", 0.0, key="default/ann", request_bytes=BYTES, sent_at=0.0)
        self.charged.clear()
        self.traffic.ledger.close(record, meter)
        assert record.cost.is_estimated == bool(record.cost.total)
        return record.cost.total if self.charged else None


def connect(delivery: Delivery) -> Connection:
    connection = Connection()
    delivery.on_connected(cast(EngineConnection, connection))
    return connection


def test_who_leaves_before_a_byte_of_the_answer_pays_for_the_prompt() -> None:
    rig = Rig()
    delivery, meter = rig.started()
    connect(delivery)
    assert rig.over(delivery, meter) == BYTES // 4


@pytest.mark.parametrize(
    ("pieces", "is_busy"),
    [
        ((), True),
        ((b": keepalive 1/9\n\n",), True),
        ((b'data: {"choices":[],"prompt_progress":{"total":9}}\n\n',), True),
        ((b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',), True),
        ((b'data: {"error":{"message":"full","code":500,"type":"server_error"}}\n\n',), False),
        ((b": keepalive 9/9\n\n", *[b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'] * 2), False),
    ],
)
def test_a_prompt_is_read_on_where_its_client_left_before_a_token(pieces: tuple[bytes, ...], is_busy: bool) -> None:
    rig = Rig()
    delivery, _ = rig.started()
    connect(delivery)
    if pieces:
        delivery.on_engine_head(200, b"text/event-stream", None)
    for piece in pieces:
        delivery.on_engine_body(piece)
    delivery.abandon()
    assert rig.traffic.read_on == [is_busy]


@pytest.mark.parametrize(
    "progress", [b": keepalive 1/9\n\n", b'data: {"choices":[],"prompt_progress":{"total":9,"processed":2}}\n\n']
)
def test_how_far_a_prompt_is_is_no_first_byte_of_the_answer(progress: bytes) -> None:
    told, pace = Told(), Pace()
    delivery, _ = Rig(replace(TARGET, timeouts=RequestTimeouts(between_tokens_seconds=20))).started(
        sender=told, pace=pace
    )
    connect(delivery)
    delivery.on_engine_head(200, b"text/event-stream", None)
    delivery.on_engine_body(progress)
    pace.at = 27.0
    delivery.check_deadlines(pace.at)
    assert (delivery.first_byte_at, told.calls) == (None, [])
    delivery.on_engine_body(progress + b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    assert delivery.first_byte_at == 27.0
    pace.at = 48.0
    delivery.check_deadlines(pace.at)
    assert told.calls == ["fail"]


def test_what_waited_for_its_turn_was_not_read() -> None:
    rig = Rig()
    (first, _), (second, _) = rig.started(), rig.started()
    connect(first)
    connect(second)
    second.abandon()
    first.abandon()
    assert rig.traffic.read_on == [False, True]


def test_a_dial_that_failed_is_no_request() -> None:
    rig = Rig()
    delivery, meter = rig.started()
    delivery.on_unreachable("it refused")
    assert rig.over(delivery, meter) is None


def test_an_engine_that_broke_before_it_answered_has_read_nothing() -> None:
    rig = Rig()
    delivery, meter = rig.started()
    connect(delivery)
    delivery.on_engine_lost("it closed the connection")
    assert rig.over(delivery, meter) is None


@pytest.mark.parametrize("status", [400, 503])
def test_what_an_engine_refused_is_a_request_without_tokens(status: int) -> None:
    rig = Rig()
    delivery, meter = rig.started()
    connect(delivery)
    delivery.on_engine_head(status, b"application/json", None)
    assert rig.over(delivery, meter) == 0


def test_what_waited_behind_others_until_it_left_costs_nothing() -> None:
    rig = Rig()
    (first, first_meter), (second, second_meter), (third, third_meter) = (rig.started() for _ in range(3))
    for each in (first, second, third):
        connect(each)
    assert rig.over(second, second_meter) == 0
    assert rig.over(first, first_meter) == BYTES // 4
    assert rig.over(third, third_meter) == BYTES // 4, "its turn had come"


def test_the_bound_of_one_endpoints_cache_does_not_go_elsewhere_with_the_request() -> None:
    class Sent(Connection):
        content = b""

        def send(self, *given: object) -> None:
            self.content = cast(bytes, given[2])

    rig = Rig(replace(TARGET, kv_tokens=8000, output_tokens=77))
    delivery, _ = rig.started()
    connection = Sent()
    delivery.on_connected(cast(EngineConnection, connection))
    assert msgspec.json.decode(connection.content)["max_tokens"] == 77
    assert delivery.ask.request is not None
    assert delivery.ask.request.max_tokens is None


def test_who_had_no_turn_in_time_is_told_so_and_not_moved() -> None:
    """Though it is this that sets its endpoint aside."""
    rig = Rig(replace(TARGET, most_sent=1), replace(TARGET, id="j", instance_id="j", confirmed=False))
    rig.started()
    sender, pace = Told(), Pace()
    waiting, _ = rig.started(sender=sender, pace=pace)
    assert waiting.target.id == "i"
    load = rig.traffic._loads["i"]  # pyright: ignore[reportPrivateUsage]  (else it takes five that fail)
    load.is_silent = True
    pace.at = 10_000.0
    waiting.check_deadlines(pace.at)
    assert load.aside is not None
    assert sender.calls == ["fail"]
    waiting.abandon()
    assert rig.traffic.lines.count_waiting("i") == 0


@pytest.mark.parametrize("status", [429, 503])
def test_an_engine_that_takes_nothing_for_now_is_set_aside_and_reached(status: int) -> None:
    rig = Rig()
    told: list[bool] = []
    rig.traffic.watch_news(lambda: told.append(True))
    delivery, _ = rig.started(sender=Wanderer())
    connect(delivery)
    delivery.on_engine_head(status, b"", 5)
    (seen,) = rig.traffic.observe_demand()
    assert not seen.unreachable
    assert not told
    assert isinstance(rig.traffic.take(MODEL), ApiError)


def test_a_count_takes_nobodys_turn_and_waits_for_none() -> None:
    rig = Rig()
    count, _ = rig.started(Call.COUNT)
    connect(count)
    chat, _ = rig.started()
    connect(chat)
    later, _ = rig.started(Call.COUNT)
    connect(later)
    assert rig.traffic.has_turn(TARGET, count)
    assert rig.traffic.has_turn(TARGET, chat)
    assert rig.traffic.has_turn(TARGET, later)
    behind, _ = rig.started()
    connect(behind)
    assert not rig.traffic.has_turn(TARGET, behind)
