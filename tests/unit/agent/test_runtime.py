"""The shell around the supervisor: what fails becomes an event, what is kept is kept, what is told is told once."""

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from covey_agent.asks import Asks
from covey_agent.capturing import Captures
from covey_agent.exits import explain_exit
from covey_agent.keeping import Keeping
from covey_agent.kept_file import KeptFile
from covey_agent.launching import render_launch
from covey_agent.membership import Membership
from covey_agent.peers.directory import FleetDirectory
from covey_agent.performer import Performer
from covey_agent.ports import AgentError, EngineExit, EngineProcess, EngineProgram, UnmeasuredHeader
from covey_agent.refused import RefusedFile
from covey_agent.reports import Reporter, Self, render_member
from covey_agent.runtime import Runtime
from covey_agent.single import AlreadyRunning, take_folder
from covey_agent.supervisor.effects import CheckFit, Loading, StartKeeper
from covey_agent.supervisor.events import FitChecked
from covey_agent.supervisor.judging import PROBE_AGAIN_SECONDS
from covey_agent.supervisor.kept import Kept
from covey_agent.supervisor.state import MemberState, State, keep_state, restore_state
from covey_agent.surveys import Survey
from covey_agent.whereabouts import Whereabouts
from covey_api.instance import Costs, Member, MemberPhase
from covey_api.messages import (
    Ask,
    AskAnswer,
    AskKind,
    MemberAssignment,
    MemberGoal,
    Order,
    PoolReading,
    Report,
    ReportAnswer,
)
from covey_api.node import NodeSpec
from covey_api.reasons import FailureCause
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.join import Admission
from covey_fleet_client.standing import StandingFile, read_refusal
from kit import builders
from kit.outside import FakeAdapter, FakeFleet, World
from kit.supervised import assign, snapshot

A, B = "00000000000000aa", "00000000000000bb"


class SlowKeptFile(KeptFile):
    """On a disk that takes longer for a write than the supervisor waits between two probes."""

    def write(self, kept: Kept) -> None:
        time.sleep(1.5 * PROBE_AGAIN_SECONDS)
        super().write(kept)


