"""The board: reports are merged, serials grow only with content, slow readers get the newest."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from covey_api.messages import (
    KEEPALIVE_SECONDS,
    NODE_SILENCE_SECONDS,
    Ask,
    AskAnswer,
    AskKind,
    Assignments,
    Demand,
    EndpointDemand,
    Endpoints,
    Order,
    Report,
)
from covey_api.node import NodeSpec
from covey_controller.board import FORGET_SECONDS, MAX_TERM_LEAP, FleetBoard
from covey_simulator.virtual_time import run_virtual
from kit import builders, worlds


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> FleetBoard:
    made = FleetBoard(clock)
    made.begin(3)
    return made


def assignments(node: str = "a", **changes: object) -> Assignments:
    fields: dict[str, object] = {"term": 3, "serial": 0, "complete": True, "node": node, "spec": NodeSpec()}
    return Assignments.model_validate(fields | changes)


def table(*ids: str) -> Endpoints:
    instances = [builders.instance(f"m-{each}", instance_id=each) for each in ids]
    return Endpoints.model_validate(
        {
            "term": 3,
            "serial": 0,
            "endpoints": [
                {
                    "instance_id": each.spec.instance_id,
                    "instance": each.metadata.name,
                    "namespace": "default",
                    "model": "m",
                    "node": "a",
                    "host": "127.0.0.1",
                    "port": 1,
                    "key": "k",
                    "engine": "LlamaServer",
                    "slots": 1,
                    "context_tokens": 256,
                }
                for each in instances
            ],
        }
    )


def test_seal_stays_with_the_instance_that_a_later_report_leaves_out(board: FleetBoard) -> None:
    whole = worlds.member_report(builders.instance())
    board.on_report("a", worlds.report([whole]))
    board.on_report("a", delta(members=(whole.model_copy(update={"instance": None, "seal": "", "restarts": 1}),)))
    kept = board.observed.agents["a"].report
    assert kept is not None
    assert kept.members == (whole.model_copy(update={"restarts": 1}),)


def delta(**changes: object) -> Report:
    fields: dict[str, object] = {"boot_id": "b0", "sequence": 2, "version": "0.1.0", "full": False}
    return Report.model_validate(fields | changes)


def merged(board: FleetBoard, node: str = "a") -> Report:
    report = board.observed.agents[node].report
    assert report is not None
    return report


def test_what_a_report_leaves_out_has_not_changed(board: FleetBoard) -> None:
    instance = builders.instance()
    full = worlds.report([worlds.member_report(instance)], blobs=("d",), applied=Order(term=3, serial=1))
    assert not board.on_report("a", full).resend
    assert not board.on_report("a", delta()).resend
    kept = merged(board)
    assert (kept.facts, kept.lanes, kept.blobs) == (full.facts, full.lanes, full.blobs)
    assert (kept.members, kept.applied) == (full.members, full.applied)


def test_whole_instance_is_remembered_when_later_reports_name_only_the_member(board: FleetBoard) -> None:
    instance = builders.instance()
    board.on_report("a", worlds.report([worlds.member_report(instance)]))
    bare = worlds.member_report(instance).model_copy(update={"instance": None, "restarts": 1})
    board.on_report("a", delta(members=(bare,)))
    members = merged(board).members or ()
    assert [(each.restarts, each.instance) for each in members] == [(1, instance)]


@pytest.mark.parametrize("boot_id", ["b0", "b1"])
def test_partial_report_of_an_unknown_boot_asks_for_all(board: FleetBoard, boot_id: str) -> None:
    if boot_id == "b1":
        board.on_report("a", worlds.report())
    assert board.on_report("a", delta(boot_id=boot_id)).resend


def test_new_boot_forgets_what_the_old_one_said(board: FleetBoard) -> None:
    board.on_report("a", worlds.report([worlds.member_report(builders.instance())]))
    board.on_report("a", worlds.report(boot_id="b1", facts=None))
    assert merged(board).members == ()
    assert merged(board).facts is None


def test_report_that_comes_late_changes_nothing(board: FleetBoard) -> None:
    board.on_report("a", worlds.report(sequence=5))
    board.on_report("a", delta(sequence=4, blobs=("old",)))
    assert merged(board).blobs == ()


def test_loop_wakes_when_a_report_matters_and_sleeps_through_readings(board: FleetBoard, clock: Clock) -> None:
    board.on_report("a", worlds.report())
    board.wake.clear()
    clock.now = 2.0
    board.on_report("a", delta(readings=[{"name": "Host", "available_bytes": 1}]))
    assert not board.wake.is_set()
    board.on_report("a", delta(sequence=3, blobs=("new",)))
    assert board.wake.is_set()
    board.wake.clear()
    clock.now = 60.0
    board.on_report("a", delta(sequence=4))
    assert board.wake.is_set(), "it was silent"


def test_loop_wakes_for_demands_that_end_a_drain_and_not_for_traffic(board: FleetBoard) -> None:
    routed, gone = "0" * 16, "1" * 16
    board.publish({}, table(routed))

    def demand(routed_requests: int, gone_requests: int) -> Demand:
        return Demand(
            gateway="g",
            address="http://127.0.0.1:1",
            applied=board.order,
            endpoints=(
                EndpointDemand(instance_id=routed, in_flight=routed_requests),
                EndpointDemand(instance_id=gone, in_flight=gone_requests),
            ),
        )

    board.on_demand("g", demand(1, 1))
    board.wake.clear()
    board.on_demand("g", demand(5, 1))
    assert not board.wake.is_set()
    board.on_demand("g", demand(5, 0))
    assert board.wake.is_set()


def test_each_gateway_is_told_how_many_are_live(board: FleetBoard, clock: Clock) -> None:
    def tell(gateway: str) -> int:
        return board.on_demand(gateway, Demand(gateway=gateway, address="http://127.0.0.1:1")).gateways

    assert [tell("g"), tell("h"), tell("g")] == [1, 2, 2]
    clock.now += 2 * NODE_SILENCE_SECONDS
    assert tell("g") == 1


def test_loop_wakes_when_an_endpoint_falls_silent_and_when_it_is_heard_again(board: FleetBoard) -> None:
    routed = "0" * 16
    board.publish({}, table(routed))

    def wakes(waited: float) -> bool:
        told = EndpointDemand(instance_id=routed, in_flight=1, oldest_silent_seconds=waited)
        board.wake.clear()
        board.on_demand("g", Demand(gateway="g", address="http://127.0.0.1:1", endpoints=(told,)))
        return board.wake.is_set()

    wakes(1.0)
    assert [wakes(waited) for waited in (5.0, 29.0, 33.0, 37.0, 600.0, 2.0, 6.0)] == [
        *(False, False, True, False, False, True, False)
    ]


def test_serials_grow_only_with_content_and_terms_start_anew(board: FleetBoard) -> None:
    board.publish({"a": assignments()}, table("0" * 16))
    assert board.order == Order(term=3, serial=2)
    board.publish({"a": assignments()}, table("0" * 16))
    assert board.order == Order(term=3, serial=2)
    board.publish({"a": assignments(complete=False)}, None)
    assert board.order == Order(term=3, serial=3)
    assert board.published.endpoints is not None, "no table means the one there is"
    board.begin(4)
    assert board.order == Order(term=4, serial=0)
    assert board.published.endpoints is None


def test_an_agent_that_said_nothing_since_is_observed_as_the_very_same_value(board: FleetBoard, clock: Clock) -> None:
    for node in ("a", "b"):
        board.on_report(node, worlds.report())
    before = board.observe_agents()
    clock.now += 1
    board.on_report("b", delta())
    after = board.observe_agents()
    assert after[0] is before[0]
    assert (before[1].seen, after[1].seen) == (0.0, 1.0)
    board.forget_agent("a")
    board.on_report("a", worlds.report())
    (again,) = (each for each in board.observe_agents() if each.node == "a")
    assert again.seen == 1.0


def test_new_leadership_asks_every_agent_for_all_it_holds(board: FleetBoard) -> None:
    """Its store may be another: what a report leaves out, only the old store knew."""
    instance = builders.instance()
    board.on_report("a", worlds.report())
    board.on_report("a", delta(members=(worlds.member_report(instance).model_copy(update={"instance": None}),)))
    board.begin(4)
    assert board.observe_agents()[0].report is None
    assert board.on_report("a", delta(sequence=3)).resend
    board.on_report("a", worlds.report([worlds.member_report(instance)], sequence=4))
    assert [member.instance for member in merged(board).members or ()] == [instance]


def test_highest_term_is_what_anybody_acts_on(board: FleetBoard) -> None:
    board.on_report("a", worlds.report(applied=Order(term=7, serial=1)))
    board.on_report("b", worlds.report([worlds.member_report(builders.instance(term=9))]))
    board.on_demand("g", Demand(gateway="g", address="http://x", applied=Order(term=8, serial=1)))
    assert board.observed.highest_term == 9


@pytest.mark.parametrize("term", [3 + MAX_TERM_LEAP + 1, (1 << 53) - 1])
def test_leap_of_the_term_is_not_believed(board: FleetBoard, term: int) -> None:
    board.on_report("a", worlds.report(applied=Order(term=term, serial=1)))
    board.on_report("b", worlds.report([worlds.member_report(builders.instance(term=term))]))
    board.on_demand("g", Demand(gateway="g", address="http://x", applied=Order(term=term, serial=1)))
    assert board.observed.highest_term == 0


def test_peer_that_names_ever_higher_terms_is_believed_a_few_times_and_others_still_are(
    board: FleetBoard, caplog: pytest.LogCaptureFixture
) -> None:
    for term in range(4, 40):
        board.on_demand("rogue", Demand(gateway="rogue", address="http://x", applied=Order(term=term, serial=1)))
        if board.observed.highest_term > board.order.term:
            board.begin(board.observed.highest_term + 1)
    reached = board.order.term
    assert reached < 20
    assert any("gateway 'rogue' reports ever higher terms" in record.getMessage() for record in caplog.records)
    board.on_report("a", worlds.report(applied=Order(term=reached + 5, serial=1)))
    assert board.observed.highest_term == reached + 5


def test_serial_of_this_term_that_was_never_given_out_counts_as_a_higher_term(board: FleetBoard) -> None:
    board.publish({"a": assignments()}, None)
    board.on_report("a", worlds.report(applied=Order(term=3, serial=1)))
    assert board.observed.highest_term <= 3
    board.on_report("b", worlds.report(applied=Order(term=3, serial=2)))
    assert board.observed.highest_term == 4


def test_answer_is_kept_only_while_its_ask_is_open_on_that_node(board: FleetBoard) -> None:
    board.publish({"a": assignments(asks=(Ask(id="x", kind=AskKind.HEADER),))}, None)
    board.on_answer("b", AskAnswer(id="x", error="not mine"))
    board.on_answer("a", AskAnswer(id="y", error="never asked"))
    assert board.observed.answers == {}
    board.on_answer("a", AskAnswer(id="x", error="mine"))
    assert list(board.observed.answers) == ["x"]
    board.take_answers(("x", "gone"))
    assert board.observed.answers == {}


def test_gateway_that_left_is_forgotten(board: FleetBoard, clock: Clock) -> None:
    board.on_demand("g", Demand(gateway="g", address="http://x"))
    clock.now = FORGET_SECONDS + 1
    assert board.observe_gateways() == ()


async def take(stream: AsyncIterator[Assignments | None], count: int) -> list[Assignments | None]:
    return [await anext(stream) for _ in range(count)]


def test_stream_gives_the_newest_then_changes_then_keepalives() -> None:
    async def story() -> None:
        board = FleetBoard(asyncio.get_running_loop().time)
        board.begin(3)
        stream = board.watch_assignments("a")
        assert await take(stream, 1) == [None]
        assert asyncio.get_running_loop().time() == KEEPALIVE_SECONDS
        board.publish({"a": assignments(complete=False)}, None)
        board.publish({"a": assignments()}, None)
        first, second = await take(stream, 2)
        assert first is not None
        assert (first.serial, first.complete, second) == (2, True, None)

    run_virtual(story())


def test_keep_alives_of_all_streams_come_together_and_in_time() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        board = FleetBoard(loop.time)
        came: list[float] = []

        async def read(node: str) -> None:
            async for snapshot in board.watch_assignments(node):
                assert snapshot is None
                came.append(loop.time())

        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(read("a"))]
            await asyncio.sleep(2)
            reading.append(group.create_task(read("b")))
            await asyncio.sleep(13.5)
            assert came == [time for time in (5.0, 10.0, 15.0) for _ in reading]
            for task in reading:
                task.cancel()

    run_virtual(story())


def test_session_is_connected_while_any_stream_of_it_is_open() -> None:
    async def story() -> None:
        board = FleetBoard(asyncio.get_running_loop().time)
        first, second = board.watch_assignments("a"), board.watch_assignments("a")
        await take(first, 1)
        await take(second, 1)
        await first.aclose()
        assert board.observed.agents["a"].connected
        await second.aclose()
        assert not board.observed.agents["a"].connected
        assert board.observe_agents()[0].disconnected == asyncio.get_running_loop().time()

    run_virtual(story())
