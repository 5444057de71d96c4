"""One piece of work per key, whoever asks, fails or leaves."""

import asyncio

import pytest
from covey_agent.artifacts.flight import Flights, Meter
from covey_agent.ports import AgentError, OnTransfer, Transfer
from covey_api.reasons import FailureCause


def ignore(transfer: Transfer) -> None:
    assert transfer.total_bytes >= 0


def test_many_askers_make_one_work_and_all_hear_its_progress() -> None:
    heard: list[list[Transfer]] = [[], [], []]
    done: list[int] = []

    async def work(tell: OnTransfer) -> int:
        if done:
            return done[0]
        await asyncio.sleep(0.05)
        tell(Transfer(1, 2, 3))
        done.append(7)
        return 7

    async def scenario() -> list[int]:
        flights = Flights()
        return await asyncio.gather(*(flights.run("key", listener.append, work) for listener in heard))

    assert asyncio.run(scenario()) == [7, 7, 7]
    assert done == [7]
    assert heard == [[Transfer(1, 2, 3)]] * 3


def test_another_takes_over_when_the_first_is_cancelled() -> None:
    started: list[str] = []

    async def scenario() -> None:
        flights = Flights()

        async def work(tell: OnTransfer) -> str:
            started.append("again")
            if len(started) == 1:
                await asyncio.Event().wait()
            return "done"

        first = asyncio.ensure_future(flights.run("key", ignore, work))
        await asyncio.sleep(0.02)
        second = asyncio.ensure_future(flights.run("key", ignore, work))
        await asyncio.sleep(0.02)
        first.cancel()
        assert await second == "done"
        assert first.cancelled()

    asyncio.run(scenario())
    assert started == ["again", "again"]


def test_who_waited_for_a_failure_shares_it_and_the_next_tries_anew() -> None:
    tries: list[int] = []

    async def scenario() -> None:
        flights = Flights()

        async def work(tell: OnTransfer) -> str:
            tries.append(1)
            await asyncio.sleep(0.02)
            raise AgentError(FailureCause.ARTIFACT_UNAVAILABLE, "no")

        results = await asyncio.gather(*(flights.run("key", ignore, work) for _ in range(3)), return_exceptions=True)
        assert [str(result) for result in results] == ["no"] * 3
        with pytest.raises(AgentError, match="no"):
            await flights.run("key", ignore, work)

    asyncio.run(scenario())
    assert len(tries) == 2


def test_meter_tells_a_few_times_a_second_and_always_the_end() -> None:
    told: list[Transfer] = []
    meter = Meter(1000, told.append)
    for done_bytes in range(1000):
        meter.observe_bytes(done_bytes)
    meter.observe_bytes(1000, last=True)
    assert len(told) <= 3
    assert told[-1].done_bytes == told[-1].total_bytes == 1000
