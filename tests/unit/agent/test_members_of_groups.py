"""The supervisor's decisions for one of several members: the order of starts, and that an end is every member's."""

import asyncio
from pathlib import Path

import httpx
import pytest
from covey_agent.engines.adapter import Adapter
from covey_agent.engines.llama_server import LLAMA_SERVER
from covey_agent.engines.mlx import step_seconds
from covey_agent.engines.servers.mlx_ring import RING_LOST, RING_STUCK
from covey_agent.launching import choose_group, render_launch
from covey_agent.ports import AgentError, EngineProgram, Group, Neighbour
from covey_agent.reports import render_member
from covey_agent.supervisor.effects import EnsureEngine, Examine, FetchArtifact, KeepPort, StartKeeper
from covey_api.engines import EngineName
from covey_api.instance import Costs, Member, MemberPhase, MemberRole
from covey_api.messages import MemberAssignment, MemberFront, MemberGoal
from covey_api.reasons import FailureCause
from kit import builders
from kit.supervised import World, snapshot

A = "00000000000000aa"
FRONTS = (MemberFront(member="1", address="127.0.0.3", port=52500), MemberFront(member="2", address="::1", port=52501))
DRIVER, DONOR = "0", "1"


def assign(
    member: str, *, attempt: int = 1, fronts: tuple[MemberFront, ...] = (), goal: MemberGoal = MemberGoal.SERVE
) -> MemberAssignment:
    roles = (MemberRole.DRIVER, MemberRole.DONOR, MemberRole.DONOR)
    members = tuple(
        Member(name=str(index), node=f"n{index}", role=role, costs=(Costs(weights_bytes=1, layers=10),))
        for index, role in enumerate(roles)
    )
    instance = builders.instance("i-0", instance_id=A, attempt=attempt, members=members)
    return MemberAssignment(instance=instance, member=member, goal=goal, key="k", fronts=fronts)


def threads_of(assignment: MemberAssignment, weights: Path | None, folder: Path, cpu_cores: int) -> list[str]:
    for name in ("llama-server", "ggml-rpc-server"):
        (folder / name).touch()
    program = EngineProgram(folder / "llama-server", {}, "1", "")
    start = StartKeeper("k", assignment, weights, program)
    adapter = Adapter(LLAMA_SERVER, httpx.AsyncClient(trust_env=False))
    argv = render_launch(adapter, start, folder, 1, None, cpu_cores).argv
    return [argv[index + 1] for index, word in enumerate(argv) if word == "-t"]


@pytest.mark.parametrize(("cores", "threads"), [(2, "1"), (8, "4"), (64, "16")])
def test_a_donor_computes_with_its_own_machines_threads(cores: int, threads: str, tmp_path: Path) -> None:
    stamped = str(assign(DRIVER).instance.spec.options.threads)
    assert threads_of(assign(DONOR), None, tmp_path, cores) == [threads]
    assert threads_of(assign(DRIVER), tmp_path / "w.gguf", tmp_path, cores) == [stamped]
    assert threads_of(assign(DONOR), None, tmp_path, 0) == [stamped]


def ready(member: str) -> World:
    world = World()
    world.send(snapshot(assign(member, fronts=FRONTS)))
    world.settle()
    assert world.member().phase is MemberPhase.READY
    return world


def test_a_donor_fetches_no_file() -> None:
    world = World()
    world.send(snapshot(assign(DONOR)))
    assert [type(effect) for effect in world.pending] == [EnsureEngine]
    world.settle()
    assert world.member().phase is MemberPhase.READY


def test_a_driver_has_its_file_and_waits_for_every_donor() -> None:
    world = World()
    world.send(snapshot(assign(DRIVER)))
    assert FetchArtifact in [type(effect) for effect in world.pending]
    world.settle()
    assert world.member().phase is MemberPhase.PENDING
    world.send(snapshot(assign(DRIVER, fronts=FRONTS[:1]), serial=2))
    world.settle()
    assert world.starts == 0
    world.send(snapshot(assign(DRIVER, fronts=FRONTS), serial=3))
    world.settle()
    assert (world.member().phase, world.starts) == (MemberPhase.READY, 1)


