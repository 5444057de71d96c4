"""What `covey up --wait` waits for."""

import io

from covey.up.progress import Display, parse_outcome
from rich.console import Console


def item(generation: int, observed: int, **conditions: str) -> dict[str, object]:
    return {
        "metadata": {"name": "p", "namespace": "default", "generation": generation},
        "spec": {"modelRef": {"name": "m"}},
        "status": {
            "observedGeneration": observed,
            "conditions": [{"type": kind, "status": status, "reason": "R"} for kind, status in conditions.items()],
        },
    }


def test_parse_outcome_is_ready_when_the_condition_is_of_this_generation() -> None:
    assert parse_outcome(item(2, 2, Ready="True")).ready


def test_parse_outcome_is_not_ready_when_the_condition_is_of_an_older_generation() -> None:
    assert not parse_outcome(item(2, 1, Ready="True")).ready


def test_parse_outcome_is_stalled_when_the_condition_says_so() -> None:
    outcome = parse_outcome(item(1, 1, Ready="False", Stalled="True"))
    assert outcome.stalled
    assert not outcome.ready


def test_parse_outcome_takes_an_object_that_nobody_looked_at_as_pending() -> None:
    outcome = parse_outcome({"metadata": {"name": "p"}, "spec": {"modelRef": {"name": "m"}}})
    assert (outcome.ready, outcome.stalled, outcome.reason) == (False, False, "Pending")


def test_display_keeps_one_bar_a_placement_however_often_it_is_updated() -> None:
    screen = io.StringIO()
    display = Display(Console(file=screen, force_terminal=True, width=100))
    outcome = parse_outcome(item(1, 1))
    for _ in range(3):
        display.update(outcome, {"step": "model", "doneBytes": 1, "totalBytes": 2})
    with display:
        first_frame = screen.getvalue()
    assert first_frame.count("p: model") == 1
    assert "1 B of 2 B" in first_frame