class FullKeptFile(KeptFile):
    """On a disk that is full until it isn't."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_full = True
        self.tries = 0

    def write(self, kept: Kept) -> None:
        self.tries += 1
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"assignments.{self.tries}.tmp")
        super().write(kept)


class Running:
    """A runtime over fakes, with the parts that report and answer."""

    def __init__(self, folder: Path, world: World, kept_file: KeptFile | None = None) -> None:
        self.changed = asyncio.Event()
        self.kept_file = kept_file or KeptFile(folder)
        self.runtime = Runtime(world.outside, folder / "members", self.kept_file, "boot", self.changed.set)
        self.survey = Survey(
            world.engines,
            world.facts,
            lambda: self.runtime.state.spec,
            lambda: bool(self.runtime.state.members),
            self.runtime.spec_changed,
            self.changed.set,
            "",
        )
        this = Self("a", "boot", "0.1.0", "", Whereabouts("127.0.0.1", "", folder), lambda: 0)
        self.reporter = Reporter(this, self.runtime, self.survey, world.artifacts, world.facts, self.changed)
        captures = Captures("a", self.runtime, world.outside, folder / "members")
        self.asks = Asks("a", world.artifacts, captures)
        refused, directory = RefusedFile(folder), FleetDirectory("a")
        self.keeping = Keeping(world.artifacts, folder, lambda: None, lambda: None)
        self.membership = Membership(
            "a", self.runtime, self.reporter, self.asks, refused, lambda: 0.0, directory, self.keeping
        )

    async def receive(self, *members: MemberAssignment, serial: int = 1) -> None:
        await self.runtime.receive(snapshot(*members, serial=serial).assignments)

    async def wait(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_so():  # noqa: ASYNC110 seen from outside only
                await asyncio.sleep(0.005)

    async def wait_phase(self, phase: MemberPhase, key: str = A) -> MemberState:
        def is_there() -> bool:
            member = self.runtime.state.members.get(key)
            return member is not None and member.phase is phase

        await self.wait(is_there)
        return self.runtime.state.members[key]


Story = Callable[[Running], Awaitable[None]]


def run(
    folder: Path, world: World, story: Story, fleet: FakeFleet | None = None, kept_file: KeptFile | None = None
) -> None:
    async def bounded() -> None:
        running = Running(folder, world, kept_file)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(running.runtime.run())]
            if fleet is not None:
                tasks += [group.create_task(running.survey.run()), group.create_task(running.membership.serve(fleet))]
            await story(running)
            for task in tasks:
                task.cancel()

    asyncio.run(bounded())


def test_unexpected_failure_of_one_member_leaves_agent_and_others_alone(tmp_path: Path) -> None:
    world = World()

    async def story(running: Running) -> None:
        await running.receive(assign(B))
        await running.wait_phase(MemberPhase.READY, B)
        world.artifacts.failure = ZeroDivisionError("odd")
        await running.receive(assign(A), assign(B), serial=2)
        failed = await running.wait_phase(MemberPhase.FAILED)
        assert failed.failure is not None
        assert "unexpected ZeroDivisionError: odd" in failed.failure.message
        assert running.runtime.state.members[B].phase is MemberPhase.READY

    run(tmp_path, world, story)


def test_rendering_that_fails_ends_in_a_failed_member(tmp_path: Path) -> None:
    world = World()
    world.adapter.failure = AgentError(FailureCause.NO_USABLE_ENGINE, "no such option")

    async def story(running: Running) -> None:
        await running.receive(assign())
        failed = await running.wait_phase(MemberPhase.FAILED)
        assert failed.failure is not None
        assert failed.failure.message == "no such option"

    run(tmp_path, world, story)


def test_wishes_are_on_disk_before_anything_is_done_about_them(tmp_path: Path) -> None:
    world = World()
    seen: list[Kept] = []

    async def story(running: Running) -> None:
        world.keepers.before_start = lambda: seen.append(running.kept_file.read())
        await running.receive(assign())
        await running.wait_phase(MemberPhase.READY)

    run(tmp_path, world, story)
    assert [member.assignment for member in seen[0].members] == [assign()]
    assert (tmp_path / "assignments.json").stat().st_mode & 0o777 == 0o600


def test_disk_that_refuses_costs_no_engine_and_is_tried_again(tmp_path: Path) -> None:
    world = World()

    async def story(running: Running) -> None:
        await running.wait(lambda: not running.runtime.is_finding)
        blocker = tmp_path / "assignments.json"
        blocker.mkdir()
        (blocker / "x").touch()
        await running.receive(assign())
        await running.wait_phase(MemberPhase.READY)
        (blocker / "x").unlink()
        blocker.rmdir()
        await running.wait(lambda: bool(running.kept_file.read().members))

    run(tmp_path, world, story)


def test_disk_that_stays_full_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    kept_file = FullKeptFile(tmp_path)

    def told() -> int:
        return sum("could not be written" in record.message for record in caplog.records)

    async def story(running: Running) -> None:
        await running.receive(assign())
        await running.wait_phase(MemberPhase.READY)
        assert kept_file.tries > 1
        assert told() == 1
        kept_file.is_full = False
        await running.wait(lambda: bool(running.kept_file.read().members))
        kept_file.is_full = True
        await running.receive(assign(), serial=2)
        await running.wait(lambda: told() == 2)

    run(tmp_path, world, story, kept_file=kept_file)


def test_what_became_due_during_a_slow_write_is_done_all_the_same(tmp_path: Path) -> None:
    world = World()
    world.adapter.unready_probes = 2

    async def story(running: Running) -> None:
        await running.receive(assign(A))
        await running.wait(lambda: world.adapter.unready_probes == 1)
        await asyncio.sleep(0.01)
        # Written while the next probe becomes due; nothing else happens afterwards.
        await running.receive(assign(A), serial=2)
        await running.wait_phase(MemberPhase.READY)

    run(tmp_path, world, story, kept_file=SlowKeptFile(tmp_path))


def test_leftovers_of_forgotten_members_are_swept_and_living_ones_kept(tmp_path: Path) -> None:
    world = World()
    for name in ("dead", "living"):
        (tmp_path / "members" / name).mkdir(parents=True)
    world.keepers.living = {"living": "not an assignment"}

    async def story(running: Running) -> None:
        await running.wait(lambda: not running.runtime.is_finding)

    run(tmp_path, world, story)
    assert world.keepers.forgotten == ["dead"]


def test_close_ends_the_loop_once_everything_has_ended(tmp_path: Path) -> None:
    world = World()

    async def bounded() -> None:
        running = Running(tmp_path, world)
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            task = group.create_task(running.runtime.run())
            await running.receive(assign(A), assign(B))
            await running.wait_phase(MemberPhase.READY, A)
            await running.wait_phase(MemberPhase.READY, B)
            await running.runtime.close()
            await task
        assert world.keepers.running == {}

    asyncio.run(bounded())


def test_reports_are_full_after_a_start_a_failure_and_a_resend_and_small_between(tmp_path: Path) -> None:
    world, fleet = World(), FakeFleet()

    async def story(running: Running) -> None:
        await running.wait(lambda: any(report.facts for report in fleet.reports))
        assert fleet.reports[0].full
        await running.receive(assign())
        await running.wait(lambda: [member.phase for member in fleet.reports[-1].members or ()] == [MemberPhase.READY])
        news = fleet.reports[-1]
        assert (news.full, news.facts, news.applied) == (False, None, Order(term=1, serial=1))
        assert [member.instance for member in news.members or ()] == [None]

        fleet.answers = [ReportAnswer(term=1, serial=1, resend=True)]
        count = len(fleet.reports)
        running.changed.set()
        await running.wait(lambda: len(fleet.reports) >= count + 2)
        again = fleet.reports[count + 1]
        assert again.full
        assert [member.instance for member in again.members or ()] == [assign().instance]

        fleet.is_down = True
        running.changed.set()
        await asyncio.sleep(0.2)
        fleet.is_down = False
        count = len(fleet.reports)
        running.changed.set()
        await running.wait(lambda: len(fleet.reports) > count)
        assert fleet.reports[count].full
        sequences = [report.sequence for report in fleet.reports]
        assert sequences == sorted(set(sequences))

    run(tmp_path, world, story, fleet)


def test_a_refused_report_is_kept_for_who_looks_and_a_good_one_clears_it(tmp_path: Path) -> None:
    world, fleet = World(), FakeFleet()

    async def story(running: Running) -> None:
        await running.wait(lambda: bool(fleet.reports))
        running.reporter.on_standing = StandingFile(tmp_path).note
        fleet.refusal = FleetError(FleetErrorKind.REFUSED, "another machine is connected as node 'a'")
        running.changed.set()
        await running.wait(lambda: read_refusal(tmp_path) is not None)
        refusal = read_refusal(tmp_path)
        assert refusal is not None
        assert refusal.words == "another machine is connected as node 'a'"
        # A controller that is away takes nothing back.
        fleet.refusal, fleet.is_down = None, True
        running.changed.set()
        await asyncio.sleep(0.2)
        assert read_refusal(tmp_path) == refusal
        fleet.is_down = False
        running.changed.set()
        await running.wait(lambda: read_refusal(tmp_path) is None)

    run(tmp_path, world, story, fleet)


def test_stray_goes_whole_with_every_report_of_members() -> None:
    member = MemberState(assign(), MemberGoal.SERVE, assigned=False)
    assert render_member(member, None, is_whole=not member.assigned).instance == assign().instance


def test_seal_is_reported_with_the_whole_instance_and_kept_on_the_disk(tmp_path: Path) -> None:
    sealed = assign().model_copy(update={"seal": "ab" * 32})
    member = MemberState(sealed, MemberGoal.SERVE)
    KeptFile(tmp_path).write(keep_state(State(None, NodeSpec(), "boot", {member.instance_id: member})))
    member = restore_state(KeptFile(tmp_path).read(), (), "boot").members["00000000000000aa"]
    assert render_member(member, None, is_whole=True).seal == "ab" * 32
    assert render_member(member, None, is_whole=False).seal == ""


def test_engine_of_an_earlier_attempt_is_not_reported_as_this_attempts() -> None:
    old = EngineProcess(1, 4000, 77, "77@boot")
    member = MemberState(assign(attempt=2), MemberGoal.SERVE, keeper=old, phase=MemberPhase.PENDING)
    report = render_member(member, None, is_whole=False)
    assert (report.port, report.pid, report.attempt) == (0, 0, 2)


def test_lines_that_do_not_parse_or_are_for_another_node_are_ignored(tmp_path: Path) -> None:
    world = World()
    good = snapshot(assign(), serial=3).assignments
    other = good.model_copy(update={"node": "b", "serial": 4})
    odd = good.model_dump_json(by_alias=True).replace('"Serve"', '"Dance"')
    lines = (b"{nonsense", odd.encode(), other.model_dump_json(by_alias=True).encode())
    fleet = FakeFleet(*lines, good.model_dump_json(by_alias=True).encode())

    async def story(running: Running) -> None:
        await running.wait_phase(MemberPhase.READY)
        assert running.runtime.state.order == Order(term=1, serial=3)

    run(tmp_path, world, story, fleet)


def test_device_is_read_anew_before_a_start_and_the_pool_that_is_short_is_reported(tmp_path: Path) -> None:
    world = World()
    world.facts.devices = (PoolReading(name="Gpu", available_bytes=99),)
    plain = assign()
    members = (Member(node="a", costs=(Costs(pool="Gpu", weights_bytes=100), Costs(weights_bytes=1))),)
    spec = plain.instance.spec.model_copy(update={"members": members})
    on_gpu = plain.model_copy(update={"instance": plain.instance.model_copy(update={"spec": spec})})

    async def story(running: Running) -> None:
        await running.receive(on_gpu)
        await running.wait(lambda: A in running.runtime.state.members)
        await running.wait(lambda: running.runtime.state.members[A].failure is not None)
        report = render_member(running.runtime.state.members[A], None, is_whole=False)
        assert (report.cause, report.pool) == (FailureCause.INSUFFICIENT_MEMORY, "Gpu")
        assert world.engines.refreshes >= 1
        world.facts.devices = (PoolReading(name="Gpu", available_bytes=100),)
        await running.wait_phase(MemberPhase.READY)

    run(tmp_path, world, story)


@pytest.mark.parametrize(("pool", "waits_for"), [("Gpu", "big-0"), ("Host", "")])
def test_who_loads_in_the_memory_that_is_short_is_waited_for(tmp_path: Path, pool: str, waits_for: str) -> None:
    """Ten of 24 are taken already and promised still, and nobody tells which process has them."""
    world = World()
    world.facts.devices = (PoolReading(name="Gpu", available_bytes=14),)
    performer = Performer(world.outside, tmp_path, lambda key: None)
    ending = Loading(8, (Costs(pool="Gpu", weights_bytes=5),))
    check = CheckFit(
        A,
        (Costs(pool="Gpu", weights_bytes=10),),
        (ending, Loading(7, (Costs(pool=pool, weights_bytes=10),), "big-0")),
    )
    checked = asyncio.run(performer.carry_out(check))
    assert isinstance(checked, FitChecked)
    assert (checked.pool, checked.waits_for) == ("Gpu", waits_for)


def test_lanes_are_not_told_before_they_can_be(tmp_path: Path) -> None:
    """Until then the node's facts are pending, and nothing is placed on it."""
    world = World()
    world.engines.is_prepared = False

    async def story(running: Running) -> None:
        await running.runtime.receive(snapshot(serial=1).assignments)
        await running.wait(lambda: running.runtime.state.order is not None)
        assert running.survey.lanes is None
        world.engines.is_prepared = True
        running.runtime.spec_changed.set()
        await running.wait(lambda: running.survey.lanes is not None)

    run(tmp_path, world, story, FakeFleet())


