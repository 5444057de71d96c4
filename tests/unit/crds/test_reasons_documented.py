"""`docs/reference/errors.md` has one section for every reason and code, and none for others; a test names each."""

import re
from enum import StrEnum
from pathlib import Path

import pytest
from covey_api import reasons

ERRORS = Path(__file__).resolve().parents[3] / "docs" / "reference" / "errors.md"
TESTS = Path(__file__).resolve().parents[2]
ENUMS = [value for value in vars(reasons).values() if isinstance(value, type) and issubclass(value, StrEnum)]
ENUMS.remove(StrEnum)


def read_sections() -> dict[str, dict[str, str]]:
    """Text by section, by the name of the enum in the heading above it."""
    sections: dict[str, dict[str, str]] = {}
    for part in re.split(r"^## ", ERRORS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading, *entries = re.split(r"^### ", part, flags=re.MULTILINE)
        (enum,) = re.findall(r"\(`(\w+)`\)", heading.splitlines()[0])
        pairs = [entry.split("\n", 1) for entry in entries]
        assert len({name for name, _ in pairs}) == len(pairs), f"a section of {enum} must be there once"
        sections[enum] = {name.strip(): text.strip() for name, text in pairs}
    return sections


def test_every_enum_of_reasons_has_a_chapter_and_no_other_is_there() -> None:
    assert set(read_sections()) == {enum.__name__ for enum in ENUMS}


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_every_reason_has_a_section_and_no_section_is_of_an_unknown_one(enum: type[StrEnum]) -> None:
    sections = read_sections()[enum.__name__]
    assert set(sections) == {member.value for member in enum}
    assert [name for name, text in sections.items() if len(text) < 40] == [], "a section must say what to do"


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_every_reason_is_named_by_a_test_that_produces_it(enum: type[StrEnum]) -> None:
    """Only that a test names it can be read here; what the test does is its own matter."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    unnamed = [each for each in enum if f"{enum.__name__}.{each.name}" not in text and each.value not in text]
    assert unnamed == []
