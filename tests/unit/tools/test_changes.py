"""Every note of a change is of a type that the changelog has: of another it would be left out in silence."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_note_is_of_a_type_that_the_changelog_has() -> None:
    towncrier = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    types = {each["directory"] for each in towncrier["type"]}
    notes = {path.name for path in (ROOT / towncrier["directory"]).iterdir() if not path.name.startswith(".")}
    assert {name for name in notes if name.split(".")[1:] not in [[each, "md"] for each in types]} == set()
