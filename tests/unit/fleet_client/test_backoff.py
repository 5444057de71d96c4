from covey_fleet_client.backoff import FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS, Backoff
from hypothesis import given
from hypothesis import strategies as st

jitter = st.floats(min_value=0, max_value=1, exclude_max=True)


def test_backoff_doubles_to_its_longest_delay_and_begins_again_after_a_success() -> None:
    backoff = Backoff()
    wholes = [2 * backoff.next_delay_seconds(0.0) for _ in range(9)]
    assert wholes == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    backoff.reset()
    assert backoff.next_delay_seconds(0.0) == FIRST_DELAY_SECONDS / 2


@given(st.integers(min_value=0, max_value=10**9), jitter)
def test_backoff_never_waits_longer_than_its_bound_nor_less_than_half_the_first(failures: int, chance: float) -> None:
    delay = Backoff(failures).next_delay_seconds(chance)
    assert FIRST_DELAY_SECONDS / 2 <= delay <= LONGEST_DELAY_SECONDS
