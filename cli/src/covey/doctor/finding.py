"""A finding: what is so, what follows from it, what to do. Nothing here reads the world."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from covey_agent.capturing import blank
from covey_api.text import escape_controls

# Credentials in a URL that a library quotes.
_LOGIN = re.compile(r"(?<=://)[^/@\s'\"]+@")
# One finding is a line or two; what a program says at its end may be more.
_MAX_WORDS = 600


class Level(StrEnum):
    OK = "Ok"
    WARNING = "Warning"
    """It works now; the consequence says what it may cost."""
    BROKEN = "Broken"
    """This machine is no working node until it is mended."""


_ORDER = tuple(Level)


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    found: str
    consequence: str = ""
    """Empty where all is well."""
    fix: str = ""
    """What a person does, or what `--fix` does by itself."""
    mend: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    """Does what `fix` says: safe, and nothing the second time. None: it needs a person."""

    def to_json(self) -> dict[str, object]:
        """The names are a promise: fields may come, none changes or goes."""
        return {
            "check": self.check,
            "level": self.level.value,
            "found": tidy(self.found),
            "consequence": tidy(self.consequence),
            "fix": tidy(self.fix),
            "fixable": self.mend is not None,
        }


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def judge(findings: Iterable[Finding]) -> Level:
    """The worst of them."""
    return max((each.level for each in findings), key=_ORDER.index, default=Level.OK)


def tidy(words: str) -> str:
    """One line without secrets: words may be a program's, and quote what it was given."""
    line = " ".join(_LOGIN.sub("", blank(words)).split())
    return escape_controls(line if len(line) <= _MAX_WORDS else f"{line[:_MAX_WORDS]}…")


def render_text(findings: Iterable[Finding], mended: Iterable[str]) -> str:
    lines = [f"mended    {tidy(each)}" for each in mended]
    for each in findings:
        lines.append(f"{each.level.value.lower():9} {each.check:11} {tidy(each.found)}")
        if each.consequence:
            lines.append(f"{'':21} so: {tidy(each.consequence)}")
        if each.fix:
            who = "`covey doctor --fix` can" if each.mend else "to mend"
            lines.append(f"{'':21} {who}: {tidy(each.fix)}")
    return "\n".join(lines)
