"""Engines and models as nobody wants them, one after the other on one agent: clear words, and nothing is left of any.

After each story the agent, which lives on, holds what it held before: processes, ports, descriptors, files, memory.
"""

import asyncio
import os
import signal
import struct
from collections.abc import Generator
from dataclasses import dataclass

import httpx
import pytest
from agent_rig import A, AgentRig, assert_gone, given, is_keeper
from covey_api.instance import MemberPhase
from covey_api.messages import MemberAssignment, MemberGoal, MemberReport, Progress
from covey_api.reasons import FailureCause
from kit.leaks import Leaks
from kit.processes import processes_of
from shared_rig import SharedRig, assign_model, model_of, shared_rig

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MODEL = b"GGUF" + bytes(1000)
# The head of a program in ELF, for RISC-V.
FOREIGN_PROGRAM = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", 2, 243, 1) + bytes(40)
HTML = b"<!doctype html><title>Sign in</title>"
# What the agent knows of files that it was asked for, and when it wrote down what it was told last.
KEPT = ("files", "assignments.json", "models", "agent.log")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[SharedRig]:
    with shared_rig(tmp_path_factory.mktemp("rig")) as rig:
        rig.tell(serve_once)  # what is made once is made: interpreters load modules, pools open connections
        yield rig


@pytest.fixture(autouse=True)
def nothing_leaks(shared: SharedRig) -> Generator[None]:
    assert shared.rig.agent is not None
    leaks = Leaks(shared.rig.agent.pid, shared.rig.folder, KEPT)
    yield
    leaks.assert_none()


async def serve_once(rig: AgentRig) -> None:
    rig.board.wish(assign_model(rig))
    await rig.wait_phase(MemberPhase.READY)


async def failed(rig: AgentRig, cause: FailureCause, *words: str) -> MemberReport:
    """The agent gave it up, in these words, and nothing of the engine runs."""
    member = await rig.wait_phase(MemberPhase.FAILED)
    assert member.cause is cause, member
    assert all(word in member.message for word in words), member.message
    assert rig.engines() == []
    return member


def id_of(assignment: MemberAssignment) -> str:
    return assignment.instance.spec.instance_id


async def ask(rig: AgentRig, member: MemberReport) -> int:
    """The status of one smallest request; 0 when the connection broke."""
    headers = {"authorization": f"Bearer {rig.assign(member.instance_id).key}"}
    async with httpx.AsyncClient(trust_env=False, timeout=10, headers=headers) as client:
        try:
            return (await client.post(f"http://127.0.0.1:{member.port}/v1/chat/completions", json={})).status_code
        except httpx.TransportError:
            return 0


def test_a_login_page_in_place_of_a_model_is_told_and_not_tried_again(shared: SharedRig) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(assign_model(rig, HTML))
        member = await failed(
            rig, FailureCause.ARTIFACT_CORRUPT, "can't load the model's file", "'<!do', expected 'GGUF'"
        )
        assert member.restarts == 0

    shared.tell(story)


def test_a_model_that_is_swapped_under_a_running_engine_is_never_loaded(shared: SharedRig) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(assign_model(rig))
        member = await rig.wait_phase(MemberPhase.READY)
        path = model_of(rig)
        path.with_name("new").write_bytes(MODEL + b"of somebody else")
        path.with_name("new").rename(path)
        assert await ask(rig, member) == 200, "what is loaded serves on"
        os.kill(member.pid, signal.SIGKILL)
        await failed(rig, FailureCause.ARTIFACT_CORRUPT, "must have sha256", str(path), "Put the right file there")

    shared.tell(story)


def test_a_gigabyte_of_log_takes_two_mebibytes(shared: SharedRig) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(assign_model(rig, knobs={"print_bytes": str(2**30)}))
        await rig.wait_phase(MemberPhase.READY)
        assert sum(path.stat().st_size for path in (rig.members / A).glob("output.log*")) <= 2 * 2**20

    shared.tell(story)


@dataclass(frozen=True, slots=True)
class Bad:
    """An engine that must be given up, with what is told of it."""

    knobs: dict[str, str]
    cause: FailureCause
    words: tuple[str, ...]
    restarts: int = 0
    startup_seconds: int = 60
    is_doubted: bool = False
    """It becomes ready, and answers no second request."""


BAD = (
    Bad(
        {"garbage": "yes"},
        FailureCause.NOT_READY_IN_TIME,
        ("no token within `startupSeconds` (10 s)", "has status 200 and isn't what was asked for"),
        startup_seconds=10,
    ),
    Bad(
        {"slow_start": "3600"},
        FailureCause.NOT_READY_IN_TIME,
        ("(10 s)", "nothing listens on its port"),
        startup_seconds=10,
    ),
    Bad({"hang_health": "yes"}, FailureCause.NOT_READY_IN_TIME, ("(10 s)", "has given no answer"), startup_seconds=10),
    Bad(
        {"die_at_load": "error: out of luck", "exit_code": "3"}, FailureCause.EXITED, ("code 3: error: out of luck",), 3
    ),
    Bad({"die_at": "1", "exit_code": "4"}, FailureCause.EXITED, ("exited with code 4",), 3),
    Bad(
        {"close_after": "2"},
        FailureCause.WEDGED,
        ("did not complete the smallest request within 15 s (nothing listens on its port",),
        is_doubted=True,
    ),
)