@pytest.mark.parametrize("member", [DRIVER, DONOR])
@pytest.mark.parametrize("cause", [FailureCause.NEIGHBOUR_ENDED, FailureCause.KILLED, None])
def test_an_end_is_the_attempts_end_whatever_it_was(member: str, cause: FailureCause | None) -> None:
    """`None`: a keeper that no agent claimed in time. Of a single member that is no failure."""
    world = ready(member)
    world.end_engine(A, cause)
    world.settle()
    found = world.member()
    assert (found.phase, found.restarts, world.starts) == (MemberPhase.FAILED, 0, 1)
    assert world.kept.members[0].failed is (cause or FailureCause.KEEPER_LOST)

    world.restart_agent()
    world.settle()
    assert (world.member().phase, world.starts) == (MemberPhase.FAILED, 1)
    world.send(snapshot(assign(member, attempt=2, fronts=FRONTS), serial=2))
    world.settle()
    assert (world.member().phase, world.starts) == (MemberPhase.READY, 2)


def test_what_a_reboot_left_nothing_of_is_over() -> None:
    world = ready(DONOR)
    world.living.clear()
    world.restart_agent()
    world.settle()
    assert world.member().phase is MemberPhase.FAILED
    assert world.starts == 1


@pytest.mark.parametrize("member", [DRIVER, DONOR])
def test_a_new_attempt_replaces_what_runs_of_the_last_one(member: str) -> None:
    world = ready(member)
    world.send(snapshot(assign(member, attempt=2, fronts=FRONTS), serial=2))
    world.settle()
    assert (world.member().phase, world.starts, world.stopped) == (MemberPhase.READY, 2, [A])


@pytest.mark.parametrize("member", [DRIVER, DONOR])
def test_a_member_that_is_to_stop_ends_without_a_failure(member: str) -> None:
    world = ready(member)
    world.send(snapshot(assign(member, goal=MemberGoal.STOP), serial=2))
    world.settle()
    assert (world.member().phase, world.member().failure) == (MemberPhase.STOPPED, None)


def test_a_driver_whose_donors_are_known_no_more_runs_on() -> None:
    world = ready(DRIVER)
    world.send(snapshot(assign(DRIVER), serial=2))
    world.settle()
    assert (world.member().phase, world.starts) == (MemberPhase.READY, 1)


def test_a_donor_is_never_looked_at_for_a_doubt() -> None:
    world = ready(DONOR)
    world.send(snapshot(assign(DONOR).changed(suspect_since="2026-01-01T00:00:00Z"), serial=2))
    assert not world.pending


def test_nothing_is_started_twice_when_the_driver_gives_up() -> None:
    world = World()
    world.send(snapshot(assign(DRIVER, fronts=FRONTS)))
    while not any(isinstance(effect, StartKeeper) for effect in world.pending):
        world.end_pending(0)
    world.end_pending(0, well=False)
    world.settle()
    assert (world.member().phase, world.starts) == (MemberPhase.FAILED, 0)


def test_keepers_are_told_of_the_members_that_they_have_to_do_with() -> None:
    ports = iter((41001, 41002))
    dials = (Neighbour("1", "n1", "127.0.0.3", 52500, 41001), Neighbour("2", "n2", "::1", 52501, 41002))
    driver = asyncio.run(choose_group(assign(DRIVER, fronts=FRONTS), lambda: next(ports)))
    assert driver == Group("0", 120.0, dials=dials)
    donor = asyncio.run(choose_group(assign(DONOR), lambda: 0))
    assert donor == Group("1", None, admits=(Neighbour("0", "n0"),))


def test_how_long_members_may_take_to_meet_is_stamped() -> None:
    for told, member in ((assign(DRIVER, fronts=FRONTS), DRIVER), (assign_rank("1", fronts=RANKS), "1")):
        spec = told.instance.spec.model_copy(update={"form_seconds": 30})
        instance = told.instance.model_copy(update={"spec": spec})
        group = asyncio.run(choose_group(told.model_copy(update={"instance": instance}), lambda: 1))
        assert group is not None
        assert (group.member, group.form_seconds) == (member, 30)


def test_an_address_that_nobody_knows_is_named() -> None:
    fronts = (FRONTS[0], MemberFront(member="2", address="no-such-host.invalid", port=1))
    with pytest.raises(AgentError, match=r"^member '2' on node 'n2' can't be dialled: its address 'no-s") as told:
        asyncio.run(choose_group(assign(DRIVER, fronts=fronts), lambda: 1))
    assert "no-such-host.invalid" in str(told.value)


