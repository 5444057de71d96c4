"""The supervisor's decisions: tables of what happens, and rules that no order of events may break."""

import pytest
from covey_agent.supervisor.advance import LOOK_SECONDS, SILENT_SECONDS, next_due, observe_surroundings
from covey_agent.supervisor.effects import (
    CheckFit,
    Effect,
    EnsureEngine,
    Examine,
    FetchArtifact,
    StartKeeper,
    StopKeeper,
)
from covey_agent.supervisor.events import (
    ArtifactFailed,
    ArtifactReady,
    CloseAsked,
    EngineExited,
    EngineReady,
    Event,
    Examined,
    Finding,
    FitChecked,
    KeeperStarted,
    Ticked,
)
from covey_agent.supervisor.judging import EXAMINE_AGAIN_SECONDS
from covey_agent.supervisor.kept import Kept
from covey_agent.supervisor.step import MAX_FETCH_FAILURES, begin, step
from covey_api.instance import MemberPhase
from covey_api.messages import MemberGoal, Order
from covey_api.reasons import FailureCause
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.supervised import World, assign, snapshot

A, B = "00000000000000aa", "00000000000000bb"


def ready_world(*keys: str) -> World:
    world = World()
    world.send(snapshot(*(assign(key) for key in keys or (A,))))
    world.settle()
    return world


def test_assigned_member_is_fetched_checked_started_and_probed() -> None:
    world = World()
    world.send(snapshot(assign()))
    assert [type(effect).__name__ for effect in world.pending] == ["FetchArtifact", "EnsureEngine"]
    assert world.member().phase is MemberPhase.FETCHING
    world.end_pending(0)
    world.end_pending(0)
    assert [type(effect).__name__ for effect in world.pending] == ["CheckFit"]
    world.end_pending(0)
    assert [type(effect).__name__ for effect in world.pending] == ["StartKeeper"]
    assert world.member().phase is MemberPhase.STARTING
    world.end_pending(0)
    world.end_pending(0, well=False)
    assert world.member().phase is MemberPhase.STARTING
    world.settle()
    assert world.member().phase is MemberPhase.READY
    assert world.member().failure is None


def test_crashed_engine_is_restarted_three_times_with_doubling_backoff_then_given_up() -> None:
    world = ready_world()
    for delay in (0.5, 1.0, 2.0):
        world.end_engine(A)
        assert world.member().phase is MemberPhase.BACKOFF
        assert next_due(world.state, world.now) == world.now + delay
        world.settle()
        assert world.member().phase is MemberPhase.READY
    world.end_engine(A)
    world.settle()
    assert world.member().phase is MemberPhase.FAILED
    assert world.member().restarts == 3
    assert world.kept.members[0].failed is FailureCause.KILLED


def test_crashes_far_apart_never_add_up() -> None:
    world = ready_world()
    for _ in range(10):
        world.now += 61
        world.end_engine(A)
        world.settle()
        assert world.member().phase is MemberPhase.READY


def test_crashes_of_a_load_add_up_however_long_each_takes() -> None:
    """Weights of tens of gigabytes are read for minutes, each time, before memory is short."""
    world = World()
    world.send(snapshot(assign()))
    for restarts in range(4):
        while A not in world.living:
            if world.pending:
                world.end_pending(0)
            else:
                due = next_due(world.state, world.now)
                assert due is not None
                world.now = due
                world.send(Ticked())
        assert (world.member().phase, world.member().restarts) == (MemberPhase.STARTING, restarts)
        world.pending.clear()
        world.now += 300
        world.end_engine(A, FailureCause.OUT_OF_MEMORY)
    assert (world.member().phase, world.member().given_up) == (MemberPhase.FAILED, True)


def test_crashes_of_a_load_that_went_well_before_begin_anew() -> None:
    world = ready_world()
    for _ in range(3):
        world.end_engine(A)
        world.settle()
    world.now += 3600
    world.end_engine(A)
    assert (world.member().phase, len(world.member().restarted_at)) == (MemberPhase.BACKOFF, 1)


