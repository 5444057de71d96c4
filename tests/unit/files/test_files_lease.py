"""At most one process leads, also when somebody deletes the lock file."""

import asyncio
import logging
from pathlib import Path

import pytest
from covey_controller.stores.files.lease import LeaderLock


async def is_acquired_soon(lock: LeaderLock, seconds: float = 0.4) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await lock.acquire("second")
    except TimeoutError:
        return False
    return True


def test_second_waits_and_says_for_whom_and_takes_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        first, second = LeaderLock(tmp_path / "lock"), LeaderLock(tmp_path / "lock")
        await first.acquire("first")
        assert not await is_acquired_soon(second)
        first.release()
        assert await is_acquired_soon(second, 5.0)
        second.release()

    asyncio.run(scenario())
    (message,) = caplog.messages
    assert "is held by process" in message
    assert "(first)" in message


def test_holder_of_a_deleted_lock_knows_that_it_holds_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        first, second = LeaderLock(tmp_path / "lock"), LeaderLock(tmp_path / "lock")
        await first.acquire("first")
        assert first.is_held()
        (tmp_path / "lock").unlink()
        assert not first.is_held()
        assert await is_acquired_soon(second)
        assert second.is_held()
        assert not first.is_held()
        first.release()
        assert second.is_held()
        second.release()

    asyncio.run(scenario())


def test_lock_file_is_only_the_owners(tmp_path: Path) -> None:
    async def scenario() -> None:
        lock = LeaderLock(tmp_path / "lock")
        await lock.acquire("first")
        lock.release()

    asyncio.run(scenario())
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
