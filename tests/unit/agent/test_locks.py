"""Locks on files, and the member's lock beside those who only look whether it is held."""

import os
from pathlib import Path

import pytest
from covey_agent.keeper import launcher
from covey_agent.keeper.observed import is_held, open_lock, take_lock


def test_a_lock_is_held_until_its_file_is_closed_and_never_through_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "a.lock", tmp_path / "link.lock"
    assert not is_held(path), "there is none"
    lock = open_lock(path, os.O_CREAT)
    link.symlink_to(path)
    assert not is_held(path)
    assert take_lock(lock)
    assert is_held(path)
    assert not is_held(link)
    os.close(lock)
    assert not is_held(path)


def test_a_keeper_waits_for_who_only_looks_and_not_for_another_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    looking = open_lock(tmp_path / "keeper.lock", os.O_CREAT)
    assert take_lock(looking)
    with pytest.raises(BlockingIOError):
        launcher.lock_folder()
    refusals: list[float] = []

    def let_go(seconds: float) -> None:
        refusals.append(seconds)
        os.close(looking)

    monkeypatch.setattr("covey_agent.keeper.launcher.time.sleep", let_go)
    lock = launcher.lock_folder()
    assert len(refusals) == 1
    assert is_held(tmp_path / "keeper.lock")
    os.close(lock)