def test_engines_that_never_serve_or_close_their_door_are_given_up_each_in_its_words(shared: SharedRig) -> None:
    """All at once: most of it is waiting."""
    keys = {f"00000000000000b{number}": bad for number, bad in enumerate(BAD)}

    async def check(rig: AgentRig, key: str, bad: Bad) -> None:
        if bad.is_doubted:
            member = await rig.wait_phase(MemberPhase.READY, key)
            assert [await ask(rig, member), await ask(rig, member)] == [200, 0]
            doubted = {"suspect_since": "2026-01-01T00:00:00Z"}
            rig.board.wish(*(each.changed(**doubted) if id_of(each) == key else each for each in rig.board.wishes))
        failed = await rig.wait_phase(MemberPhase.FAILED, key)
        assert (failed.cause, failed.restarts, failed.pid) == (bad.cause, bad.restarts, 0), failed
        assert all(word in failed.message for word in bad.words), failed.message

    async def story(rig: AgentRig) -> None:
        wished = (
            assign_model(rig, knobs=bad.knobs, key=key, startup_seconds=bad.startup_seconds)
            for key, bad in keys.items()
        )
        rig.board.wish(*wished)
        async with asyncio.TaskGroup() as group:
            for key, bad in keys.items():
                group.create_task(check(rig, key, bad))
        assert rig.engines() == []

    shared.tell(story)


def test_an_engine_that_dies_in_a_request_or_while_it_drains_is_told(shared: SharedRig) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(assign_model(rig, knobs={"die_at": "2", "exit_code": "5"}))
        member = await rig.wait_phase(MemberPhase.READY)
        assert await ask(rig, member) == 0
        backoff = await rig.wait_phase(MemberPhase.BACKOFF)
        assert (backoff.cause, "exited with code 5" in backoff.message) == (FailureCause.EXITED, True)
        again = await rig.wait_phase(MemberPhase.READY, restarts=1)
        rig.board.wish(rig.board.wishes[0].changed(goal=MemberGoal.DRAIN))
        await rig.wait_phase(MemberPhase.DRAINING)
        os.kill(again.pid, signal.SIGKILL)
        # What drains is not started again.
        await rig.wait_phase(MemberPhase.STOPPED)

    shared.tell(story)


@pytest.mark.parametrize("phase", [MemberPhase.STARTING, MemberPhase.DRAINING])
def test_a_keeper_that_is_killed_in_any_phase_takes_its_engine_with_it(shared: SharedRig, phase: MemberPhase) -> None:
    async def story(rig: AgentRig) -> None:
        slow = {"slow_start": "3600"} if phase is MemberPhase.STARTING else {}
        rig.board.wish(assign_model(rig, knobs=slow))
        if phase is MemberPhase.DRAINING:
            await rig.wait_phase(MemberPhase.READY)
            rig.board.wish(rig.board.wishes[0].changed(goal=MemberGoal.DRAIN))
        await rig.wait(lambda: any(each.pid for each in rig.board.members.values()), "the engine runs")
        member = await rig.wait_phase(phase)
        (keeper,) = (process for process in processes_of(rig.members) if is_keeper(process))
        keeper.kill()
        after = MemberPhase.BACKOFF if phase is MemberPhase.STARTING else MemberPhase.STOPPED
        lost = await rig.wait_phase(after)
        assert lost.cause is (FailureCause.KEEPER_LOST if phase is MemberPhase.STARTING else None)
        assert_gone(member.pid)

    shared.tell(story)


def test_a_binary_of_another_processor_is_told_and_never_started(shared: SharedRig) -> None:
    async def story(rig: AgentRig) -> None:
        program, good = rig.folder / "models" / "llama-server", rig.board.spec
        program.write_bytes(FOREIGN_PROGRAM)
        program.chmod(0o700)
        rig.board.spec = given(program)
        rig.board.wish(assign_model(rig))
        await failed(
            rig, FailureCause.NO_USABLE_ENGINE, str(program), "is no program for this machine", "another processor"
        )
        rig.board.spec = good

    shared.tell(story)


def test_how_far_a_load_is_and_how_fast_is_told_while_it_lasts(shared: SharedRig) -> None:
    async def story(rig: AgentRig) -> None:
        content = b"GGUF" + bytes(64 * 2**20)
        rig.board.wish(assign_model(rig, content, knobs={"load": "4"}))

        def told() -> Progress | None:
            member = rig.board.members.get(A)
            return member.progress if member and member.phase is MemberPhase.STARTING else None

        while told() is None:
            rig.board.publish()  # a report follows each snapshot; by themselves they come every few seconds
            await asyncio.sleep(0.2)
        progress = told()
        assert progress is not None
        assert (progress.step, progress.total_bytes) == ("load", len(content))
        assert 0 < progress.done_bytes < len(content)
        assert progress.bytes_per_second > 0
        assert (await rig.wait_phase(MemberPhase.READY)).progress is None

    shared.tell(story)