def test_crashes_before_a_restart_of_the_agent_count() -> None:
    world = ready_world()
    for _ in range(3):
        world.end_engine(A)
        world.settle()
    world.restart_agent()
    world.settle()
    assert world.member().phase is MemberPhase.READY
    world.end_engine(A)
    world.settle()
    assert world.member().phase is MemberPhase.FAILED


def test_crashes_before_a_reboot_mean_nothing_on_the_new_clock() -> None:
    world = ready_world()
    world.end_engine(A)
    state, _ = begin(world.kept, (), "another boot")
    assert state.members[A].restarted_at == ()


@pytest.mark.parametrize("cause", [FailureCause.MISSING_LIBRARY, FailureCause.ARTIFACT_CORRUPT])
def test_crash_that_will_recur_is_given_up_at_once(cause: FailureCause) -> None:
    world = ready_world()
    world.end_engine(A, cause)
    world.settle()
    assert world.member().phase is MemberPhase.FAILED
    assert world.starts == 1


def test_engine_without_a_token_in_time_is_stopped_and_never_retried() -> None:
    world = World()
    world.send(snapshot(assign()))
    for _ in range(4):
        world.end_pending(0)
    world.now += 300
    world.send(Ticked())
    assert any(isinstance(effect, StopKeeper) for effect in world.pending)
    assert world.member().phase is MemberPhase.STARTING
    world.settle()
    member = world.member()
    assert member.phase is MemberPhase.FAILED
    assert member.failure is not None
    assert member.failure.cause is FailureCause.NOT_READY_IN_TIME
    assert "300 s" in member.failure.message
    assert world.starts == 1


def test_engine_whose_time_passed_while_the_agent_was_paused_gets_one_more_look() -> None:
    world = World()
    world.send(snapshot(assign()))
    for _ in range(4):
        world.end_pending(0)
    world.now += 10_000
    world.send(Ticked())
    assert not any(isinstance(effect, StopKeeper) for effect in world.pending)
    world.now += LOOK_SECONDS
    world.send(Ticked())
    assert any(isinstance(effect, StopKeeper) for effect in world.pending)


@pytest.mark.parametrize(
    ("ended_tries", "since", "words"),
    [
        (0, SILENT_SECONDS, "it took the smallest request, and has given no answer"),
        (1, 0.5, "it loads"),
        (1, SILENT_SECONDS, "it took the smallest request, and has given no answer"),
    ],
)
def test_engine_that_is_late_is_told_with_what_its_last_request_met(ended_tries: int, since: float, words: str) -> None:
    """By a try that waits for its answer, or else by the last that ended."""
    world = World()
    world.send(snapshot(assign()))
    for _ in range(4):
        world.end_pending(0)
    due = world.member().started_at + world.member().spec.startup_seconds
    world.now = due - since
    for _ in range(ended_tries):
        world.end_pending(0, well=False)
        world.now = world.member().wait_until
        world.send(Ticked())
    world.now = max(due, world.now + since)
    world.send(Ticked())
    failure = world.member().failure
    assert failure is not None
    assert failure.message.endswith(f": {words}")


def test_doubted_engine_that_generates_is_looked_at_once_for_each_doubt() -> None:
    world = ready_world()
    world.send(snapshot(assign(suspect_since="12:00"), serial=2))
    assert [type(effect).__name__ for effect in world.pending] == ["Examine"]
    world.send(snapshot(assign(suspect_since="12:00"), serial=3))
    assert len(world.pending) == 1
    world.settle()
    assert world.member().phase is MemberPhase.READY
    world.send(snapshot(assign(suspect_since="12:00"), serial=4))
    assert not world.pending
    world.send(snapshot(assign(suspect_since="12:01"), serial=5))
    assert [type(effect).__name__ for effect in world.pending] == ["Examine"]


