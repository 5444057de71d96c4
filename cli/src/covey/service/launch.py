"""`python -m covey.service.launch ROLE VARIABLES STATE -- COMMAND…`: what launchd lacks, then the command itself.

Variables from a file, a bound of the log at each start, and an end to a loop of starts: a clean exit is what launchd
takes for a deliberate one.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from covey_fleet_client.files import PRIVATE_FILE_MODE, ensure_private_folder, write_private

from covey.service.unit import HOT_SECONDS, HOT_STARTS, find_log

# What was there at a start beyond this goes beside it; an older one goes away.
MAX_LOG_BYTES = 8 * 1024 * 1024


def main(arguments: Sequence[str]) -> None:
    role, environment_file, state, _, *command = arguments
    turn_log(find_log(Path(state), role))
    if not admit_start(Path(state), role, time.time()):
        print(
            f"Started {HOT_STARTS} times within {HOT_SECONDS // 60} minutes: it stays down. See what it printed above, "
            "mend it, then run `covey service install` again.",
            file=sys.stderr,
        )
        return
    try:
        os.environ.update(parse_environment(_read(Path(environment_file))))
    except (OSError, ValueError) as error:
        # The name of the error only: its text may quote the file, which holds secrets.
        sys.exit(
            f"'{environment_file}' must be text in UTF-8 that this user can read; it isn't ({type(error).__name__})"
        )
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


def turn_log(path: Path) -> None:
    """A log that is large goes beside itself, and what this process prints into a new one. Nothing where it can't."""
    try:
        if path.stat().st_size <= MAX_LOG_BYTES:
            return
        path.replace(path.with_suffix(".log.1"))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE_MODE)
    except OSError:
        return
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


def admit_start(state: Path, role: str, now: float) -> bool:
    """Count this start; False when there were too many lately. A record that can't be kept admits it."""
    path = _find_starts(state, role)
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


def forget_starts(state: Path, role: str) -> None:
    """A person starts it anew."""
    _find_starts(state, role).unlink(missing_ok=True)


def _find_starts(state: Path, role: str) -> Path:
    return state / f"service-starts-{role}.json"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    main(sys.argv[1:])
