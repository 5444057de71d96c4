"""What a state folder still knows under another source: nothing that ended, everything that runs."""

import fcntl
from pathlib import Path

import pytest
from covey.up.sources import forget_last_source


@pytest.fixture
def state(tmp_path: Path) -> Path:
    for name in ("agent/members/a/assignment.json", "agent/assignments.json", "gateway/table.json", "agent/key.pem"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return tmp_path


def kept(state: Path) -> list[str]:
    return sorted(path.relative_to(state).as_posix() for path in state.rglob("*") if path.is_file())


WHOLE = ["agent/assignments.json", "agent/key.pem", "agent/members/a/assignment.json", "gateway/table.json", "source"]


def test_the_same_source_forgets_nothing_and_the_first_none_either(state: Path) -> None:
    forget_last_source(state, "/fleet")
    forget_last_source(state, "/fleet")
    assert kept(state) == WHOLE


def test_another_source_forgets_what_was_run_and_not_who_the_node_is(state: Path) -> None:
    forget_last_source(state, "/fleet")
    forget_last_source(state, "git+https://forge.example/fleet")
    assert kept(state) == ["agent/key.pem", "source"]


@pytest.mark.parametrize("lock", ["agent/members/a/keeper.lock", "agent/agent.lock"])
def test_what_runs_is_kept_under_another_source(state: Path, lock: str) -> None:
    forget_last_source(state, "/fleet")
    with (state / lock).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        forget_last_source(state, "/other")
    assert kept(state) == sorted([*WHOLE, lock])


def test_a_state_folder_that_takes_nothing_costs_no_start(state: Path) -> None:
    (state / "source").mkdir()
    forget_last_source(state, "/fleet")
    assert kept(state) == WHOLE[:-1]


def test_a_record_that_is_no_text_costs_no_start_and_is_made_anew(state: Path) -> None:
    (state / "source").write_bytes(b"\xff\xfe")
    forget_last_source(state, "/fleet")
    assert (state / "source").read_text() == "/fleet"
