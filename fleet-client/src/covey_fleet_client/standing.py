"""What the controller last said when it refused this part: a file beside its identity, for who looks at this machine.

A certificate may be good and its machine removed, or another one by its name: only the controller knows, and only who
reports hears of it.
"""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, cast

from covey_fleet_client.files import write_private

_NAME = "refusal.json"
_MAX_WORDS = 2000


class Refusal(NamedTuple):
    words: str
    at: float
    """Seconds since the epoch, of the first time that it was said so."""


class StandingFile:
    """`folder`: of the identity. Written only when something else is said than before. No part depends on it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        found = read_refusal(folder)
        self._words = found.words if found else ""

    def note(self, words: str) -> None:
        """Empty: it takes what this part says."""
        words = words[:_MAX_WORDS]
        if words == self._words:
            return
        self._words = words
        with suppress(OSError):
            if words:
                write_private(self._path, json.dumps({"words": words, "at": time.time()}))
            else:
                self._path.unlink(missing_ok=True)


def read_refusal(folder: Path) -> Refusal | None:
    """None: it wasn't refused when it was heard last, or nobody may know."""
    try:
        page: object = json.loads((folder / _NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    fields = cast("dict[str, object]", page) if isinstance(page, dict) else {}
    words, at = fields.get("words"), fields.get("at")
    return Refusal(words, float(at)) if isinstance(words, str) and words and isinstance(at, int | float) else None
