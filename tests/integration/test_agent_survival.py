"""What happens to engines when parts around them die: real processes, an engine with knobs."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from agent_rig import A, AgentRig, B, assert_gone, environment_of, is_keeper, running_rig
from covey_api.instance import Costs, Member, MemberPhase
from covey_api.messages import Ask, AskKind, MemberGoal
from covey_api.reasons import FailureCause
from covey_api.text import TRANSITIONS, find_section
from kit.processes import assert_none_left, is_running, processes_of
from shared_rig import assign_model

# A probe that hangs is abandoned in two seconds; the rest is a busy machine's.
LANES_SECONDS = 30.0
Story = Callable[[AgentRig], Awaitable[None]]


def run(folder: Path, story: Story, **knobs: str) -> None:
    """The story, and the proof that it left nothing running."""

    async def bounded() -> None:
        async with asyncio.timeout(120), running_rig(folder, **knobs) as rig:
            await story(rig)
            if rig.agent is not None and rig.agent.poll() is None:
                assert await asyncio.to_thread(rig.kill, signal.SIGINT) == 0, rig.log.read_text()
            await rig.wait(lambda: not processes_of(rig.state), "nothing of this node runs any more")

    asyncio.run(bounded())
    assert_none_left(folder / "state")


def test_agent_serves_what_is_assigned_while_a_driver_hangs_and_interrupt_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    driver = tmp_path / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text(f"#!/bin/sh\necho $$ >> {asked}\nexec sleep 3600\n")
    driver.chmod(0o700)
    monkeypatch.setenv("PATH", f"{driver.parent}:{os.environ['PATH']}")

    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        member = await rig.wait_phase(MemberPhase.READY)
        await rig.wait(
            lambda: rig.board.last is not None and bool(rig.board.last.lanes), "lanes are told", LANES_SECONDS
        )
        assert [engine.pid for engine in rig.engines()] == [member.pid]
        argv = " ".join(word for process in processes_of(rig.state) for word in process.cmdline())
        assert "key-of" not in argv
        assert {name for name in environment_of(member.pid) if name.startswith("COVEY")} == {"COVEY_MEMBER"}
        first = next(report for _, report in rig.board.reports if report.members)
        assert first.members is not None
        began = time.monotonic()
        assert await asyncio.to_thread(rig.kill, signal.SIGINT) == 0
        assert time.monotonic() - began < 30
        assert_gone(member.pid)
        asked_of = [int(pid) for pid in asked.read_text().split()]
        assert asked_of
        for pid in asked_of:
            assert_gone(pid)

    run(tmp_path, story)


def test_killed_engine_is_restarted_and_the_fourth_crash_within_a_minute_is_final(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        for restarts in range(4):
            member = await rig.wait_phase(MemberPhase.READY, restarts=restarts)
            os.kill(member.pid, signal.SIGKILL)
        failed = await rig.wait_phase(MemberPhase.FAILED)
        assert failed.cause is FailureCause.KILLED
        assert "SIGKILL" in failed.message
        assert failed.port == 0
        assert rig.engines() == []
        # The controller's answer is another attempt.
        rig.board.wish(rig.assign(attempt=2))
        await rig.wait_phase(MemberPhase.READY, attempt=2, restarts=0)

    run(tmp_path, story)


def test_killed_agent_finds_its_engine_serving_when_it_is_back(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign(A), rig.assign(B))
        rig.start()
        before = [await rig.wait_phase(MemberPhase.READY, key) for key in (A, B)]
        rig.kill()
        assert all(is_running(member.pid) for member in before)
        began = time.monotonic()
        rig.start()
        after = [await rig.wait_phase(MemberPhase.READY, key) for key in (A, B)]
        assert time.monotonic() - began < 30
        assert [(member.pid, member.port) for member in after] == [(member.pid, member.port) for member in before]
        assert "Starting" not in rig.log.read_text().split("agent of node")[-1]

    run(tmp_path, story)


def test_killed_agent_finds_engines_whose_keepers_lost_their_files(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign(A), rig.assign(B))
        rig.start()
        before = [await rig.wait_phase(MemberPhase.READY, key) for key in (A, B)]
        (rig.members / A / "keeper.json").unlink()
        (rig.members / B / "k.sock").unlink()
        rig.kill()
        rig.start()
        after = [await rig.wait_phase(MemberPhase.READY, key) for key in (A, B)]
        assert [(member.pid, member.restarts) for member in after] == [(member.pid, 0) for member in before]

    run(tmp_path, story)


def test_terminated_agent_leaves_engines_running_and_a_closed_lifeline_too(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        pid = (await rig.wait_phase(MemberPhase.READY)).pid
        assert rig.kill(signal.SIGTERM) == 0
        assert is_running(pid)
        reader, writer = os.pipe()
        agent = rig.start("--lifeline", str(reader), pass_fds=(reader,))
        os.close(reader)
        await rig.wait_phase(MemberPhase.READY, pid=pid)
        os.close(writer)
        assert await asyncio.to_thread(agent.wait, 30) == 0
        rig.board.forget_agent()
        assert is_running(pid)
        rig.start()
        await rig.wait_phase(MemberPhase.READY, pid=pid)

    run(tmp_path, story)


def test_agent_without_a_controller_keeps_and_restarts_what_was_assigned(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        first = (await rig.wait_phase(MemberPhase.READY)).pid
        rig.kill()
        os.kill(first, signal.SIGKILL)
        rig.start("--controller", "https://127.0.0.1:9")  # nobody answers there
        await rig.wait(
            lambda: any(engine.pid != first for engine in rig.engines()), "a new engine without a controller"
        )
        rig.kill()
        rig.start()
        assert (await rig.wait_phase(MemberPhase.READY)).restarts == 1

    run(tmp_path, story)


def test_killed_keeper_takes_its_engine_along_and_is_reported_lost(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        member = await rig.wait_phase(MemberPhase.READY)
        keeper = next(process for process in processes_of(rig.members) if is_keeper(process))
        keeper.kill()
        lost = await rig.wait_phase(MemberPhase.BACKOFF)
        assert lost.cause is FailureCause.KEEPER_LOST
        assert_gone(member.pid)
        await rig.wait_phase(MemberPhase.READY, restarts=1)

    run(tmp_path, story)


def test_drained_and_stopped_member_is_forgotten_when_it_is_not_assigned_any_more(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        member = await rig.wait_phase(MemberPhase.READY)
        rig.board.wish(rig.assign(goal=MemberGoal.DRAIN))
        await rig.wait_phase(MemberPhase.DRAINING)
        assert is_running(member.pid), "what is in flight is served"
        rig.board.wish(rig.assign(goal=MemberGoal.STOP))
        await rig.wait_phase(MemberPhase.STOPPED)
        rig.board.wish()
        await rig.wait(lambda: rig.board.members == {}, "nothing is reported any more")
        await rig.wait(lambda: not (rig.members / A).exists(), "its folder is gone")

    run(tmp_path, story)


def test_member_that_the_controller_lost_is_reported_whole_and_runs_on(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        pid = (await rig.wait_phase(MemberPhase.READY)).pid
        rig.board.wish(complete=False)
        rig.board.wish()
        await rig.wait(lambda: rig.board.members[A].instance is not None, "the stray is reported whole")
        assert rig.board.members[A].instance == rig.instance(A)
        assert is_running(pid)
        # The agent loses its file too: what runs is known by its keeper's folder.
        rig.kill()
        (rig.state / "agent" / "assignments.json").unlink()
        rig.start()
        member = await rig.wait_phase(MemberPhase.READY, pid=pid)
        assert member.instance == rig.instance(A)
        rig.board.wish(rig.assign(goal=MemberGoal.STOP))
        await rig.wait_phase(MemberPhase.STOPPED)

    run(tmp_path, story)


def test_unreadable_file_is_put_aside_and_what_runs_is_adopted(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        pid = (await rig.wait_phase(MemberPhase.READY)).pid
        rig.kill()
        kept = rig.state / "agent" / "assignments.json"
        kept.write_text(kept.read_text()[:100])
        rig.start()
        await rig.wait_phase(MemberPhase.READY, pid=pid)
        assert "can't be read" in rig.log.read_text()

    run(tmp_path, story)


def test_folder_that_vanished_while_no_agent_was_there_never_makes_two_engines(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.grace_seconds = 5
        rig.board.wish(rig.assign())
        rig.start()
        first = (await rig.wait_phase(MemberPhase.READY)).pid
        rig.kill()
        shutil.rmtree(rig.members)
        rig.start()
        second = (await rig.wait_phase(MemberPhase.READY)).pid
        assert second != first
        assert_gone(first)

    run(tmp_path, story)


def test_higher_attempt_replaces_the_engine(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        first = await rig.wait_phase(MemberPhase.READY)
        rig.board.wish(rig.assign(attempt=2))
        second = await rig.wait_phase(MemberPhase.READY, attempt=2)
        assert second.pid != first.pid
        assert_gone(first.pid)
        assert len(rig.engines()) == 1

    run(tmp_path, story)


def test_engine_whose_port_was_taken_gets_another(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        backoff = await rig.wait_phase(MemberPhase.BACKOFF)
        assert backoff.cause is FailureCause.PORT_TAKEN
        assert "took the engine's port" in backoff.message
        await rig.wait_phase(MemberPhase.READY, restarts=1)

    words = "couldn`t bind HTTP server socket, hostname: 127.0.0.1, port: 1".replace("`", "'\"'\"'")
    run(tmp_path, story, die_at_load=words, deaths="1", counter=str(tmp_path / "counter"))


def test_missing_library_is_named_and_not_tried_again(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        failed = await rig.wait_phase(MemberPhase.FAILED)
        assert failed.cause is FailureCause.MISSING_LIBRARY
        assert "libgomp1" in failed.message
        assert failed.restarts == 0

    words = "error while loading shared libraries: libgomp.so.1: cannot open shared object file: No such file"
    run(tmp_path, story, die_at_load=words, exit_code="127")


def test_engine_that_cannot_start_is_reported_of_the_node_and_no_more_once_it_can(tmp_path: Path) -> None:
    def told(rig: AgentRig) -> list[str] | None:
        """As the controller has it: what isn't said again stands."""
        said = [report.unusable for _, report in rig.board.reports if report.unusable is not None]
        return [f"{each.engine} {each.cause}" for each in said[-1]] if said else None

    async def story(rig: AgentRig) -> None:
        path = rig.board.spec.engines[0].path
        assert path is not None
        program = Path(path)
        sound = await asyncio.to_thread(program.read_bytes)
        await asyncio.to_thread(program.write_bytes, b"\x7fELF\x02\x01\x01" + bytes(64))
        rig.start()
        await rig.wait(lambda: told(rig) == ["LlamaServer NoUsableEngine"], "it is told", 60)
        await asyncio.to_thread(program.write_bytes, sound)
        await rig.wait(lambda: told(rig) == [], "it starts now", 60)

    run(tmp_path, story)


