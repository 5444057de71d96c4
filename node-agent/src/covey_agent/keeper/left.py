"""What an engine started bears a mark, so that it is found when nobody is left who started it.

A keeper ends all that is below it when its engine ends. One that is killed can't: on Linux the kernel ends its engine,
elsewhere nobody does, and what the engine had started runs on; on macOS what made a session of its own always does.
The mark is a variable of the engine's environment that names the member's folder. Whoever has it was started by that
member's engine, or by what that started; where no keeper holds the folder's lock, nothing of it may run.

Alternatives: a second process for each member that waits for the keeper's end (it can be killed as well, by the same
`pkill`, and takes memory for months); a table of descendants, written again and again (always late); process groups
alone (a daemon leaves them). What clears its environment, and left the group of an engine whose keeper was killed, is
not found.
"""

import calendar
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from covey_agent.keeper.observed import observe_start_time

logger = logging.getLogger(__name__)

MARK = "COVEY_MEMBER"
# Programs that write their own title (vLLM's) do so over their environment, as others see it, unless they are told.
_KEEP_READABLE = {"SPT_NOENV": "1"}
# What was killed is gone in milliseconds; this is for a machine that swaps.
END_SECONDS = 10.0
_LOOK_SECONDS = 0.02


def render_mark(folder: Path) -> dict[str, str]:
    """What the environment of this member's engine has beside its own."""
    return {MARK: str(folder.resolve()), **_KEEP_READABLE}


def observe_marked(members: Path) -> dict[str, list[psutil.Process]]:
    """Living processes that bear the mark of a member of this folder, by instance id. Blocking."""
    home, own = members.resolve(), os.getpid()
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # another user's, or gone
            mark = process.environ().get(MARK, "")
            if mark and Path(mark).parent == home and process.pid != own:
                found.setdefault(Path(mark).name, []).append(process)
    return found


def end_marked(members: Path, is_over: Callable[[str], bool]) -> None:
    """SIGKILL to all that bear the mark of a member that is over, until none is left. Blocking, for some seconds at
    most. Whoever starts more while it is looked is seen at the next look."""
    until = time.monotonic() + END_SECONDS
    while left := [(key, each) for key, all_of in observe_marked(members).items() if is_over(key) for each in all_of]:
        for key, process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
                logger.warning("process %d was left by an engine of instance id '%s': killed", process.pid, key)
        if time.monotonic() > until:
            return
        time.sleep(_LOOK_SECONDS)


def end_engine(pid: int, start_time: str) -> None:
    """End an engine whose keeper is gone, with its group: on Linux it died with it, elsewhere this is what ends it.
    Blocking.

    The group goes by the leader's id. That id is safe to signal while the leader is the recorded process, or is gone
    since the same boot: a group keeps its id from being used again, and after a boot a daemon may have left one of it.
    """
    found = observe_start_time(pid)
    if found not in ("", start_time) or (not found and not is_of_this_boot(start_time)):
        return
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    until = time.monotonic() + END_SECONDS
    while observe_start_time(pid) == start_time and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)


def is_of_this_boot(start_time: str) -> bool:
    """Whether a process with this start time was started since the machine was. True also where nothing tells."""
    if sys.platform == "linux":
        return start_time.partition(":")[0] == observe_start_time(os.getpid()).partition(":")[0]
    try:
        # As UTC, up to a day off: versions before told it in the machine's own time.
        return calendar.timegm(time.strptime(start_time)) >= psutil.boot_time() - 86_400
    except (ValueError, OverflowError):  # told in another language
        return True
