"""Where a fleet on this machine keeps its state, and how a command finds it."""

import os
from pathlib import Path

STATE_VARIABLE = "COVEY_STATE"
CACHE_VARIABLE = "COVEY_CACHE"
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
