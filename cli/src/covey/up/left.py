"""What runs on in a state folder once a parent's own parts have ended: seen by locks and sockets, never by names."""

import fcntl
import json
import socket
from dataclasses import dataclass
from pathlib import Path

from covey_agent.keeper.observed import is_locked

from covey.paths import control_socket

# A listener on this machine takes a connection at once, also when its process is paused.
LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Left:
    """`engines`: how many keepers live. `grace_seconds`: the shortest time that one gives its engine; 0: not known."""

    engines: int
    grace_seconds: float
    parts: tuple[str, ...]
    """Agent and controller that still hold this folder."""


def observe_left(state: Path) -> Left:
    members = state / "agent" / "members"
    living = [folder for folder in sorted(members.glob("*")) if is_locked(str(folder))]
    graces = [seconds for folder in living if (seconds := _read_grace(folder))]
    return Left(len(living), min(graces, default=0.0), tuple(_observe_parts(state)))


def _read_grace(folder: Path) -> float:
    try:
        return float(json.loads((folder / "launch.json").read_bytes())["orphanGraceSeconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _observe_parts(state: Path) -> list[str]:
    parts: list[str] = []
    if pid := observe_agent(state):
        parts.append(f"an agent (process id {pid})")
    if has_controller(state):
        parts.append(f"a controller, which listens on '{control_socket(state)}'")
    return parts


def observe_agent(state: Path) -> str:
    """The process id of the agent that holds the folder, as it wrote it down; empty: none holds it."""
    try:
        with (state / "agent" / "agent.lock").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read(32).decode(errors="replace").strip() or "unknown"
    except OSError:
        pass
    return ""


def has_controller(state: Path) -> bool:
    """Whether somebody listens on the control socket, be it paused."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(LOOK_SECONDS)
        try:
            probe.connect(str(control_socket(state)))
        except BlockingIOError:  # it listens, and takes no more
            return True
        except OSError as error:
            return isinstance(error, TimeoutError)
    return True
