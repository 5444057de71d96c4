import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest
from covey_fleet_client.lifeline import watch_lifeline

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


async def test_the_lifeline_ends_when_its_writer_closes_and_not_when_it_writes() -> None:
    read_end, write_end = os.pipe()
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(watch_lifeline(read_end))
        os.write(write_end, b"noise")
        await asyncio.sleep(0.05)
        assert not watch.done()
        os.close(write_end)
        async with asyncio.timeout(30):
            await watch
    os.close(read_end)


async def test_the_lifeline_ends_when_the_process_that_holds_it_is_killed() -> None:
    read_end, write_end = os.pipe()
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(60)", pass_fds=(write_end,), stdout=subprocess.DEVNULL
    )
    os.close(write_end)
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(watch_lifeline(read_end))
        await asyncio.sleep(0.05)
        assert not watch.done()
        holder.kill()
        async with asyncio.timeout(30):
            await watch
    await holder.wait()
    os.close(read_end)


async def test_the_lifeline_is_not_passed_on_to_children_and_can_be_cancelled() -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(watch_lifeline(read_end))
        await asyncio.sleep(0)
        assert not os.get_inheritable(read_end)
        watch.cancel()
    os.close(read_end)
    os.close(write_end)
