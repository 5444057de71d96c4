"""The leader's loop in virtual time, with a store in memory and agents and gateways at the board."""

import asyncio
import logging
from datetime import UTC, datetime
from itertools import count

import pytest
from covey_api.access_key import AccessKey, AccessKeySpec, KeyUsageStatus
from covey_api.instance import Instance, MemberPhase
from covey_api.kinds import ObjectKey
from covey_api.messages import Demand, KeyUsage, Order
from covey_api.meta import Condition, ObjectMeta
from covey_api.placement import ContextWish, Placement
from covey_api.reasons import EventReason, FailureCause, ReadyReason
from covey_controller.board import FleetBoard
from covey_controller.history import History
from covey_controller.loop import ReconcileLoop, Surroundings
from covey_controller.ports import Conflict
from covey_simulator.virtual_time import run_virtual
from kit import builders
from kit.documents import placement_key
from kit.live import controller, do_nothing
from kit.memory_store import MemoryStore
from kit.worlds import SEAL_OF, FakeAgent


def test_wish_is_served_and_then_not_a_single_write_follows_for_five_minutes() -> None:
    async def story() -> None:
        store = MemoryStore(builders.model(known=False), builders.placement(replicas=2))
        async with controller(store, FakeAgent("a"), FakeAgent("b")) as control:
            await control.wait_routed(2)
            await asyncio.sleep(10)
            writes, order = len(store.writes), control.board.order
            await asyncio.sleep(300)
            assert store.writes[writes:] == []
            assert control.board.order == order

    run_virtual(story())


def test_changed_wish_is_stored_within_a_tenth_of_a_second() -> None:
    async def story() -> None:
        store = MemoryStore(builders.model())
        async with controller(store, FakeAgent("a")) as control:
            await asyncio.sleep(20)
            store.put(builders.placement())
            await asyncio.sleep(0.1)
            assert len(store.instances()) == 1
            await control.wait_routed(1)

    run_virtual(story())


def test_new_controller_on_the_same_store_restarts_no_engine() -> None:
    async def story() -> None:
        store, agent = MemoryStore(builders.model(), builders.placement(replicas=2)), FakeAgent("a")
        async with controller(store, agent) as control:
            await control.wait_routed(2)
            before = sorted(control.routed())
            await asyncio.sleep(5)
        async with controller(store, agent) as control:
            await control.wait_routed(2, seconds=5)
            assert sorted(control.routed()) == before
            assert control.board.order.term == 2
        assert len(agent.started) == 2

    run_virtual(story())


def test_what_a_key_has_used_is_in_its_status_within_a_minute_and_then_once_a_minute() -> None:
    async def story() -> None:
        hash_ = f"sha256:{'1' * 64}"
        metadata = ObjectMeta(name="ann", namespace="default", uid="u", generation=1)
        key = AccessKey(metadata=metadata, spec=AccessKeySpec(hash=hash_, tokens_per_day=1000))
        store = MemoryStore(key)

        async def used() -> KeyUsageStatus:
            found = (await store.list_objects())[key.key]
            assert isinstance(found, AccessKey)
            return found.status.usage

        async with controller(store) as control:
            await asyncio.sleep(5)
            writes = 0
            for requests in range(1, 46):  # three minutes of reports
                told = KeyUsage(hash=hash_, requests=requests, prompt_tokens=10 * requests)
                control.board.on_demand("g", Demand(gateway="g", address="", boot="1", usage=(told,)))
                before = (await used()).counted_at
                await asyncio.sleep(4)
                writes += (await used()).counted_at != before
            answer = control.board.on_demand("g", Demand(gateway="g", address="", boot="1"))
            assert [each.tokens for each in answer.spent] == [450], "limits hear of it before it is written"
            await asyncio.sleep(90)
            assert ((await used()).total.requests, (await used()).total.prompt_tokens) == (45, 450)
            assert 3 <= writes <= 4

    run_virtual(story())


def test_lost_lease_ends_the_leadership_and_not_the_process() -> None:
    async def story() -> None:
        store, agent = MemoryStore(builders.model(), builders.placement()), FakeAgent("a")
        async with controller(store, agent) as control:
            await control.wait_routed(1)
            store.lease.lost.set()
            await asyncio.sleep(5)
            assert control.board.order.term == 2
            await control.wait_routed(1)
        assert len(agent.started) == 1

    run_virtual(story())


