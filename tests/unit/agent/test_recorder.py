"""The flight recorder: what became of each member, bounded, and there again after the agent's end."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from covey_agent.capturing import BLANKED, blank
from covey_agent.keeper.output import drop_cut_line
from covey_agent.recorder import FILE, MAX_TRANSITIONS, Recorder, read_lines
from covey_agent.supervisor.state import Failure, MemberState, State
from covey_api.instance import MemberPhase
from covey_api.messages import MemberGoal
from covey_api.reasons import FailureCause
from kit.supervised import assign

A = "00000000000000aa"


def recorder(folder: Path) -> Recorder:
    return Recorder(folder / "members", "boot", lambda: datetime(2026, 1, 1, tzinfo=UTC))


def member(phase: MemberPhase = MemberPhase.PENDING) -> MemberState:
    return MemberState(assign(A), MemberGoal.SERVE, phase=phase)


def phases(folder: Path) -> list[str]:
    return [json.loads(line)["phase"] for line in read_lines(folder / "members" / A)]


def test_each_change_is_a_line_with_its_cause_and_what_is_the_same_is_none(tmp_path: Path) -> None:
    told = recorder(tmp_path)
    first, starting = State().with_member(member()), State().with_member(member(MemberPhase.STARTING))
    told.observe(State(), first, 1.0)
    told.observe(first, first, 2.0)
    told.observe(first, starting, 3.0)
    failed = replace(member(MemberPhase.FAILED), failure=Failure(FailureCause.OUT_OF_MEMORY, "no room"))
    told.observe(starting, State().with_member(failed), 4.5)
    assert phases(tmp_path) == ["Pending", "Starting", "Failed"]
    last = json.loads(read_lines(tmp_path / "members" / A)[-1])
    assert (last["cause"], last["message"], last["monotonicSeconds"]) == ("OutOfMemory", "no room", 4.5)
    assert last["at"] == "2026-01-01T00:00:00.000+00:00"
    assert (tmp_path / "members" / A / FILE).stat().st_mode & 0o077 == 0


def test_only_the_last_ones_are_kept_also_over_restarts_of_the_agent(tmp_path: Path) -> None:
    states = [State().with_member(member(phase)) for phase in (MemberPhase.STARTING, MemberPhase.BACKOFF)]
    for _ in range(3):
        told, before = recorder(tmp_path), State()
        for turn in range(MAX_TRANSITIONS + 7):
            told.observe(before, states[turn % 2], float(turn))
            before = states[turn % 2]
    lines = phases(tmp_path)
    assert MAX_TRANSITIONS <= len(lines) <= 2 * MAX_TRANSITIONS
    assert lines[-2:] == ["Backoff", "Starting"]


def test_disk_that_refuses_is_said_once_and_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "members").write_text("in the way")
    told = recorder(tmp_path)
    first = State().with_member(member())
    told.observe(State(), first, 1.0)
    told.observe(first, State().with_member(member(MemberPhase.STARTING)), 2.0)
    assert len(caplog.records) == 1


def test_line_that_a_tail_begins_in_is_left_out() -> None:
    assert drop_cut_line("cret\nsecond\n", 12) == "second\n"
    assert drop_cut_line("first\nsecond\n", 100) == "first\nsecond\n"


def test_keys_and_tokens_are_blanked() -> None:
    text = "key=deadbeef12 sk-covey-abcdefghijkl covey-AB12.secretsecret.0123abcd hf_abcdefghijklmn Bearer abcdefghij"
    shown = blank(text, "deadbeef12")
    assert shown == f"key={BLANKED} {BLANKED} {BLANKED} {BLANKED} Bearer {BLANKED}"
    assert blank("sk-ip", "") == "sk-ip"