def assign_rank(
    member: str, *, attempt: int = 1, fronts: tuple[MemberFront, ...] = (), goal: MemberGoal = MemberGoal.SERVE
) -> MemberAssignment:
    members = tuple(
        Member(name=str(index), node=f"n{index}", role=MemberRole.RANK, costs=(Costs(weights_bytes=1, layers=10),))
        for index in range(3)
    )
    instance = builders.instance("i-0", instance_id=A, attempt=attempt, members=members, engine=EngineName.MLX)
    return MemberAssignment(instance=instance, member=member, goal=goal, key="k", fronts=fronts)


RANKS = (MemberFront(member="0", address="127.0.0.2", port=52599), *FRONTS)


@pytest.mark.parametrize("member", ["0", "2"])
def test_a_rank_has_all_it_needs_and_keeps_a_port_before_it_waits_for_the_others(member: str) -> None:
    world = World()
    world.send(snapshot(assign_rank(member)))
    assert {type(effect) for effect in world.pending} == {FetchArtifact, EnsureEngine}
    world.settle()
    found = world.member()
    assert (found.phase, found.kept_port, world.starts) == (MemberPhase.PENDING, 52599, 0)
    others = tuple(each for each in RANKS if each.member != member)
    world.send(snapshot(assign_rank(member, fronts=others[:1]), serial=2))
    world.settle()
    assert world.starts == 0
    world.send(snapshot(assign_rank(member, fronts=others), serial=3))
    world.settle()
    found = world.member()
    assert (found.phase, found.kept_port, world.starts) == (MemberPhase.READY, 0, 1)


def test_what_is_kept_for_a_rank_is_told_and_of_its_keeper_afterwards() -> None:
    world = World()
    world.send(snapshot(assign_rank("0")))
    world.settle()
    assert render_member(world.member(), None, is_whole=False).front_port == 52599
    world.send(snapshot(assign_rank("0", fronts=RANKS), serial=2))
    world.settle()
    keeper = world.member().keeper
    assert keeper is not None
    assert render_member(world.member(), None, is_whole=False).front_port == keeper.front_port


def test_a_rank_keeps_a_port_anew_for_each_attempt_and_after_its_agents_death() -> None:
    world = World()
    world.send(snapshot(assign_rank("1")))
    world.settle()
    world.restart_agent()
    world.settle()
    assert world.member().kept_port == 52599
    world.send(snapshot(assign_rank("1", fronts=RANKS), serial=2))
    world.settle()
    world.end_engine(A, FailureCause.NEIGHBOUR_ENDED)
    world.settle()
    assert world.member().phase is MemberPhase.FAILED
    world.send(snapshot(assign_rank("1", attempt=2), serial=3))
    world.settle()
    found = world.member()
    assert (found.phase, found.kept_port, world.starts) == (MemberPhase.PENDING, 52599, 1)


def test_a_rank_that_can_keep_no_port_ends_its_attempt() -> None:
    world = World()
    world.send(snapshot(assign_rank("1")))
    while not any(isinstance(effect, KeepPort) for effect in world.pending):
        world.end_pending(0)
    world.end_pending(0, well=False)
    world.settle()
    assert (world.member().phase, world.starts) == (MemberPhase.FAILED, 0)


def test_a_doubt_is_looked_at_where_requests_are_answered() -> None:
    for member, looks in (("0", 1), ("2", 0)):
        world = World()
        world.send(snapshot(assign_rank(member, fronts=RANKS)))
        world.settle()
        doubted = assign_rank(member, fronts=RANKS).changed(suspect_since="2026-01-01T00:00:00Z")
        world.send(snapshot(doubted, serial=2))
        assert sum(isinstance(each, Examine) for each in world.pending) == looks


def test_keepers_of_ranks_dial_the_next_and_admit_the_one_before() -> None:
    for rank, after, before in ((0, "1", "2"), (1, "2", "0"), (2, "0", "1")):
        ports = iter((41001, 41002))
        group = asyncio.run(choose_group(assign_rank(str(rank), fronts=RANKS), ports.__next__, 52590))
        front = next(each for each in RANKS if each.member == after)
        assert group == Group(
            str(rank),
            120.0,
            dials=(Neighbour(after, f"n{after}", front.address, front.port, 41001),),
            admits=(Neighbour(before, f"n{before}"),),
            ring_port=41002,
            front_port=52590,
            answers=rank == 0,
            lost_status=RING_LOST,
            stuck_status=RING_STUCK,
            step_seconds=step_seconds(assign_rank("0").instance),
        )