def test_member_that_does_not_fit_is_refused_in_bytes_and_never_started(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        huge = (Member(node="a", costs=(Costs(weights_bytes=1 << 50),)),)
        rig.board.wish(rig.assign(members=huge))
        rig.start()
        waiting = await rig.wait_phase(MemberPhase.PENDING, cause=FailureCause.INSUFFICIENT_MEMORY)
        assert "short" in waiting.message
        assert rig.engines() == []

    run(tmp_path, story)


def test_second_agent_on_one_folder_is_refused_in_words(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        agent = rig.start()
        await rig.wait(lambda: bool(rig.board.reports), "a report")
        command = rig.command("--controller", rig.fleet.url)
        second = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
        assert second.returncode == 1
        assert f"process id {agent.pid} runs" in second.stderr
        assert agent.poll() is None

    run(tmp_path, story)


def test_stop_all_ends_every_keeper_when_the_agent_is_gone(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign(A), rig.assign(B))
        rig.start()
        for key in (A, B):
            await rig.wait_phase(MemberPhase.READY, key)
        refused = await asyncio.to_thread(subprocess.run, rig.command("--stop-all"), capture_output=True, timeout=30)
        assert refused.returncode == 1
        assert len(rig.engines()) == 2
        rig.kill()
        done = await asyncio.to_thread(subprocess.run, rig.command("--stop-all"), capture_output=True, timeout=30)
        assert done.returncode == 0, done.stderr
        assert processes_of(rig.state) == []

    run(tmp_path, story)


def test_agent_that_stays_away_loses_its_engines_to_their_keepers_and_starts_them_again(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.grace_seconds = 5
        rig.board.wish(rig.assign())
        rig.start()
        first = await rig.wait_phase(MemberPhase.READY)
        rig.kill()
        await rig.wait(lambda: not processes_of(rig.members), "the keeper stops its engine and ends")
        assert json.loads((rig.members / A / "exit.json").read_text())["endedBy"] == "Orphaned"
        rig.start()
        again = await rig.wait_phase(MemberPhase.READY)
        assert again.pid != first.pid
        assert again.restarts == 0

    run(tmp_path, story)


def test_asks_are_answered_once_each(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        await rig.wait_phase(MemberPhase.READY)
        rig.board.ask(
            Ask(id="logs", kind=AskKind.LOGS, instance_id=A),
            Ask(id="stranger", kind=AskKind.LOGS, instance_id="../../../etc"),
            Ask(id="header", kind=AskKind.HEADER, source="file:///nowhere.gguf"),
        )
        await rig.wait(lambda: len(rig.board.answers) == 3, "three answers")
        rig.board.publish()
        logs, stranger, header = (rig.board.answer(name) for name in ("logs", "stranger", "header"))
        assert logs is not None
        assert "listening" in logs.text
        assert stranger is not None
        assert "no member" in stranger.error
        assert header is not None
        assert "/nowhere.gguf" in header.error
        await asyncio.sleep(0.5)
        assert len(rig.board.answers) == 3

    run(tmp_path, story)


def test_an_engine_that_hangs_is_captured_without_its_metrics(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        await rig.wait(lambda: any(each.pid for each in rig.board.members.values()), "the engine runs")
        rig.board.ask(Ask(id="capture", kind=AskKind.CAPTURE, instance_id=A, expires_seconds=60))
        await rig.wait(lambda: rig.board.answer("capture") is not None, "it is captured")
        answer = rig.board.answer("capture")
        assert answer is not None
        assert "# metrics\n(no answer within 4 s)" in answer.text
        assert "Starting, goal Serve" in find_section(answer.text, TRANSITIONS)

    run(tmp_path, story, hang_health="yes")


def test_reports_leave_out_what_did_not_change_and_are_full_when_asked(tmp_path: Path) -> None:
    async def story(rig: AgentRig) -> None:
        rig.board.wish(rig.assign())
        rig.start()
        await rig.wait_phase(MemberPhase.READY)
        assert rig.board.reports[0][1].full
        await rig.wait(lambda: rig.board.last is not None and rig.board.last.members is None, "a report without news")
        assert rig.board.last is not None
        assert not rig.board.last.full
        assert rig.board.last.readings
        count = len(rig.board.reports)
        rig.board.resend = True
        await rig.wait(lambda: any(report.full for _, report in rig.board.reports[count:]), "a full report")
        full = next(report for _, report in rig.board.reports[count:] if report.full)
        assert full.members is not None
        assert full.members[0].instance == rig.instance(A)
        assert full.facts is not None
        assert full.lanes
        assert full.applied == rig.board.order

    run(tmp_path, story)


def test_agent_that_is_killed_takes_every_member_up_where_it_stood(tmp_path: Path) -> None:
    """Loading, draining, stopping, crashing again and again: one of each, and a kill in the midst of all."""
    loading, draining, stopping, crashing = (f"00000000000000c{number}" for number in range(4))
    knobs: dict[str, dict[str, str]] = {
        loading: {"slow_start": "20"},
        draining: {},
        stopping: {"ignore_term": "yes", "fork": "yes"},
        crashing: {"die_at": "1"},
    }
    goals = {draining: MemberGoal.DRAIN, stopping: MemberGoal.STOP}

    async def story(rig: AgentRig) -> None:
        wishes = {key: assign_model(rig, knobs=own, key=key) for key, own in knobs.items()}
        rig.board.wish(*wishes.values())
        rig.start()
        before = {key: (await rig.wait_phase(MemberPhase.READY, key)).pid for key in goals}
        before[loading] = (await rig.wait_phase(MemberPhase.STARTING, loading)).pid
        rig.board.wish(*(each.changed(goal=goals.get(key, MemberGoal.SERVE)) for key, each in wishes.items()))
        await rig.wait_phase(MemberPhase.DRAINING, draining)
        await rig.wait_phase(MemberPhase.DRAINING, stopping)
        rig.kill()
        rig.start()
        await rig.wait_phase(MemberPhase.DRAINING, draining, pid=before[draining])
        # Its engine has ignored SIGTERM once: what an agent has begun its keeper carries out.
        await rig.wait_phase(MemberPhase.STOPPED, stopping)
        assert_gone(before[stopping])
        record = json.loads((rig.members / stopping / "exit.json").read_text())
        assert (record["status"], record["endedBy"]) == (-signal.SIGKILL, "Stop")
        await rig.wait_phase(MemberPhase.READY, loading, pid=before[loading])
        crashed = await rig.wait_phase(MemberPhase.FAILED, crashing)
        assert (crashed.cause, crashed.restarts) == (FailureCause.EXITED, 3)
        told = [report.members for _, report in rig.board.reports if report.members]
        counts = [each.restarts for members in told for each in members if each.instance_id == crashing]
        assert counts == sorted(counts), "restarts are counted on, whoever counts"

    run(tmp_path, story)
