"""Writes side by side: within the bound, in order, and never past a failure."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from covey_api.kinds import ObjectKey
from covey_controller.at_once import run_at_once, split_actions
from covey_controller.reconcile.outcomes import Action, CreateInstance, DeleteObject, HoldObject, UpdateInstance
from covey_simulator.virtual_time import run_virtual
from hypothesis import given
from hypothesis import strategies as st
from kit import builders

Work = Callable[[], Awaitable[None]]


class Log:
    """What ran beside what."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.most = 0

    async def work(self, number: int, seconds: float, error: Exception | None = None) -> None:
        self.begun.append(number)
        self.most = max(self.most, len(self.begun) - len(self.ended))
        try:
            await asyncio.sleep(seconds)
            if error is not None:
                raise error
        finally:
            self.ended.append(number)


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 8))
def test_all_run_once_begun_in_order_and_never_more_than_the_bound(seconds: list[int], most: int) -> None:
    log = Log()
    works = [partial(log.work, number, each) for number, each in enumerate(seconds)]
    run_virtual(run_at_once(works, most))
    assert log.begun == list(range(len(seconds)))
    assert sorted(log.ended) == log.begun
    assert log.most <= most


def test_they_do_run_side_by_side() -> None:
    log = Log()
    run_virtual(run_at_once([partial(log.work, number, 1) for number in range(8)], 4))
    assert log.most == 4


def test_after_a_failure_none_is_begun_those_under_way_end_and_the_first_in_order_is_raised() -> None:
    log = Log()
    works: list[Work] = [
        partial(log.work, 0, 3, KeyError("first in order")),
        partial(log.work, 1, 1, ValueError("first in time")),
        partial(log.work, 2, 5),
        partial(log.work, 3, 1),
    ]
    with pytest.raises(KeyError):
        run_virtual(run_at_once(works, 3))
    assert log.begun == [0, 1, 2]
    assert sorted(log.ended) == [0, 1, 2]


def test_actions_of_one_sort_run_together_and_others_wait_for_them() -> None:
    one, two = builders.instance("p-0"), builders.instance("p-1")
    placement = builders.placement()
    actions: list[Action] = [
        HoldObject(placement),
        CreateInstance(one),
        CreateInstance(two),
        UpdateInstance(one),
        DeleteObject(ObjectKey("Instance", "default", "p-2"), "2"),
        DeleteObject(ObjectKey("Instance", "default", "p-3"), "3"),
        DeleteObject(ObjectKey("Placement", "default", "q"), "4"),
        CreateInstance(two),
        CreateInstance(two),
    ]
    runs = split_actions(actions)
    assert [len(run) for run in runs] == [1, 2, 1, 2, 1, 1, 1]
    assert [action for run in runs for action in run] == actions
