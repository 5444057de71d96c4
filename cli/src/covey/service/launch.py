"""`python -m covey.service.launch ENVIRONMENT-FILE STATE -- COMMAND…`: what launchd lacks, then the command itself.

Variables from a file, and an end to a loop of starts: a clean exit is what launchd takes for a deliberate one.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from covey_fleet_client.files import ensure_private_folder, write_private

from covey.service.unit import HOT_SECONDS, HOT_STARTS

_STARTS = "service-starts.json"


def main(arguments: Sequence[str]) -> None:
    environment_file, state, _, *command = arguments
    os.environ.update(parse_environment(_read(Path(environment_file))))
    if not admit_start(Path(state), time.time()):
        print(
            f"Started {HOT_STARTS} times within {HOT_SECONDS // 60} minutes: it stays down. See what it printed above, "
            "mend it, then run `covey service install` again.",
            file=sys.stderr,
        )
        return
    os.execv(command[0], command)  # noqa: S606 - the command of the service's own file


def parse_environment(text: str) -> dict[str, str]:
    """`NAME=VALUE` a line, as systemd reads simple ones: comments, and quotes around a whole value."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.strip().partition("=")
        if not separator or name.startswith(("#", ";")) or not name.isidentifier():
            continue
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[name] = value
    return found


def admit_start(state: Path, now: float) -> bool:
    """Count this start; False when there were too many lately. A record that can't be kept admits it."""
    path = state / _STARTS
    try:
        ensure_private_folder(state)
        before = [float(each) for each in json.loads(_read(path) or "[]")]
    except (OSError, ValueError, TypeError):
        before = []
    lately = [each for each in before if 0 <= now - each < HOT_SECONDS]
    if len(lately) >= HOT_STARTS:
        return False
    try:
        write_private(path, json.dumps([*lately, now]))
    except OSError as error:
        print(f"starts aren't counted: {error}", file=sys.stderr)
    return True


def forget_starts(state: Path) -> None:
    """A person starts it anew."""
    (state / _STARTS).unlink(missing_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    main(sys.argv[1:])