def test_doubted_engine_that_computes_is_looked_at_again_until_it_is_doubted_no_more() -> None:
    world = ready_world()
    world.send(snapshot(assign(suspect_since="12:00"), serial=2))
    for _ in range(20):
        look = world.pending.pop()
        assert isinstance(look, Examine)
        world.send(Examined(A, look.process.identity, "12:00", Finding.COMPUTES, ""))
        assert not world.pending
        assert next_due(world.state, world.now) == world.now + EXAMINE_AGAIN_SECONDS
        world.now += EXAMINE_AGAIN_SECONDS
        world.send(Ticked())
    assert world.member().phase is MemberPhase.READY
    world.send(Examined(A, world.living[A].identity, "12:00", Finding.COMPUTES, ""))
    world.pending.clear()
    world.send(snapshot(assign(), serial=3))
    world.now += EXAMINE_AGAIN_SECONDS
    world.send(Ticked())
    assert not world.pending


def test_wedged_engine_is_stopped_and_never_retried_in_its_attempt() -> None:
    world = ready_world()
    world.send(snapshot(assign(suspect_since="12:00"), serial=2))
    world.end_pending(0, well=False)
    assert world.member().phase is MemberPhase.DRAINING, "it leaves the table at once"
    assert [type(effect).__name__ for effect in world.pending] == ["StopKeeper"]
    world.settle()
    assert world.member().phase is MemberPhase.FAILED
    assert world.kept.members[0].failed is FailureCause.WEDGED
    assert (world.starts, world.member().restarts) == (1, 0)
    world.restart_agent()
    world.settle()
    assert world.starts == 1
    world.send(snapshot(assign(attempt=2), serial=3))
    world.settle()
    assert (world.member().phase, world.starts) == (MemberPhase.READY, 2)


def test_what_was_found_of_an_engine_that_ended_counts_no_more() -> None:
    world = ready_world()
    world.send(snapshot(assign(suspect_since="12:00"), serial=2))
    look = world.pending.pop()
    assert isinstance(look, Examine)
    world.end_engine(A)
    world.send(snapshot(assign(), serial=3))
    world.settle()
    world.send(Examined(A, look.process.identity, "12:00", Finding.DEAD, "nothing moves"))
    world.settle()
    assert (world.member().phase, world.starts) == (MemberPhase.READY, 2)


def test_engine_that_drains_or_is_not_ready_is_not_looked_at() -> None:
    world = ready_world()
    world.send(snapshot(assign(goal=MemberGoal.DRAIN, suspect_since="12:00"), serial=2))
    assert not world.pending
    world = World()
    world.send(snapshot(assign(suspect_since="12:00")))
    assert [type(effect).__name__ for effect in world.pending] == ["FetchArtifact", "EnsureEngine"]


def test_member_that_does_not_fit_is_looked_at_again_then_given_up() -> None:
    world = World()
    world.send(snapshot(assign()))
    world.end_pending(0)
    world.end_pending(0)
    for _ in range(15):
        world.end_pending(0, well=False)
        assert world.member().phase is MemberPhase.PENDING
        world.now += 1.0
        world.send(Ticked())
    world.end_pending(0, well=False)
    assert world.member().phase is MemberPhase.FAILED
    assert world.starts == 0


def test_patience_with_memory_begins_when_no_neighbour_loads_there() -> None:
    """What one that loads has taken may be counted twice for as long: a card's lane was given up in 15 s, for good."""
    world = World()
    world.send(snapshot(assign()))
    world.end_pending(0)
    world.end_pending(0)

    def refuse(waits_for: str) -> str:
        world.pending.clear()
        world.send(FitChecked(A, "too little", "Gpu", waits_for))
        failure, due = world.member().failure, next_due(world.state, world.now)
        assert failure is not None
        assert due is not None
        world.now = due
        world.send(Ticked())
        return failure.message

    before = world.now
    while world.now - before < 60.0:
        assert refuse("big-0") == "waits for 'big-0', which loads: too little"
    for _ in range(15):
        assert refuse("") == "too little"
        assert not world.member().given_up
    refuse("big-0")
    assert not world.member().given_up, "it loads again"
    world.pending.clear()
    world.send(FitChecked(A, "too little", "Gpu"))
    assert world.member().given_up, "an engine that crashes in every load isn't waited for without end"


