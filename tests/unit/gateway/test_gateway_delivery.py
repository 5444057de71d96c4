"""What a request costs whose engine hasn't answered, by how it ended."""

from typing import Any, cast

import pytest
from covey_api.messages import ModelState, Order, ServedModel
from covey_gateway.delivery import Ask, Delivery, Sender
from covey_gateway.ledger import Ledger
from covey_gateway.records import Record
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.table import RoutingTable, Target, build_table
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import EngineConnection, Engines
from covey_gateway.wire.metering import Meter
from covey_gateway.wire.request import Call, Request, Teller

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
    def accept_head(self) -> None: ...

    def go_elsewhere(self, *_: object) -> None: ...

    def fail(self, *_: object) -> None: ...


class Pace:
    def now(self) -> float:
        return 0.0

    def is_stalled(self) -> bool:
        return False


class Rig:
    def __init__(self) -> None:
        self.traffic = Traffic(AccessPolicy(needs_local_origin=True, needs_key=False), lambda: 0.0)
        self.traffic.apply_table(self._table())
        self.charged: list[Record] = []
        self.traffic.ledger = Ledger(lambda: 0.0, self.charged.append)

    def _table(self) -> RoutingTable:
        return build_table(Order(term=1, serial=1), [MODEL], [TARGET], [])

    def started(self, call: Call = Call.CHAT) -> tuple[Delivery, Meter]:
        target = self.traffic.take(MODEL)
        assert isinstance(target, Target)
        meter = Meter(call)
        request = Request(call, "m", {}, cast(Any, None))
        ask = Ask(MODEL, request, cast(Teller, None), meter)
        made = Delivery(cast(Sender, Exchange()), Pace(), self.traffic, target, ask, "r")
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
