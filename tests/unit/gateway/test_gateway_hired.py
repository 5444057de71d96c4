"""A worker as its parent follows it: which silence is its own."""

import asyncio
import socket
import time
from typing import Any, cast

import pytest
from covey_gateway.workers import hired
from covey_gateway.workers.channel import Alive, AnyMessage, Channel, render
from covey_gateway.workers.hired import HiredWorker

SILENT_SECONDS = 0.3


class Process:
    """Ends when it is killed."""

    pid = 1

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._is_over = asyncio.Event()

    def kill(self) -> None:
        self.returncode = -9
        self._is_over.set()

    async def wait(self) -> int:
        await self._is_over.wait()
        return -9


class Rig:
    def __init__(self, channel: Channel, end: socket.socket) -> None:
        self.heard: list[AnyMessage] = []
        self.process = Process()
        self.worker = HiredWorker(0, time.monotonic, lambda _, message: self.heard.append(message))
        self.worker.is_serving.set()
        cast(Any, self.worker)._process, cast(Any, self.worker)._channel = self.process, channel
        self._end = end

    def speak_and_freeze(self) -> None:
        """The worker speaks while its parent doesn't run."""
        self._end.sendall(render(Alive()))
        time.sleep(2 * SILENT_SECONDS)


async def _make_rig() -> Rig:
    own, theirs = socket.socketpair()
    return Rig(await Channel.open(own), theirs)


def test_what_a_worker_said_while_its_parent_was_frozen_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hired, "SILENT_SECONDS", SILENT_SECONDS)

    async def run() -> None:
        rig = await _make_rig()
        following = asyncio.create_task(rig.worker.follow())
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_soon(rig.speak_and_freeze)
        for _ in range(1000):
            if rig.heard or rig.process.returncode is not None:
                break
            await asyncio.sleep(0.01)
        assert rig.heard == [Alive()]
        rig.process.kill()
        cast(Any, rig)._end.close()
        assert await following == -9

    asyncio.run(run())


def test_a_worker_that_is_silent_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hired, "SILENT_SECONDS", SILENT_SECONDS)

    async def run() -> None:
        rig = await _make_rig()
        async with asyncio.timeout(30):
            assert await rig.worker.follow() == -9
        cast(Any, rig)._end.close()

    asyncio.run(run())