def test_neighbour_that_is_being_stopped_is_not_waited_for() -> None:
    world = World()
    world.send(snapshot(assign(A), assign(B)))
    while not any(isinstance(effect, StartKeeper) for effect in world.pending):
        world.end_pending(0)
    name = world.member(A).assignment.instance.metadata.name
    assert [each.name for each in observe_surroundings(world.state, B).loading] == [name]
    world.end_pending(next(index for index, one in enumerate(world.pending) if isinstance(one, StartKeeper)))
    world.send(snapshot(assign(A, MemberGoal.STOP), assign(B), serial=2))
    assert [each.name for each in observe_surroundings(world.state, B).loading] == [""]


def test_which_memory_was_short_outlives_the_agent() -> None:
    world = World()
    world.send(snapshot(assign()))
    world.end_pending(0)
    world.end_pending(0)
    for _ in range(16):
        world.pending.clear()
        world.send(FitChecked(A, "too little", "Host"))
        world.now += 1.0
        world.send(Ticked())
    assert world.member().given_up
    world.restart_agent()
    failure = world.member().failure
    assert failure is not None
    assert (failure.message, failure.pool) == ("too little", "Host")


def test_member_that_fits_after_another_gave_its_memory_back_is_started() -> None:
    world = World()
    world.send(snapshot(assign()))
    world.end_pending(0)
    world.end_pending(0)
    world.end_pending(0, well=False)
    world.settle()
    assert world.member().phase is MemberPhase.READY


def test_memory_promised_to_an_engine_that_loads_is_not_promised_twice() -> None:
    world = World()
    world.send(snapshot(assign(A), assign(B)))
    for _ in range(4):
        world.end_pending(0)
    checks = [effect for effect in world.pending if isinstance(effect, CheckFit)]
    assert [check.instance_id for check in checks] == [A], "one check at a time"
    world.end_pending(world.pending.index(checks[0]))
    second = next(effect for effect in world.pending if isinstance(effect, CheckFit))
    assert second.instance_id == B
    assert [each.costs for each in second.loading] == [world.member(A).member.costs]


def test_check_that_is_called_off_lets_the_next_member_begin() -> None:
    world = World()
    world.send(snapshot(assign(A), assign(B)))
    # In the order of A's fetch and engine, B's fetch and engine: B's check begins before A could have one.
    for index in (2, 2, 0, 0):
        world.end_pending(index)
    assert [check_of(effect) for effect in world.pending] == [B]
    world.send(snapshot(assign(A), assign(B, MemberGoal.STOP), serial=2))
    assert [check_of(effect) for effect in world.pending] == [A]
    world.settle()
    assert world.member(A).phase is MemberPhase.READY


def check_of(effect: Effect) -> str | None:
    return effect.instance_id if isinstance(effect, CheckFit) else None


def test_fetch_that_may_work_later_is_tried_eight_times() -> None:
    world = World()
    world.send(snapshot(assign()))
    for tries in range(1, 9):
        fetch = next(index for index, one in enumerate(world.pending) if isinstance(one, FetchArtifact))
        world.end_pending(fetch, well=False, cause=FailureCause.ARTIFACT_UNAVAILABLE)
        assert (world.member().phase is MemberPhase.FAILED) is (tries == 8)
        world.now += 60
        world.send(Ticked())


