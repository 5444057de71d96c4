"""Causes that a newer agent tells: a reader of this version takes the report, and loses no words."""

import pytest
from covey_api.engines import UnusableEngine
from covey_api.messages import MemberReport
from covey_api.reasons import FailureCause
from pydantic import ValidationError

WORDS = "the card's firmware is in the way"


def report_of(cause: object) -> MemberReport:
    wire = {"instanceId": "0", "namespace": "default", "name": "a", "member": "0", "attempt": 1, "phase": "Failed"}
    return MemberReport.model_validate({**wire, "cause": cause, "message": WORDS})


def test_a_cause_of_a_newer_version_is_read_as_one_that_is_known_and_keeps_its_words() -> None:
    member = report_of("FirmwareInTheWay")
    assert (member.cause, member.message) == (FailureCause.EXITED, WORDS)
    unusable = UnusableEngine.model_validate({"engine": "Mlx", "cause": "FirmwareInTheWay", "message": WORDS})
    assert (unusable.cause, unusable.message) == (FailureCause.NO_USABLE_ENGINE, WORDS)


@pytest.mark.parametrize("cause", [None, *FailureCause])
def test_known_causes_are_what_they_are_also_by_way_of_json(cause: FailureCause | None) -> None:
    member = report_of(cause)
    assert member.cause is cause
    assert MemberReport.model_validate_json(member.to_json()) == member


@pytest.mark.parametrize("cause", [1, ["Exited"], {}])
def test_what_is_no_word_at_all_is_refused(cause: object) -> None:
    with pytest.raises(ValidationError):
        report_of(cause)
