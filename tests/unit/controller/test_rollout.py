"""Who leaves and how many come, by counting alone."""

import pytest
from covey_controller.reconcile.rollout import (
    SURGE,
    Replica,
    Standing,
    choose_evicted,
    choose_leaving,
    count_creatable,
    order_of_leaving,
)
from hypothesis import given
from hypothesis import strategies as st

NEW, OLD = True, False
READY, STARTING, RECOVERING = Standing.READY, Standing.STARTING, Standing.RECOVERING
FAILED, LOST = Standing.FAILED, Standing.LOST


def replicas(*kinds: tuple[bool, Standing]) -> list[Replica]:
    """Named by place: `0` is the oldest."""
    return [
        Replica(name=str(place), age=(f"{place:02d}", place), standing=standing, is_current=is_current)
        for place, (is_current, standing) in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("kinds", "wanted", "leaving"),
    [
        pytest.param([(NEW, READY)], 1, [], id="healthy ones are kept"),
        pytest.param([(NEW, READY), (NEW, READY)], 0, ["0", "1"], id="none wished: all leave"),
        pytest.param([(NEW, READY), (NEW, READY)], 1, ["1"], id="the newest leaves first"),
        pytest.param([(NEW, STARTING), (NEW, READY)], 1, ["0"], id="an unready one before a ready one"),
        pytest.param([(NEW, FAILED), (NEW, STARTING)], 1, ["0"], id="a failed one before one that starts"),
        pytest.param([(OLD, READY), (NEW, STARTING)], 1, [], id="the old one serves until the new one does"),
        pytest.param([(OLD, READY), (NEW, READY)], 1, ["0"], id="the old one leaves when the new one is ready"),
        pytest.param([(OLD, READY), (NEW, FAILED)], 1, [], id="a failed new revision leaves the old one serving"),
        pytest.param([(OLD, STARTING), (NEW, STARTING)], 1, ["0"], id="an old one that never served leaves at once"),
        pytest.param([(OLD, FAILED)], 1, ["0"], id="a failed old one leaves at once"),
        pytest.param([(OLD, RECOVERING), (NEW, STARTING)], 1, [], id="an old one that comes back is kept"),
        pytest.param([(OLD, RECOVERING), (NEW, READY)], 1, ["0"], id="an old one that recovers is replaced"),
        pytest.param([(OLD, READY), (OLD, READY), (NEW, READY)], 2, ["0"], id="one old one per new one, oldest first"),
        pytest.param([(OLD, READY), (OLD, READY), (NEW, STARTING)], 2, [], id="two wished, two serve: nobody leaves"),
        pytest.param([(OLD, RECOVERING)] * 3, 1, ["1", "2"], id="surplus old ones leave although none is ready"),
        pytest.param([(NEW, LOST), (NEW, STARTING)], 1, [], id="a lost one stays until its replacement serves"),
        pytest.param([(NEW, LOST), (NEW, READY)], 1, ["0"], id="a lost one leaves when its replacement serves"),
    ],
)
def test_who_leaves(kinds: list[tuple[bool, Standing]], wanted: int, leaving: list[str]) -> None:
    assert [each.name for each in choose_leaving(replicas(*kinds), wanted)] == leaving


@pytest.mark.parametrize(
    ("kinds", "wanted", "creatable"),
    [
        pytest.param([], 2, 2, id="all that are missing"),
        pytest.param([(NEW, FAILED)], 1, 0, id="a failed one is the breaker's"),
        pytest.param([(NEW, LOST)], 1, 1, id="a lost one is replaced"),
        pytest.param([(OLD, READY)], 1, 1, id="one beside the old one"),
        pytest.param([(OLD, READY), (OLD, READY)], 2, 1, id="one at a time"),
        pytest.param([(OLD, READY), (NEW, STARTING)], 1, 0, id="it is there already"),
        pytest.param([(OLD, READY)], 4, 4, id="growing while rolling"),
    ],
)
def test_how_many_come(kinds: list[tuple[bool, Standing]], wanted: int, creatable: int) -> None:
    assert count_creatable(replicas(*kinds), wanted) == creatable


@pytest.mark.parametrize("standing", Standing)
def test_evicted_replica_serves_until_it_is_replaced_and_leaves_if_nothing_replaces_it(standing: Standing) -> None:
    evicted = Replica("0", ("00", 0), standing, is_current=False, is_evicted=True)
    assert bool(choose_leaving([evicted], 1)) is (standing is not READY)
    coming = [Replica("1", ("01", 1), each, is_current=True) for each in Standing]
    for other in coming:
        is_awaited = other.standing in (STARTING, RECOVERING, READY)
        assert choose_evicted([evicted, other]) == (() if is_awaited and other.standing is not READY else ("0",))
    if standing is READY:
        assert [each.name for each in choose_leaving([evicted, coming[READY]], 1)] == ["0"]


def test_what_serves_least_makes_room_first() -> None:
    olds = replicas((OLD, READY), (OLD, RECOVERING), (NEW, READY))
    assert [each.name for each in order_of_leaving(olds)] == ["1", "0"]


some_replicas = st.lists(st.tuples(st.booleans(), st.sampled_from(Standing)), max_size=8).map(
    lambda kinds: replicas(*kinds)
)


@given(some_replicas, st.integers(1, 5))
def test_no_ready_replica_leaves_while_fewer_than_wished_would_stay_ready(found: list[Replica], wanted: int) -> None:
    leaving = {each.name for each in choose_leaving(found, wanted)}
    ready = [each for each in found if each.standing is READY]
    staying = [each for each in ready if each.name not in leaving]
    assert len(staying) >= min(len(ready), wanted)


@given(some_replicas, st.integers(0, 5))
def test_replicas_never_grow_beyond_the_wish_and_its_surge(found: list[Replica], wanted: int) -> None:
    leaving = {each.name for each in choose_leaving(found, wanted)}
    staying = [each for each in found if each.name not in leaving]
    alive = [each for each in staying if each.standing is not LOST]
    created = count_creatable(staying, wanted)
    assert created == 0 or len(alive) + created <= wanted + SURGE


@given(some_replicas, st.integers(0, 5), st.data())
def test_order_of_replicas_means_nothing(found: list[Replica], wanted: int, data: st.DataObject) -> None:
    assert choose_leaving(data.draw(st.permutations(found)), wanted) == choose_leaving(found, wanted)