def test_who_has_members_tells_lanes_at_once(tmp_path: Path) -> None:
    """A node without lanes has its facts pending, and none of its Instances counts as ready."""
    world = World()
    world.engines.is_prepared = False

    async def story(running: Running) -> None:
        await running.runtime.receive(snapshot(assign()).assignments)
        await running.wait_phase(MemberPhase.READY)
        running.runtime.spec_changed.set()
        await running.wait(lambda: running.survey.lanes is not None)

    run(tmp_path, world, story, FakeFleet())


def test_asks_expire_are_delivered_when_the_controller_is_back_and_answered_once(tmp_path: Path) -> None:
    world, fleet = World(), FakeFleet()

    async def story(running: Running) -> None:
        header = Ask(id="h", kind=AskKind.HEADER, source=builders.SOURCE, expires_seconds=60)
        short = Ask(id="short", kind=AskKind.HEADER, source=builders.SOURCE, expires_seconds=0.05)
        fleet.is_down = True
        running.asks.receive((header, header, short))
        await asyncio.sleep(0.3)
        fleet.is_down = False
        await running.wait(lambda: bool(fleet.puts))
        running.asks.receive((header,))
        await asyncio.sleep(0.1)
        answers = [(path, message) for path, message in fleet.puts]
        assert [path for path, _ in answers] == ["nodes/a/asks/h"]
        answer = answers[0][1]
        assert isinstance(answer, AskAnswer)
        assert answer.geometry == builders.geometry()
        world.artifacts.failure = UnmeasuredHeader("not measured yet", builders.artifact())
        running.asks.receive((header.model_copy(update={"id": "unmeasured"}),))
        await running.wait(lambda: len(fleet.puts) == 2)
        assert fleet.puts[1][1] == AskAnswer(id="unmeasured", error="not measured yet", artifact=builders.artifact())

    run(tmp_path, world, story, fleet)