@pytest.mark.parametrize(("asked", "delay"), [(3600.0, 60), (20.0, 20)])
def test_while_a_server_asks_for_a_pause_others_are_looked_at_each_minute(asked: float, delay: int) -> None:
    world = World()
    world.send(snapshot(assign()))
    for _ in range(MAX_FETCH_FAILURES + 2):
        index = next(index for index, one in enumerate(world.pending) if isinstance(one, FetchArtifact))
        fetch = world.pending.pop(index)
        assert isinstance(fetch, FetchArtifact)
        world.send(ArtifactFailed(fetch.instance_id, FailureCause.ARTIFACT_UNAVAILABLE, "busy", asked))
        assert world.member().phase is MemberPhase.BACKOFF
        world.now += delay - 1
        world.send(Ticked())
        assert not any(isinstance(one, FetchArtifact) for one in world.pending)
        world.now += 1
        world.send(Ticked())
    assert world.member().phase is MemberPhase.FETCHING


def test_corrupt_artifact_is_given_up_at_once() -> None:
    world = World()
    world.send(snapshot(assign()))
    world.end_pending(0, well=False, cause=FailureCause.ARTIFACT_CORRUPT)
    world.settle()
    assert world.member().phase is MemberPhase.FAILED
    assert world.starts == 0


def test_goals_only_move_forward() -> None:
    world = ready_world()
    world.send(snapshot(assign(goal=MemberGoal.DRAIN), serial=2))
    assert world.member().phase is MemberPhase.DRAINING
    world.send(snapshot(assign(goal=MemberGoal.SERVE), serial=3))
    assert world.member().phase is MemberPhase.DRAINING
    assert world.living
    world.send(snapshot(assign(goal=MemberGoal.STOP), serial=4))
    world.settle()
    assert world.member().phase is MemberPhase.STOPPED
    assert not world.living
    world.send(snapshot(assign(goal=MemberGoal.SERVE), serial=5))
    world.settle()
    assert world.member().phase is MemberPhase.STOPPED
    world.send(snapshot(serial=6))
    assert world.forgotten == [A]
    assert not world.state.members


def test_draining_member_that_crashes_is_not_restarted() -> None:
    world = ready_world()
    world.send(snapshot(assign(goal=MemberGoal.DRAIN), serial=2))
    world.end_engine(A)
    world.settle()
    assert world.member().phase is MemberPhase.STOPPED


def test_stop_while_fetching_ends_the_fetch() -> None:
    world = World()
    world.send(snapshot(assign()))
    world.send(snapshot(assign(goal=MemberGoal.STOP), serial=2))
    assert world.pending == []
    assert world.member().phase is MemberPhase.STOPPED


def test_stop_while_the_keeper_starts_stops_it_once_it_has() -> None:
    world = World()
    world.send(snapshot(assign()))
    for _ in range(3):
        world.end_pending(0)
    assert isinstance(world.pending[0], StartKeeper)
    world.send(snapshot(assign(goal=MemberGoal.STOP), serial=2))
    world.settle()
    assert world.stopped == [A]
    assert world.member().phase is MemberPhase.STOPPED


def test_higher_attempt_ends_the_running_one_and_starts_anew() -> None:
    world = ready_world()
    world.send(snapshot(assign(attempt=2), serial=2))
    assert world.member().phase is MemberPhase.PENDING
    world.settle()
    assert world.stopped == [A]
    assert world.living[A].attempt == 2
    assert world.member().phase is MemberPhase.READY


def test_engine_whose_key_is_another_one_now_ends_and_starts_with_it_once() -> None:
    world = ready_world()
    world.send(snapshot(assign(engine_key="new"), serial=2, complete=False))
    assert world.member().phase is MemberPhase.READY
    world.send(snapshot(assign(engine_key="new"), serial=3))
    assert world.member().phase is MemberPhase.PENDING
    world.settle()
    assert world.stopped == [A]
    assert world.member().phase is MemberPhase.READY
    assert (world.member().restarts, world.member().spec.attempt) == (0, 1)
    world.send(snapshot(assign(engine_key="new"), serial=4))
    world.settle()
    assert world.stopped == [A]


def test_higher_attempt_lifts_a_failure() -> None:
    world = ready_world()
    world.end_engine(A, FailureCause.MISSING_LIBRARY)
    world.settle()
    world.send(snapshot(assign(attempt=2), serial=2))
    world.settle()
    assert world.member().phase is MemberPhase.READY
    assert world.member().restarts == 0


