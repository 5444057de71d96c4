"""The Lease as others see it: their own clock decides, never a timestamp."""

from datetime import UTC, datetime

import pytest
from covey_controller.ports import MAX_TERM, LeaderAddress
from covey_controller.stores.kube.lease_record import (
    DURATION_SECONDS,
    GIVE_UP_SECONDS,
    RENEW_SECONDS,
    LeaseRecord,
    LeaseWatch,
    parse_lease,
    render_lease,
)

RECORD = LeaseRecord("one", "", 7, LeaderAddress("10.0.0.1:1", "10.0.0.1:2"), 3, "12")
YEARS_AGO, YEARS_AHEAD = datetime(1999, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)


def record_at(when: datetime, holder: str = "one") -> LeaseRecord:
    return parse_lease(render_lease(LeaseRecord(holder, "", 7, LeaderAddress("", ""), 0, "12"), when, is_taken=True))


def test_lease_reads_as_it_was_written() -> None:
    found = parse_lease(render_lease(RECORD, YEARS_AGO, is_taken=False))
    assert found == LeaseRecord("one", "1999-01-01T00:00:00.000000Z", 7, RECORD.address, 3, "12")


def test_lease_that_somebody_scribbled_on_counts_as_nothing() -> None:
    found = parse_lease(
        {"metadata": {"resourceVersion": "1", "annotations": {"covey.dev/term": "-many"}}, "spec": None}
    )
    assert (found.holder, found.term, found.transitions) == ("", 0, 0)


@pytest.mark.parametrize("term", [str(MAX_TERM), "9" * 20, "9" * 5000])
def test_term_that_nobody_could_lead_above_counts_as_nothing(term: str) -> None:
    assert parse_lease({"metadata": {"resourceVersion": "1", "annotations": {"covey.dev/term": term}}}).term == 0


def test_observer_waits_for_the_whole_duration_on_its_own_clock_whatever_the_timestamps_say() -> None:
    for stamp in (YEARS_AGO, YEARS_AHEAD):
        watch = LeaseWatch()
        assert not watch.observe(record_at(stamp), 100.0)
        assert not watch.observe(record_at(stamp), 100.0 + DURATION_SECONDS - 0.1)
        assert watch.observe(record_at(stamp), 100.0 + DURATION_SECONDS)


def test_renewal_or_another_holder_begins_the_wait_anew() -> None:
    watch = LeaseWatch()
    watch.observe(record_at(YEARS_AGO), 100.0)
    assert not watch.observe(record_at(YEARS_AHEAD), 114.0)
    assert not watch.observe(record_at(YEARS_AHEAD, "two"), 128.0)
    assert not watch.observe(record_at(YEARS_AHEAD, "two"), 142.0)
    assert watch.observe(record_at(YEARS_AHEAD, "two"), 143.0)


def test_released_lease_may_be_taken_at_once() -> None:
    assert LeaseWatch().observe(record_at(YEARS_AGO, ""), 100.0)


def test_holder_gives_up_before_anybody_may_take_over() -> None:
    assert RENEW_SECONDS < GIVE_UP_SECONDS < DURATION_SECONDS
