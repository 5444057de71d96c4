"""Writes the section of this version in `CHANGELOG.md` from the fragments in `changes/`; `make changelog`.

The fragments stay until the next version is begun (`--begin VERSION`, by `make version`), so it can be written again
and again and lines that are developed side by side never meet in one file. Towncrier reads and renders them.
"""

import re
import subprocess
import sys
from pathlib import Path

from version import ROOT, check_version, observe_version

PAGE, FRAGMENTS = ROOT / "CHANGELOG.md", ROOT / "changes"
START = "<!-- towncrier release notes start -->\n"
RENDER_SECONDS = 60


def render_section(version: str) -> str:
    """What the fragments say, under the version and today's date."""
    towncrier = Path(sys.executable).with_name("towncrier")
    command = [towncrier, "build", "--draft", "--version", version]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RENDER_SECONDS, check=True)
    return done.stdout.strip() + "\n"


def replace_section(page: str, version: str, section: str) -> str:
    """The page with this version's section anew, above the ones before it. ValueError without the line `START`.

    One that says something stays when there is nothing to say: its fragments were removed, it was not taken back.
    """
    before, start, rest = page.partition(START)
    if not start:
        raise ValueError(f"the page must have the line '{START.strip()}'")
    sections = _split(rest)
    older = [each for each in sections if not each.startswith(f"## {version} (")]
    if not _has_points(section) and any(_has_points(each) for each in sections if each not in older):
        return page
    return "\n".join([before + start, section, *older])


def _split(sections: str) -> list[str]:
    found = re.split(r"^(?=## )", sections, flags=re.MULTILINE)
    return [each.strip() + "\n" for each in found if each.strip()]


def _has_points(section: str) -> bool:
    return "\n- " in section


def is_current(version: str) -> bool:
    """Whether the page has all that the fragments say; its date is the day on which it was written."""
    page = PAGE.read_text(encoding="utf-8")
    wanted = render_section(version).partition("\n")[2]
    return any(
        each.startswith(f"## {version} (") and each.partition("\n")[2] == wanted
        for each in _split(page.partition(START)[2])
    )


def main(arguments: list[str]) -> int:
    begins = arguments[:1] == ["--begin"]
    if begins:
        # Before anything is removed: afterwards it is in no file any more.
        following = "".join(arguments[1:])
        try:
            check_version(following)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        if following == observe_version():  # begun already; a later step may be what is tried again
            return 0
    version = observe_version()
    section = render_section(version)
    PAGE.write_text(replace_section(PAGE.read_text(encoding="utf-8"), version, section), encoding="utf-8")
    if begins:
        for path in FRAGMENTS.glob("*.md"):
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
