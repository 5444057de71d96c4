"""Two test files of one name can't be collected in one run, and each passes alone."""

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]


def test_every_test_file_has_a_name_of_its_own() -> None:
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert names
    assert {name for name, count in names.items() if count > 1} == set()
