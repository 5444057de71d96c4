"""A cancellation ends a loop also when the work that it runs makes a failure of it."""

import asyncio

import pytest
from covey_fleet_client.tasks import run_apart

pytestmark = pytest.mark.anyio


async def fail_when_cancelled() -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise ConnectionError("broken while it was being closed") from None


async def work() -> str:
    """As a connection with several tasks ends."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail_when_cancelled())
    except* ConnectionError:
        pass
    return "ended"


async def test_cancellation_that_meets_a_failure_is_not_lost() -> None:
    async def for_ever() -> None:
        while True:
            await run_apart(work())

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        task = group.create_task(for_ever())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.cancelled()


async def test_result_is_the_works() -> None:
    async def end() -> int:
        return 7

    assert await run_apart(end()) == 7


async def test_failure_of_the_work_is_raised() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await run_apart(asyncio.wait_for(asyncio.sleep(1), 0))
    assert isinstance(raised.value.exceptions[0], TimeoutError)
