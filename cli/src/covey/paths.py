"""Where a fleet on this machine keeps its state, and how a command finds it."""

import fcntl
import json
import os
from pathlib import Path

STATE_VARIABLE = "COVEY_STATE"
CACHE_VARIABLE = "COVEY_CACHE"
SERVICE_VARIABLE = "COVEY_SERVICE"
"""Set for what a manager of services starts: its role."""
# Between the tokens of an agent and a gateway that were made together, for one machine.
TOKEN_SEPARATOR = ","  # noqa: S105 - a comma


def default_state_folder() -> Path:
    """`COVEY_STATE`, else `covey` in the user's XDG state folder."""
    if given := os.environ.get(STATE_VARIABLE):
        return Path(given).expanduser()
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "covey"


def control_socket(state: Path) -> Path:
    return state / "control.sock"


def is_kept_up(state: Path) -> bool:
    """Whether a `covey up` holds this state folder: its controller is there, or back in a moment."""
    try:
        if "source" not in json.loads((state / "up.json").read_text()):
            return False  # a `covey join`: its controller is elsewhere
    except (OSError, ValueError, TypeError):
        return False
    return is_held(state)  # else it was killed, and left its record


def is_held(state: Path) -> bool:
    """Whether a `covey up` or `covey join` has this state folder now."""
    try:
        with (state / "up.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