@pytest.mark.parametrize("passes", range(6))
def test_controller_that_is_told_to_end_as_its_lease_is_lost_ends(passes: int) -> None:
    """A TaskGroup whose child fails as it is cancelled may swallow the cancellation."""

    async def story() -> None:
        store = MemoryStore()
        clock = asyncio.get_running_loop().time
        around = Surroundings(
            holder="me",
            engine_key=str,
            seal_of=SEAL_OF,
            mint_id=lambda: "0" * 16,
            utc_now=lambda: datetime.fromtimestamp(clock(), UTC),
            deny_agent=do_nothing,
            prepare=do_nothing,
        )
        loop = ReconcileLoop(store, FleetBoard(clock), History(), around)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(loop.run())
            await asyncio.sleep(1)
            store.lease.lost.set()
            for _ in range(passes):
                await asyncio.sleep(0)
            running.cancel()
            _, going_on = await asyncio.wait([running], timeout=30)
            running.cancel()
        assert not going_on

    run_virtual(story())


def test_loop_that_is_cancelled_while_its_store_fails_ends() -> None:
    class BreakingStore(MemoryStore):
        async def wait_changed(self, timeout_seconds: float) -> bool:
            try:
                return await super().wait_changed(timeout_seconds)
            except asyncio.CancelledError:
                raise OSError("broken while it was being closed") from None

    async def story() -> None:
        async with asyncio.timeout(60):
            async with controller(BreakingStore(builders.model(), builders.placement()), FakeAgent("a")) as control:
                await control.wait_routed(1)

    run_virtual(story())


def test_leader_that_hears_of_a_higher_term_leads_above_it() -> None:
    async def story() -> None:
        store, agent = MemoryStore(builders.model(), builders.placement()), FakeAgent("a")
        agent.applied = Order(term=41, serial=7)
        async with controller(store, agent) as control:
            await control.wait_routed(1)
            assert control.board.order.term == 42
            assert {each.spec.term for each in store.instances()} == {42}

    run_virtual(story())


def test_conflict_is_observed_again_and_converges() -> None:
    async def story() -> None:
        store = MemoryStore(builders.model(), builders.placement())
        store.fail = [Conflict("somebody else wrote"), Conflict("and again")]
        async with controller(store, FakeAgent("a")) as control:
            await control.wait_routed(1)
        assert len(store.instances()) == 1

    run_virtual(story())


def test_failing_store_is_tried_with_growing_waits_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> int:
        store = MemoryStore(builders.model(), builders.placement())
        store.fail = [OSError("disk is full")] * 12
        async with controller(store, FakeAgent("a")):
            await asyncio.sleep(30)
            tried = 12 - len(store.fail)
            store.fail = []
            await asyncio.sleep(15)
            assert len(store.instances()) == 1
            return tried

    with caplog.at_level(logging.ERROR):
        assert 5 <= run_virtual(story()) <= 12
    said = [record.getMessage() for record in caplog.records if "disk is full" in record.getMessage()]
    assert len(said) == 1


@pytest.mark.parametrize("failure", [OSError("disk is full"), Conflict("somebody writes all the time")])
def test_engine_that_dies_leaves_the_table_while_the_store_refuses_every_write(failure: Exception) -> None:
    """And nobody is told anything that could not be stored."""

    async def story() -> None:
        store, one, other = (
            MemoryStore(builders.model(), builders.placement(replicas=2)),
            FakeAgent("a"),
            FakeAgent("b"),
        )
        async with controller(store, one, other) as control:
            await control.wait_routed(2)
            await asyncio.sleep(1)
            ours = next(iter(one.members), None) or next(iter(other.members))
            agent = one if ours in one.members else other
            before = control.board.published.assignments
            store.fail = [failure] * 1000
            await asyncio.sleep(30)
            agent.members[ours] = agent.members[ours].model_copy(
                update={"phase": MemberPhase.FAILED, "port": 0, "cause": FailureCause.EXITED}
            )
            report = agent.report().model_copy(update={"sequence": 1000})
            control.board.on_report(agent.name, report)
            store.put(builders.placement(replicas=1))
            await asyncio.sleep(2)
            assert ours not in control.routed()
            assert len(control.routed()) == 1
            assert control.board.published.assignments == before
            assert len(store.instances()) == 2
            store.fail = []
            await asyncio.sleep(10)
            assert len(control.routed()) == 1
            assert len(store.instances()) == 1

    run_virtual(story())