def test_lower_attempt_changes_nothing() -> None:
    world = World()
    world.send(snapshot(assign(attempt=5)))
    world.settle()
    world.send(snapshot(assign(attempt=4, goal=MemberGoal.STOP), serial=2))
    world.settle()
    assert world.living[A].attempt == 5


@pytest.mark.parametrize(("term", "serial"), [(1, 4), (0, 9)])
def test_outdated_snapshot_changes_nothing(term: int, serial: int) -> None:
    world = World()
    world.send(snapshot(assign(), serial=5))
    world.settle()
    before = world.state
    world.send(snapshot(assign(goal=MemberGoal.STOP), term=term, serial=serial))
    assert world.state == before
    world.restart_agent()
    world.settle()
    world.send(snapshot(assign(goal=MemberGoal.STOP), term=term, serial=serial))
    world.settle()
    assert world.living, "the order is kept on disk"
    assert world.state.order == Order(term=1, serial=5)


def test_incomplete_snapshot_stops_drains_and_replaces_nothing_but_adds() -> None:
    world = ready_world()
    for serial, wish in enumerate((assign(goal=MemberGoal.STOP), assign(attempt=2), assign(B)), start=2):
        world.send(snapshot(wish, serial=serial, complete=False))
        world.settle()
        assert world.member().phase is MemberPhase.READY
        assert world.member().assigned
    assert world.member(B).phase is MemberPhase.READY
    assert world.stopped == []


def test_member_that_a_complete_snapshot_leaves_out_runs_on_as_a_stray() -> None:
    world = ready_world(A, B)
    world.send(snapshot(assign(B), serial=2))
    world.settle()
    assert world.member(A).phase is MemberPhase.READY
    assert not world.member(A).assigned
    assert world.stopped == []
    world.send(snapshot(assign(A, goal=MemberGoal.STOP), assign(B), serial=3))
    world.settle()
    assert world.stopped == [A]


def test_stray_that_ends_for_good_is_forgotten() -> None:
    world = ready_world()
    world.send(snapshot(serial=2))
    world.end_engine(A, FailureCause.MISSING_LIBRARY)
    world.settle()
    assert world.forgotten == [A]


def test_restarted_agent_takes_a_ready_engine_for_ready_without_a_probe() -> None:
    world = ready_world()
    world.restart_agent()
    assert world.state.is_finding
    world.end_pending(0)
    assert not world.state.is_finding
    assert world.member().phase is MemberPhase.READY
    assert world.pending == []
    assert world.starts == 1


def test_restarted_agent_without_its_file_finds_what_runs_and_calls_it_a_stray() -> None:
    world = ready_world()
    world.kept = Kept()
    world.restart_agent()
    world.settle()
    assert world.member().phase is MemberPhase.READY
    assert not world.member().assigned
    assert world.starts == 1
    world.send(snapshot(assign(), serial=1))
    assert world.member().assigned


def test_engine_that_ended_while_no_agent_was_there_counts_as_a_crash() -> None:
    world = ready_world()
    process = world.living.pop(A)
    world.unreleased[A] = process.identity
    world.restart_agent()
    world.end_pending(0)
    assert world.member().phase is MemberPhase.BACKOFF
    assert world.member().restarts == 1
    world.settle()
    assert world.member().phase is MemberPhase.READY


def test_engine_that_its_keeper_stopped_for_lack_of_an_agent_is_started_again_uncounted() -> None:
    world = ready_world()
    world.end_engine(A, None)
    world.settle()
    assert world.member().phase is MemberPhase.READY
    assert world.member().restarts == 0


def test_close_stops_everything_and_forgets_no_wish() -> None:
    world = ready_world(A, B)
    world.send(CloseAsked())
    assert not world.state.is_closed
    world.settle()
    assert world.state.is_closed
    assert sorted(world.stopped) == [A, B]
    assert [member.goal for member in world.kept.members] == [MemberGoal.SERVE] * 2
    world.restart_agent()
    world.settle()
    assert world.member(A).phase is MemberPhase.READY