@pytest.mark.parametrize(
    ("ended", "cause", "words"),
    [
        (EngineExit(1, "", None, "", False, ""), FailureCause.KEEPER_LOST, "without an exit record"),
        (EngineExit(1, "", -15, "Stop", False, ""), None, "as asked"),
        (EngineExit(1, "", -15, "Orphaned", False, ""), None, "no agent claimed it"),
        (EngineExit(1, "", -15, "Neighbour", False, "", "member '1' went"), FailureCause.NEIGHBOUR_ENDED, "'1' went"),
        (EngineExit(1, "", 3, "Engine", False, "", "no way to '1'"), FailureCause.EXITED, "with code 3; no way to '1'"),
        (EngineExit(1, "", -15, "Terminated", False, ""), FailureCause.KILLED, "SIGTERM"),
        (EngineExit(1, "", -9, "Engine", True, ""), FailureCause.OUT_OF_MEMORY, "lack of memory"),
        (
            EngineExit(1, "", 3, "Engine", False, ""),
            FailureCause.EXITED,
            "'LlamaServer' exited with code 3. Its output:",
        ),
    ],
)
def test_end_of_an_engine_is_explained(ended: EngineExit, cause: FailureCause | None, words: str) -> None:
    found, message = explain_exit(FakeAdapter(), builders.instance(), ended)
    assert found is cause
    assert words in message


