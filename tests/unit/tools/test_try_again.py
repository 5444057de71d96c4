"""What of a failed run may be tried again."""

import pytest
from try_again import MOST, choose_again

REAL = "tests/integration/test_chaos.py::test_faults"


@pytest.mark.parametrize(
    ("failed", "again"),
    [
        ([], []),
        ([REAL], [REAL]),
        (["tests/contract/test_keeper.py::test_b", REAL], ["tests/contract/test_keeper.py::test_b", REAL]),
        ([REAL, "tests/unit/planner/test_fit.py::test_c"], []),
        (["tests/integration/test_chaos.py"], []),  # it could not be read at all
        ([f"{REAL}[{number}]" for number in range(MOST + 1)], []),
    ],
)
def test_few_tests_of_real_processes_are_tried_again_and_nothing_else(failed: list[str], again: list[str]) -> None:
    assert choose_again(failed) == again
