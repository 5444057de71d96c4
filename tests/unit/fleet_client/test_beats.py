from covey_fleet_client.beats import BEAT_SECONDS, next_beat
from hypothesis import given
from hypothesis import strategies as st

MACHINES = st.text(min_size=1, max_size=32)
CLOCKS = st.floats(min_value=0, max_value=1e7)
WAITS = st.floats(min_value=BEAT_SECONDS, max_value=60)


@given(CLOCKS, WAITS, MACHINES)
def test_a_beat_comes_in_time_and_less_than_one_beat_too_early(now: float, wait: float, machine: str) -> None:
    assert now < next_beat(now, wait, machine) <= now + wait
    assert next_beat(now, wait, machine) > now + wait - BEAT_SECONDS - 1e-6


@given(CLOCKS, st.floats(min_value=0, max_value=1), WAITS, WAITS, MACHINES)
def test_parts_of_one_machine_meet_on_its_beats(
    now: float, later: float, wait: float, other: float, machine: str
) -> None:
    between = next_beat(now, wait, machine) - next_beat(now + later, other, machine)
    assert abs(between / BEAT_SECONDS - round(between / BEAT_SECONDS)) < 1e-6


def test_machines_of_one_clock_have_phases_of_their_own() -> None:
    phases = {round(next_beat(1000.0, BEAT_SECONDS, f"machine {number}"), 1) for number in range(100)}
    assert len(phases) > 20


@given(CLOCKS, st.floats(min_value=0.001, max_value=BEAT_SECONDS - 0.001), MACHINES)
def test_where_no_beat_comes_in_time_the_wait_ends_by_itself(now: float, wait: float, machine: str) -> None:
    assert now < next_beat(now, wait, machine) <= now + wait
    assert next_beat(now, wait, "") == now + wait
