"""Limits of keys: what is refused, when it frees, and that gateways' shares are the whole."""

import pytest
from covey_gateway.routing.quotas import DAY_SECONDS, NO_LIMITS, Limits, Quota, Spent, Window, share_limits
from hypothesis import given
from hypothesis import strategies as st

MIDNIGHT = 20_000 * DAY_SECONDS


def spent(found: Spent | None) -> Spent:
    assert found is not None
    return found


def test_requests_of_a_minute_are_counted_and_free_one_by_one() -> None:
    quota, limits = Quota(), Limits(requests_per_minute=2)
    assert quota.admit(limits, 10.0, 0) is None
    assert quota.admit(limits, 40.9, 0) is None
    assert spent(quota.admit(limits, 41.0, 0)) == Spent("requestsPerMinute", 2, 30)
    assert spent(quota.admit(limits, 70.5, 0)).frees_after_seconds == 1
    assert quota.admit(limits, 71.0, 0) is None
    assert spent(quota.admit(limits, 71.5, 0)).frees_after_seconds == 30


@given(st.lists(st.floats(0, 30), max_size=200), st.integers(1, 5))
def test_no_minute_has_more_than_the_limit_and_who_waits_as_told_is_let_in(pauses: list[float], most: int) -> None:
    quota, limits, now = Quota(), Limits(requests_per_minute=most), 0.0
    begun: list[float] = []
    for pause in pauses:
        now += pause
        found = quota.admit(limits, now, 0)
        if found is None:
            begun.append(now)
        else:
            now += found.frees_after_seconds
            assert quota.admit(limits, now, 0) is None
            begun.append(now)
    for index in range(len(begun) - most):
        assert begun[index + most] - begun[index] >= 60


@given(st.lists(st.tuples(st.floats(0, 90), st.integers(0, 1000)), max_size=60))
def test_a_window_holds_a_minute_and_no_more_than_61_entries(added: list[tuple[float, int]]) -> None:
    window, now = Window(), 0.0
    for pause, count in added:
        now += pause
        window.look(now)
        window.add(count, now)
    known = window.look(now)
    assert 0 <= known <= sum(count for _, count in added)
    assert window.look(now + 61) == 0


def test_tokens_are_charged_when_known_and_refuse_what_comes_after() -> None:
    quota, limits = Quota(), Limits(tokens_per_minute=100)
    assert quota.admit(limits, 5.0, 0) is None
    assert quota.admit(limits, 5.0, 0) is None, "nothing is known yet"
    quota.charge(limits, 60, 6.0, 0)
    assert quota.admit(limits, 7.0, 0) is None
    quota.charge(limits, 60, 9.0, 0)
    assert spent(quota.admit(limits, 10.0, 0)) == Spent("tokensPerMinute", 100, 57)
    assert quota.admit(limits, 67.0, 0) is None


def test_requests_at_a_time_free_as_they_end() -> None:
    quota, limits = Quota(), Limits(concurrency=1)
    assert quota.admit(limits, 0.0, 0) is None
    assert spent(quota.admit(limits, 0.0, 0)).limit == "concurrency"
    quota.end()
    assert quota.admit(limits, 0.0, 0) is None


def test_what_was_refused_counts_for_nothing() -> None:
    quota, limits = Quota(), Limits(requests_per_minute=5, concurrency=1)
    assert quota.admit(limits, 0.0, 0) is None
    for _ in range(9):
        assert spent(quota.admit(limits, 0.0, 0)).limit == "concurrency"
    quota.end()
    assert quota.requests.look(0.0) == 1


def test_tokens_of_the_day_free_at_midnight_utc() -> None:
    quota, limits = Quota(), Limits(tokens_per_day=10)
    noon = MIDNIGHT + DAY_SECONDS / 2
    quota.charge(limits, 10, 0.0, noon)
    assert spent(quota.admit(limits, 0.0, noon + 5)) == Spent("tokensPerDay", 10, DAY_SECONDS // 2 - 5)
    assert quota.admit(limits, 0.0, MIDNIGHT + DAY_SECONDS) is None


def test_the_fleets_tokens_of_the_day_count_and_own_ones_only_once() -> None:
    quota, limits, day = Quota(), Limits(tokens_per_day=100), MIDNIGHT // DAY_SECONDS
    quota.charge(limits, 30, 0.0, MIDNIGHT)
    quota.hear_fleet(day, 70, 30, MIDNIGHT)  # 40 of them elsewhere
    assert quota.admit(limits, 0.0, MIDNIGHT) is None
    quota.charge(limits, 30, 0.0, MIDNIGHT)
    assert spent(quota.admit(limits, 0.0, MIDNIGHT)).limit == "tokensPerDay"
    quota.hear_fleet(day - 1, 0, 0, MIDNIGHT)
    assert quota.admit(limits, 0.0, MIDNIGHT) is not None, "a word about yesterday changes nothing today"


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@given(whole=st.integers(1, 1000))
def test_shares_are_the_whole_and_nobodys_is_nothing(count: int, whole: int) -> None:
    names = tuple(f"g{number}" for number in range(count))
    limits = Limits(whole, whole, whole, whole)
    shares = [share_limits(limits, names, name) for name in names]
    for field in ("requests_per_minute", "tokens_per_minute", "concurrency"):
        parts = [getattr(share, field) for share in shares]
        assert min(parts) >= 1
        assert sum(parts) == max(whole, count)
    assert {share.tokens_per_day for share in shares} == {whole}, "the day is the fleet's"


def test_a_gateway_that_is_not_named_counts_as_one_more() -> None:
    assert share_limits(Limits(requests_per_minute=10), ("a",), "b").requests_per_minute == 5
    assert share_limits(Limits(requests_per_minute=10), (), "b").requests_per_minute == 10
    assert share_limits(NO_LIMITS, ("a", "b"), "a") == NO_LIMITS