def test_notes_are_recorded_as_events_with_the_status_they_explain() -> None:
    async def story() -> None:
        store = MemoryStore(builders.model(), builders.placement())
        async with controller(store, FakeAgent("a")) as control:
            await control.wait_routed(1)
            await asyncio.sleep(1)
            key = store.instances()[0].key
            said = [told.event.reason for told in control.history.events(key)]
            assert said[0] == "InstanceCreated"
            assert said[-1] == "Serving"
            assert {event.reason for event in store.events if event.key == key} >= {"InstanceCreated", "Serving"}
            assert {event.reason for event in store.events if event.key.kind == "Node"} == {"NodeJoined", "Reporting"}

    run_virtual(story())


def test_roll_under_the_loop_keeps_the_model_routed() -> None:
    async def story() -> None:
        store = MemoryStore(builders.model(), builders.placement())
        async with controller(store, FakeAgent("a")) as control:
            await control.wait_routed(1)
            store.put(builders.placement(context=ContextWish(tokens=1024)))
            for _ in range(600):
                await asyncio.sleep(0.05)
                assert control.routed()
            stamped: list[Instance] = store.instances()
            assert [each.spec.options.context_tokens for each in stamped] == [1024]

    run_virtual(story())


@pytest.mark.parametrize("at_once", [1, 8])
def test_write_that_is_refused_stops_its_own_placement_and_no_other(at_once: int) -> None:
    async def story() -> None:
        forbidden = ObjectKey("Instance", "default", "barred-0")
        wishes = [builders.placement(name, model="smollm2") for name in ("barred", "other")]
        store = MemoryStore(builders.model(), *wishes, writes_at_once=at_once)
        store.forbidden = {forbidden}
        async with controller(store, FakeAgent("a", total_bytes=64 * builders.GIB)) as control:
            await control.wait_routed(1)
            store.put(builders.placement("third", model="smollm2"))
            await control.wait_routed(2)
            assert {each.metadata.name for each in store.instances()} == {"other-0", "third-0"}
            told = [event for event in store.events if event.reason == EventReason.WRITE_REFUSED]
            assert [event.key.name for event in told] == ["barred"]
            assert "forbidden by a rule" in told[0].message
            assert {each.type: each.reason for each in conditions(store, "barred")} == {
                "Ready": ReadyReason.WRITE_REFUSED,
                "Stalled": ReadyReason.WRITE_REFUSED,
            }
            await asyncio.sleep(300)
            tries = store.writes.count(f"create {forbidden}")
            assert 8 <= tries <= 12, "every 30 s"
            store.forbidden = set()
            await control.wait_routed(3)
            await asyncio.sleep(5)
            assert ("Ready", "True") in {(each.type, each.status) for each in conditions(store, "barred")}
            assert "Stalled" not in {each.type for each in conditions(store, "barred")}

    run_virtual(story())


def conditions(store: MemoryStore, name: str) -> tuple[Condition, ...]:
    placement = store.objects[placement_key(name)]
    assert isinstance(placement, Placement)
    return placement.status.conditions


