"""When a source is read, and what of it is put in force: the rules alone, in virtual time."""

from dataclasses import dataclass, field
from typing import Any

from covey_api.kinds import Kind, ObjectKey
from covey_controller.ports import SourceError
from covey_controller.stores.files.rest import (
    REST_SECONDS,
    VANISH_SECONDS,
    Choice,
    Event,
    ReadSet,
    Rest,
    SetRead,
    SetWritten,
    Stirred,
    step,
)
from hypothesis import given
from hypothesis import strategies as st
from kit import builders


@dataclass(frozen=True)
class Written:
    """A document of one Placement."""

    object: Kind
    raw: dict[str, Any] = field(default_factory=dict[str, Any])
    file: str = "placement.yaml"
    line: int = 1

    @property
    def key(self) -> ObjectKey:
        return self.object.key


def read(*names: str, digest: str = "") -> ReadSet:
    return ReadSet(digest or "-".join(names) or "none", tuple(Written(builders.placement(name)) for name in names))


def broken(digest: str = "broken") -> ReadSet:
    return ReadSet(digest, errors=(SourceError("a.yaml", 1, "", "", "wrong"),))


def keys(*names: str) -> frozenset[ObjectKey]:
    return frozenset(ObjectKey("Placement", "default", name) for name in names)


def resting(*names: str, allow_empty: bool = False) -> Rest:
    """A source that changed at second 100 and of which `names` run."""
    return Rest(allow_empty, keys(*names), stirred_at=100.0, unrest_since=100.0)


def run(rest: Rest, *events: tuple[float, Event]) -> tuple[Rest, Choice | None]:
    """The state after all events and what the last one chose."""
    choice: Choice | None = None
    for now, event in events:
        rest, choice = step(rest, event, now)
    return rest, choice


def in_force(choice: Choice | None) -> frozenset[ObjectKey]:
    assert choice is not None
    return frozenset(document.key for document in choice.documents) | choice.kept


def test_source_is_read_half_a_second_after_its_last_change() -> None:
    rest, _ = run(resting(), (100.3, Stirred()), (100.4, Stirred()))
    assert rest.due_at == 100.4 + REST_SECONDS


def test_nothing_is_due_once_a_set_was_read_whole() -> None:
    rest, choice = run(resting("a"), (100.5, SetRead(read("a", "b"))))
    assert in_force(choice) == keys("a", "b")
    assert rest.due_at is None


def test_additions_count_at_once_while_what_vanished_is_kept() -> None:
    rest, choice = run(resting("a"), (100.5, SetRead(read("b"))))
    assert choice is not None
    assert choice.kept == keys("a")
    assert choice.digest == "", "a set isn't in force while something it doesn't hold still runs"
    assert rest.due_at == 100.0 + VANISH_SECONDS


def test_what_vanished_goes_after_two_seconds_of_rest() -> None:
    rest, choice = run(resting("a"), (100.5, SetRead(read("b"))), (102.0, SetRead(read("b"))))
    assert in_force(choice) == keys("b")
    assert choice is not None
    assert choice.digest == "b"
    assert rest.due_at is None


def test_unrest_postpones_a_removal() -> None:
    rest, choice = run(
        resting("a"), (100.5, SetRead(read("b"))), (101.9, Stirred()), (102.4, SetRead(read("b", digest="b2")))
    )
    assert in_force(choice) == keys("a", "b")
    assert rest.due_at == 101.9 + VANISH_SECONDS


def test_what_came_back_in_time_never_went() -> None:
    _, choice = run(
        resting("a"),
        (100.5, SetRead(read("b"))),
        (101.0, Stirred()),
        (101.5, SetRead(read("a", "b"))),
    )
    assert in_force(choice) == keys("a", "b")


def test_change_that_was_not_noticed_begins_a_new_rest() -> None:
    rest, choice = run(resting("a", "b"), (100.5, SetRead(read("b"))), (102.0, SetRead(read("c"))))
    assert choice is None
    assert rest.due_at == 102.0 + REST_SECONDS
    assert rest.running == keys("a", "b")


def test_broken_set_changes_nothing_and_is_not_read_again_until_it_changes() -> None:
    rest, choice = run(resting("a"), (100.5, SetRead(broken())))
    assert choice is None
    assert rest.running == keys("a")
    assert rest.due_at is None


def test_empty_source_keeps_what_ran_however_long_it_rests() -> None:
    rest, choice = run(resting("a"), (500.0, SetRead(read())))
    assert in_force(choice) == keys("a")
    assert rest.is_kept_empty
    assert rest.due_at is None


def test_empty_source_deletes_after_rest_when_that_is_allowed() -> None:
    rest, choice = run(resting("a", allow_empty=True), (100.5, SetRead(read())))
    assert in_force(choice) == keys("a")
    assert rest.due_at == 100.0 + VANISH_SECONDS
    _, choice = run(rest, (102.0, SetRead(read())))
    assert in_force(choice) == frozenset()


def test_source_that_rested_long_before_the_start_is_taken_as_it_is() -> None:
    _, choice = run(resting("a", "b"), (200.0, SetRead(read("b"))))
    assert in_force(choice) == keys("b")


def test_deletion_by_name_counts_at_once_and_only_that() -> None:
    rest, _ = run(resting("a", "b", "c"), (100.5, SetRead(read("b", "c"))))
    rest, choice = run(rest, (100.6, SetWritten(read("c"), keys("b"))))
    assert in_force(choice) == keys("a", "c")
    assert rest.due_at == 100.0 + VANISH_SECONDS, "what vanished by itself still has its time"


def test_deletion_by_name_may_leave_nothing() -> None:
    rest, choice = run(resting("a"), (100.5, SetRead(read("a"))), (100.6, SetWritten(read(), keys("a"))))
    assert in_force(choice) == frozenset()
    assert not rest.is_kept_empty


def test_unrest_is_counted_from_the_first_change_after_a_reading() -> None:
    rest, _ = run(resting(), (100.5, SetRead(read("a"))), (110.0, Stirred()), (110.3, Stirred()), (110.6, Stirred()))
    assert rest.unrest_since == 110.0


NAMES = ("a", "b", "c")
SETS = st.one_of(st.sets(st.sampled_from(NAMES)).map(lambda names: read(*sorted(names))), st.just(broken()))
STEPS = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.one_of(st.just(Stirred()), SETS.map(SetRead))), min_size=1, max_size=30
)


@given(STEPS, st.booleans())
def test_nothing_ever_goes_without_two_seconds_of_rest(steps: list[tuple[float, Event]], allow_empty: bool) -> None:
    rest, now = resting(*NAMES, allow_empty=allow_empty), 100.0
    stirred_at = now
    for pause, event in steps:
        now += pause
        before = rest
        rest, choice = step(rest, event, now)
        stirred_at = rest.stirred_at if rest.stirred_at != before.stirred_at else stirred_at
        gone = before.running - rest.running
        if gone:
            assert now - stirred_at >= VANISH_SECONDS - 1e-9
            assert isinstance(event, SetRead)
            assert event.read.documents or allow_empty
        assert choice is None or in_force(choice) == rest.running


@given(STEPS)
def test_rested_source_ends_in_force_whatever_came_before(steps: list[tuple[float, Event]]) -> None:
    rest, now = resting(*NAMES), 100.0
    for pause, event in steps:
        now += pause
        rest, _ = step(rest, event, now)
    last = read("b", digest="last")
    rest, _ = step(rest, Stirred(), now)
    for _ in range(3):
        if rest.due_at is not None:
            rest, _ = step(rest, SetRead(last), rest.due_at)
    assert rest.running == keys("b")
    assert rest.due_at is None
