"""The changelog has one section for each version, and the newest is what the fragments say."""

from pathlib import Path

import changelog as tool
import pytest
from changelog import FRAGMENTS, START, main, render_section, replace_section
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


def test_a_section_that_says_something_is_not_replaced_by_one_that_says_nothing() -> None:
    page = replace_section(f"# Changelog\n\n{START}", "0.1.0", OLD)
    assert replace_section(page, "0.1.0", "## 0.1.0 (2026-02-01)\n") == page
    assert replace_section(page, "0.2.0", "## 0.2.0 (2026-02-01)\n").count("## 0.") == 2


@pytest.mark.parametrize("version", ["", "0.2", "v0.2.0"])
def test_a_version_that_cannot_be_begun_costs_no_fragment(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, fragments = tmp_path / "CHANGELOG.md", tmp_path / "changes"
    fragments.mkdir()
    page.write_text(START)
    (fragments / "new.fix.md").write_text("New.\n")
    monkeypatch.setattr(tool, "PAGE", page)
    monkeypatch.setattr(tool, "FRAGMENTS", fragments)
    assert main(["--begin", version]) == 2
    assert version in capsys.readouterr().err
    assert (page.read_text(), [path.name for path in fragments.iterdir()]) == (START, ["new.fix.md"])
    assert main(["--begin", observe_version()]) == 0
    assert (page.read_text(), [path.name for path in fragments.iterdir()]) == (START, ["new.fix.md"])
    assert main(["--begin", "987.0.0"]) == 0
    assert "\n- " in page.read_text()
    assert list(fragments.iterdir()) == []
    said = page.read_text()
    monkeypatch.setattr(tool, "render_section", "## {} (2026-02-01)\n".format)
    assert main(["--begin", "987.0.0"]) == 0, "the first try may have failed at a later step"
    assert page.read_text() == said