def test_engine_sees_nothing_of_the_agents_environment_but_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COVEY_TOKEN", "LLAMA_ARG_CTX_SIZE", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret")
    program = EngineProgram(Path("/bin/engine"), {}, "1", "")
    launch = render_launch(FakeAdapter(), StartKeeper(A, assign(), Path("/w"), program), tmp_path, 1)
    assert "secret" not in launch.environment.values()
    assert launch.environment["PATH"] == os.environ["PATH"]
    files = dict(launch.files)
    assert MemberAssignment.model_validate_json(files["assignment.json"]) == assign()


def test_folder_has_one_agent(tmp_path: Path) -> None:
    lock = take_folder(tmp_path)
    with pytest.raises(AlreadyRunning, match=f"process id {os.getpid()} runs"):
        take_folder(tmp_path)
    os.close(lock)
    os.close(take_folder(tmp_path))


def test_token_is_read_anew_and_its_absence_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert Admission().read_token() is None
    assert Admission(path).read_token() is None
    path.write_text("covey-1.x.y\n")
    assert Admission(path).read_token() == "covey-1.x.y"


def test_report_tells_what_an_engine_took_at_most(tmp_path: Path) -> None:
    world, fleet = World(), FakeFleet()

    async def story(running: Running) -> None:
        await running.receive(assign())
        member = await running.wait_phase(MemberPhase.READY)
        assert member.keeper is not None
        world.facts.used_bytes[member.keeper.pid] = 300 * 2**20 + 5
        running.changed.set()
        await running.wait(lambda: bool(fleet.reports) and told(fleet.reports) == [300 * 2**20])
        world.facts.used_bytes[member.keeper.pid] = 100 * 2**20
        before = len(fleet.reports)
        running.changed.set()
        await running.wait(lambda: len(fleet.reports) > before)
        assert told(fleet.reports) == [300 * 2**20]

    run(tmp_path, world, story, fleet)


def told(reports: list[Report]) -> list[int]:
    """What the last report that spoke of members said they took."""
    last = next((report.members for report in reversed(reports) if report.members is not None), ())
    return [member.used_bytes for member in last]


def test_a_controller_that_knows_nothing_of_stores_empties_none(tmp_path: Path) -> None:
    """Of the version before, during an upgrade: its snapshots are complete, and don't say what is kept."""
    artifact = builders.artifact(sha256="d" * 64)

    async def story(running: Running) -> None:
        for serial, said in enumerate(((artifact,), None, ()), start=1):
            whole = snapshot(serial=serial).assignments.model_copy(update={"kept": said})
            line = whole.model_dump_json(by_alias=True, exclude_none=True).encode()
            assert (b'"kept"' in line) is (said is not None)
            await running.membership._receive(line)  # pyright: ignore[reportPrivateUsage]
            assert running.keeping.kept == (() if serial == 3 else (artifact,))

    run(tmp_path, World(), story)
