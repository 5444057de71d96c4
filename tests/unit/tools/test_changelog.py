"""The changelog has one section for each version, and the newest is what the fragments say."""

import pytest
from changelog import FRAGMENTS, START, render_section, replace_section
from version import observe_version

OLD = "## 0.1.0 (2026-01-01)\n\n### New\n\n- Old.\n"


def test_a_section_is_written_again_in_its_place_and_older_ones_stay() -> None:
    first = replace_section(f"# Changelog\n\n{START}", "0.1.0", OLD)
    assert first == f"# Changelog\n\n{START}\n{OLD}"
    second = replace_section(first, "0.2.0", "## 0.2.0 (2026-02-01)\n\n- New.\n")
    assert second == f"# Changelog\n\n{START}\n## 0.2.0 (2026-02-01)\n\n- New.\n\n{OLD}"
    third = replace_section(second, "0.2.0", "## 0.2.0 (2026-02-02)\n\n- New.\n- More.\n")
    assert third == f"# Changelog\n\n{START}\n## 0.2.0 (2026-02-02)\n\n- New.\n- More.\n\n{OLD}"


def test_a_page_without_its_mark_is_not_written() -> None:
    with pytest.raises(ValueError, match="must have the line"):
        replace_section("# Changelog\n", "0.1.0", OLD)


def test_every_fragment_is_a_point_of_its_section() -> None:
    section = render_section(observe_version())
    assert section.startswith(f"## {observe_version()} (")
    assert section.count("\n- ") == len(list(FRAGMENTS.glob("*.md")))
