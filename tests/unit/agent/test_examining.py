"""A look at a doubted engine, in virtual time: what moves in it decides, and what answers."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import psutil
import pytest
from covey_agent.examining import (
    ACCELERATOR_PROBE_SECONDS,
    CPU_PROBE_SECONDS,
    WATCH_SECONDS,
    WORKING_READ_BYTES,
    WORKING_SHARE,
    examine,
)
from covey_agent.facts.effort import observe_effort
from covey_agent.ports import Effort, EngineProcess
from covey_agent.supervisor.events import Finding
from covey_api.engines import Compute
from covey_api.instance import Instance
from covey_api.messages import MemberAssignment, MemberGoal
from covey_simulator.virtual_time import run_virtual
from kit import builders
from kit.outside import FakeAdapter, FakeFacts
from kit.processes import wait_for

PROCESS = EngineProcess(1, 5000, 77, "77@boot")


class Machine(FakeFacts):
    """With one engine, whose effort is a function of the time."""

    def __init__(self, effort: Callable[[float], Effort | None]) -> None:
        super().__init__()
        self._effort = effort

    def observe_effort(self, pid: int) -> Effort | None:
        assert pid == PROCESS.pid
        return self._effort(asyncio.get_running_loop().time())


class HangingAdapter(FakeAdapter):
    """Its engine takes requests, and never answers one."""

    async def explain_unready(self, instance: Instance, port: int, key: str) -> str:
        await super().explain_unready(instance, port, key)
        await asyncio.sleep(3600)
        return "no answer"


def look(
    effort: Callable[[float], Effort | None], adapter: FakeAdapter, compute: Compute = Compute.CPU
) -> tuple[Finding, str, float, int]:
    """What is found, its words, how long it took, and how many requests were sent."""
    instance = builders.instance(compute=compute)
    assignment = MemberAssignment(instance=instance, member="0", goal=MemberGoal.SERVE, key="secret")

    async def main() -> tuple[Finding, str, float, int]:
        finding, words = await examine(adapter, Machine(effort), assignment, PROCESS)
        return finding, words, asyncio.get_running_loop().time(), -adapter.unready_probes

    return run_virtual(main())


def share(cpu_share: float) -> Callable[[float], Effort]:
    return lambda now: Effort(1000.0 + now * cpu_share, 0)


def test_engine_that_computes_is_sent_no_request() -> None:
    assert look(share(1.0), HangingAdapter()) == (Finding.COMPUTES, "Computes", WATCH_SECONDS, 0)


def test_engine_that_says_that_nothing_is_asked_of_it_is_asked_nothing() -> None:
    adapter = HangingAdapter()
    adapter.rests, adapter.progress = True, lambda: "7"
    finding, _, seconds, requests = look(share(0.0), adapter)
    assert (finding, seconds, requests) == (Finding.GENERATES, WATCH_SECONDS, 0)


def test_engine_that_is_idle_and_answers_generates() -> None:
    finding, _, seconds, requests = look(share(0.0), FakeAdapter())
    assert (finding, seconds, requests) == (Finding.GENERATES, WATCH_SECONDS, 1)


@pytest.mark.parametrize(
    ("compute", "probe_seconds"), [(Compute.CPU, CPU_PROBE_SECONDS), (Compute.METAL, ACCELERATOR_PROBE_SECONDS)]
)
def test_engine_that_neither_answers_nor_works_is_dead_though_it_takes_requests(
    compute: Compute, probe_seconds: float
) -> None:
    finding, words, seconds, _ = look(share(0.75 * WORKING_SHARE), HangingAdapter(), compute)
    assert (finding, seconds) == (Finding.DEAD, WATCH_SECONDS + probe_seconds)
    assert f"did not complete the smallest request within {probe_seconds:.0f} s" in words


def test_dead_engine_on_a_cpu_is_found_within_thirty_seconds_of_the_doubt() -> None:
    _, _, seconds, _ = look(share(0.0), HangingAdapter())
    assert seconds <= 25.0, "the rest is the doubt's way to the agent"


@pytest.mark.parametrize("batch_seconds", [1.0, 10.0, 59.0])
def test_engine_on_an_accelerator_whose_counters_move_between_batches_is_at_work(batch_seconds: float) -> None:
    """The processor does nothing that counts."""
    adapter = HangingAdapter()
    adapter.progress = lambda: str(asyncio.get_running_loop().time() // batch_seconds)
    finding, _, seconds, requests = look(share(0.001), adapter, Compute.METAL)
    assert finding is Finding.COMPUTES
    assert (requests == 0) == (batch_seconds < WATCH_SECONDS), "a request only where nothing moved"
    assert seconds <= WATCH_SECONDS + ACCELERATOR_PROBE_SECONDS


def test_counters_that_can_be_read_and_stand_still_are_no_work() -> None:
    adapter = HangingAdapter()
    adapter.progress = lambda: "17"
    assert look(share(0.0), adapter)[0] is Finding.DEAD


def test_engine_whose_weights_come_back_from_a_disk_is_at_work() -> None:
    assert look(lambda now: Effort(0.0, int(now) * WORKING_READ_BYTES), HangingAdapter())[0] is Finding.COMPUTES


def test_engine_that_begins_to_compute_while_it_is_asked_is_at_work() -> None:
    """The request waits behind a long prompt that came meanwhile."""
    assert look(lambda now: Effort(max(0.0, now - 10.0), 0), HangingAdapter())[0] is Finding.COMPUTES


def test_engine_that_refuses_for_a_while_is_asked_again() -> None:
    adapter = FakeAdapter()
    adapter.unready_probes = 5
    assert look(share(0.0), adapter)[0] is Finding.GENERATES


def test_engine_that_refuses_all_the_while_is_dead() -> None:
    adapter = FakeAdapter()
    adapter.unready_probes = 1000
    assert look(share(0.0), adapter)[0] is Finding.DEAD


def test_engine_that_ends_meanwhile_is_not_waited_for_and_not_called_dead() -> None:
    adapter = FakeAdapter()
    adapter.unready_probes = 1000
    finding, _, seconds, _ = look(lambda now: Effort(0.0, 0) if now < 8 else None, adapter)
    assert finding is Finding.COMPUTES
    assert seconds < 10


@contextmanager
def child(program: str) -> Generator[int]:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_effort_of_a_process_counts_its_children_and_rests_when_it_does() -> None:
    busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with child(busy) as pid:
        before = observe_effort(pid)
        assert before is not None
        wait_for(lambda: psutil.Process(pid).children(), "its child is there")
        wait_for(lambda: (now := observe_effort(pid)) and now.cpu_seconds > before.cpu_seconds + 0.2, "it works")
        (grandchild,) = psutil.Process(pid).children()
        grandchild.kill()
    with child("import time; time.sleep(60)") as pid:
        wait_for(lambda: observe_effort(pid) is not None, "it runs")
    wait_for(lambda: observe_effort(pid) is None, "it is gone")
