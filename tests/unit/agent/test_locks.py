"""Locks on files, and the member's lock beside those who only look whether it is held."""

import asyncio
import os
from pathlib import Path

import pytest
from covey_agent.engines.probe import ask
from covey_agent.keeper import launcher
from covey_agent.keeper.observed import is_held, open_lock, take_lock
from kit.processes import wait_for


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


def test_what_an_agent_started_holds_its_lock_when_the_agent_is_gone(tmp_path: Path) -> None:
    """An installer that outlives its agent builds on in the folder, beside which the next agent would build."""

    async def story() -> None:
        path, go = tmp_path / "a.lock", tmp_path / "go"
        lock = open_lock(path, os.O_CREAT)
        assert take_lock(lock)
        waits = f"touch '{tmp_path}/begun'; until test -e '{go}'; do sleep 0.05; done"
        asking = asyncio.create_task(ask(Path("/bin/sh"), "-c", waits, environment={}, seconds=60, locks=(lock,)))
        await asyncio.to_thread(wait_for, (tmp_path / "begun").exists, "it has begun")
        os.close(lock)  # as the end of a process does
        assert is_held(path)
        go.touch()
        assert (await asking) is not None
        assert not is_held(path)

    asyncio.run(story())
