"""In which order the parts of `covey up` are stopped: answers end before their engines do."""

import asyncio
import signal
from pathlib import Path
from typing import cast

import pytest
from covey.up.group import PartGroup
from covey.up.part import Part


class Stoppable:
    """A part that ends when it is let, and tells what it was told."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.exit_status: int | None = 0
        self.ended = asyncio.Event()
        self._name = name
        self._told = told

    def stop(self, number: signal.Signals) -> None:
        self._told.append(f"{self._name} {number.name}")

    def signal(self, number: signal.Signals) -> None:
        if not self.ended.is_set():
            self.stop(number)
            self.ended.set()

    async def wait_idle(self) -> None:
        await self.ended.wait()


@pytest.fixture
def told() -> list[str]:
    return []


async def stop(folder: Path, told: list[str], *, was_asked: bool, drain_seconds: float) -> None:
    group = PartGroup(folder, lambda _, __: None)
    if was_asked:
        group.ending.set()
    gateway, agent = Stoppable("gateway", told), Stoppable("agent", told)
    agent.ended.set()
    stopping = asyncio.ensure_future(
        group.stop_serving(cast(Part, agent), cast(Part, gateway), drain_seconds=drain_seconds)
    )
    for _ in range(10):
        await asyncio.sleep(0)
    told.append("the last answer")
    if drain_seconds > 0:
        gateway.ended.set()
    await asyncio.wait_for(stopping, 60)
    group.close()


def test_engines_are_stopped_behind_the_gateway(tmp_path: Path, told: list[str]) -> None:
    asyncio.run(stop(tmp_path, told, was_asked=True, drain_seconds=1000))
    assert told == ["gateway SIGTERM", "the last answer", "agent SIGINT"]


def test_where_engines_go_on_nobody_waits_for_the_other(tmp_path: Path, told: list[str]) -> None:
    asyncio.run(stop(tmp_path, told, was_asked=False, drain_seconds=1000))
    assert told == ["gateway SIGTERM", "agent SIGTERM", "the last answer"]


def test_a_gateway_that_takes_longer_than_it_was_told_is_ended(tmp_path: Path, told: list[str]) -> None:
    asyncio.run(stop(tmp_path, told, was_asked=True, drain_seconds=-1))
    assert told == ["gateway SIGTERM", "the last answer", "gateway SIGKILL", "agent SIGINT"]