def test_late_and_doubled_events_of_an_earlier_engine_change_nothing() -> None:
    world = ready_world()
    old = world.living[A]
    world.end_engine(A)
    world.settle()
    before = world.state
    world.send(EngineExited(A, old.identity, FailureCause.KILLED, "again"))
    assert world.state == before
    world.send(KeeperStarted(A, world.living[A]))
    assert world.state == before


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["end", "end", "end", "end", "fail", "crash", "snapshot", "repeat", "wait", "restart", "close", "exit"]
        ),
        st.integers(min_value=0, max_value=1_000),
    ),
    max_size=60,
)


def act(world: World, action: str, number: int) -> None:
    match action:
        case "end" | "fail" if world.pending:
            cause = [FailureCause.EXITED, FailureCause.ARTIFACT_UNAVAILABLE, FailureCause.MISSING_LIBRARY][number % 3]
            world.end_pending(number % len(world.pending), well=action == "end", cause=cause)
        case "crash" | "exit" if world.living:
            key = sorted(world.living)[number % len(world.living)]
            world.end_engine(key, FailureCause.KILLED if action == "crash" else None)
        case "snapshot":
            goals = (MemberGoal.SERVE, MemberGoal.DRAIN, MemberGoal.STOP)
            doubt = str(number % 7) if number % 2 else ""
            members = [
                assign(A, goals[number % 3], 1 + number % 4, doubt),
                assign(B, goals[number // 3 % 3], 1 + number % 2, doubt),
            ]
            world.send(snapshot(*members[: number % 3], serial=number, complete=number % 5 > 0))
        case "repeat" if world.history:
            event: Event = world.history[number % len(world.history)]
            if not _is_lie(world, event):
                world.send(event)
        case "wait":
            world.now += number / 10
            world.send(Ticked())
        case "restart" if number % 4 == 0:
            world.restart_agent()
        case "close" if number % 8 == 0:
            world.send(CloseAsked())
        case _:
            return


def _is_lie(world: World, event: Event) -> bool:
    """Whether it would say now what it didn't say then: that an engine which has ended began, that a try which began
    later has ended."""
    match event:
        case CloseAsked() | KeeperStarted():
            return True
        case ArtifactReady(key) | ArtifactFailed(key):
            return any(isinstance(one, FetchArtifact) and one.instance_id == key for one in world.pending)
        case EngineReady(key):
            return any(isinstance(one, EnsureEngine) and one.instance_id == key for one in world.pending)
        case _:
            return False


def test_an_engine_that_was_found_and_has_ended_is_not_there_again_when_that_is_told_twice() -> None:
    world = ready_world()
    world.restart_agent()
    world.end_pending(0)
    (found,) = world.history
    world.end_engine(A)
    world.send(found)
    assert world.member().keeper is None
    world.send(snapshot(assign(goal=MemberGoal.STOP), serial=2))
    world.settle()
    assert world.living == {}
    assert world.member().work == frozenset()


@settings(max_examples=300, deadline=None)
@given(ACTIONS)
def test_no_order_of_events_breaks_the_rules_and_every_world_comes_to_rest(actions: list[tuple[str, int]]) -> None:
    world = World()
    world.send(snapshot(assign(A), assign(B)))
    for action, number in actions:
        act(world, action, number)
        again, effects = step(world.state, Ticked(), world.now)
        assert (again, effects) == (world.state, ()), "looking twice at one time does nothing the second time"
    world.settle(3_000)
    serving = {key for key, member in world.state.members.items() if member.phase is MemberPhase.READY}
    draining = {key for key, member in world.state.members.items() if member.phase is MemberPhase.DRAINING}
    assert serving | draining == set(world.living)
    for member in world.state.members.values():
        assert member.work == frozenset()
    world.send(CloseAsked())
    world.settle()
    assert world.state.is_closed
    assert not world.living, "every start is followed by a stop or an exit"