def test_refused_write_that_is_for_no_placement_stops_nothing_and_is_tried_ever_more_rarely(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        store = MemoryStore(builders.model(), builders.placement(replicas=1))
        store.forbidden = {ObjectKey("Node", "", "barred")}
        async with controller(store, FakeAgent("a"), FakeAgent("barred")) as control:
            await control.wait_routed(1)
            await asyncio.sleep(3600)
            tries = store.writes.count("create node/barred")
            assert 5 <= tries <= 10, store.writes
            store.put(builders.placement("later", model="smollm2"))
            await control.wait_routed(2)
            store.forbidden = set()
            await asyncio.sleep(2000)
            assert ObjectKey("Node", "", "barred") in store.objects

    run_virtual(story())
    assert caplog.text.count("'node/barred' is forbidden by a rule") == 1


@pytest.mark.parametrize("at_once", [1, 8])
def test_refused_replica_leaves_those_that_run_alone(at_once: int) -> None:
    async def story() -> None:
        store = MemoryStore(builders.model(), builders.placement(), writes_at_once=at_once)
        async with controller(store, FakeAgent("a", total_bytes=64 * builders.GIB)) as control:
            await control.wait_routed(1)
            before = control.routed()
            store.forbidden = {ObjectKey("Instance", "default", "smollm2-1")}
            store.put(builders.placement(replicas=2))
            await asyncio.sleep(300)
            assert control.routed() == before
            told = {each.type: each.reason for each in conditions(store, "smollm2")}
            assert told["Stalled"] == ReadyReason.WRITE_REFUSED
            assert [each.metadata.name for each in store.instances()] == ["smollm2-0"]
            store.put(builders.placement(replicas=0))
            await control.wait_routed(0)

    run_virtual(story())


@pytest.mark.parametrize("at_once", [1, 8])
def test_status_that_is_refused_keeps_no_other_from_being_told(at_once: int, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        names = ("a", "b", "c")
        wishes = [builders.placement(name, model="smollm2") for name in names]
        store = MemoryStore(builders.model(), *wishes, writes_at_once=at_once)
        store.forbidden = {wishes[0].key, builders.model().key}
        async with controller(store, FakeAgent("n", total_bytes=64 * builders.GIB)) as control:
            await control.wait_routed(3)
            await asyncio.sleep(60)
            told = [item for item in store.objects.values() if isinstance(item, Placement)]
            assert {each.metadata.name: each.status.ready_replicas for each in told} == {"a": 0, "b": 1, "c": 1}
            before = len(store.writes)
            await asyncio.sleep(3600)
            refused = store.writes[before:].count(f"status {wishes[0].key}")
            assert 4 <= refused <= 7, "tried again, ever more rarely"
            assert set(store.writes[before:]) <= {f"status {key}" for key in store.forbidden}
            store.put(builders.placement("a", model="smollm2", replicas=2))
            await control.wait_routed(4)
            await asyncio.sleep(5)
            again = store.writes[before:].count(f"status {wishes[0].key}")
            assert again > refused, "another status may be taken: it is tried at once"
            store.forbidden = set()
            await asyncio.sleep(2000)
            told = [item for item in store.objects.values() if isinstance(item, Placement)]
            assert {each.metadata.name: each.status.ready_replicas for each in told} == {"a": 2, "b": 1, "c": 1}

    run_virtual(story())
    assert caplog.text.count(f"'{builders.model().key}' is forbidden by a rule") == 1


def test_large_turn_writes_side_by_side_and_comes_to_the_same_as_one_after_the_other() -> None:
    async def story(at_once: int) -> tuple[set[str], float]:
        wishes = [builders.placement(f"p{number:02d}", model="smollm2") for number in range(20)]
        store = MemoryStore(builders.model(), *wishes, writes_at_once=at_once)
        async with controller(store, FakeAgent("a", total_bytes=640 * builders.GIB)) as control:
            await control.wait_routed(20)
            await asyncio.sleep(30)
            assert store.most_under_way <= at_once
            return {
                f"{item.key} {item.status.model_dump_json()}"
                for item in store.objects.values()
                if isinstance(item, Placement)
            }, store.most_under_way

    one, _ = run_virtual(story(1))
    several, most = run_virtual(story(4))
    assert several == one
    assert most == 4


def test_plan_that_takes_long_is_followed_by_a_rest_in_which_others_are_answered() -> None:
    async def count_turns(plan_seconds: float) -> int:
        """How often a fleet that never rests is planned in ten seconds."""
        ticks = count()
        store, board = MemoryStore(builders.model()), FleetBoard(asyncio.get_running_loop().time)
        around = Surroundings(
            holder="me",
            engine_key=str,
            seal_of=SEAL_OF,
            mint_id=lambda: "0" * 16,
            utc_now=lambda: datetime.fromtimestamp(0, UTC),
            deny_agent=do_nothing,
            prepare=do_nothing,
            stopwatch=lambda: next(ticks) * plan_seconds,
        )
        loop = ReconcileLoop(store, board, History(), around)
        turns = 0
        async with asyncio.TaskGroup() as group:
            leading = group.create_task(loop.run())
            for _ in range(2000):
                await asyncio.sleep(0.005)
                turns += not board.wake.is_set()
                board.wake.set()
            leading.cancel()
        return turns

    assert run_virtual(count_turns(0.0)) > 300
    assert 24 <= run_virtual(count_turns(0.3)) <= 36
    assert run_virtual(count_turns(30.0)) >= 24, "a plan in which the machine slept"
