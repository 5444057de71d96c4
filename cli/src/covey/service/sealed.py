"""Files that we write and people may edit: a digest in the file itself tells whether somebody did.

A record beside them was the alternative: it gets lost, or is copied without its file, and then says the wrong thing.
"""

import hashlib
import plistlib
import re
from enum import StrEnum
from xml.parsers.expat import ExpatError

from covey.paths import STATE_VARIABLE

_MARK = "covey-digest: sha256:"
_LINE = re.compile(rf"^.*{_MARK}([0-9a-f]{{64}}).*\n", re.MULTILINE)
_STATE = re.compile(r"^# covey-state: (.*)$", re.MULTILINE)


class Hand(StrEnum):
    OURS = "Ours"
    EDITED = "Edited"
    """By hand since, or never ours."""


def seal(text: str, after: str, begin: str, end: str = "") -> str:
    """The text with its digest on a line of its own behind the first line that starts with `after`.

    `begin`, `end`: what makes that line a comment.
    """
    lines = text.splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if line.startswith(after)) + 1
    lines.insert(place, f"{begin}{_MARK}{_digest(text)}{end}\n")
    return "".join(lines)


def judge_hand(text: str) -> Hand:
    marks = _LINE.findall(text)
    return Hand.OURS if len(marks) == 1 and _digest(_LINE.sub("", text)) == marks[0] else Hand.EDITED


def find_state(text: str) -> str:
    """The state folder that a service's file names: a unit in a comment, a plist in a variable; empty: none."""
    if match := _STATE.search(text):
        return match[1].strip()
    try:
        return str(plistlib.loads(text.encode())["EnvironmentVariables"][STATE_VARIABLE])
    except (ValueError, LookupError, TypeError, ExpatError):
        return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
