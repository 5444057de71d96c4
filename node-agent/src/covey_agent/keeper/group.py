"""A control group for one engine, so that one which takes more than was planned for it dies alone.

Linux, version 2, and only where this process is in the leaf `agent` of a group that was delegated: the unit that `covey
service install` writes says `DelegateSubgroup=agent` (systemd 254 and newer). Elsewhere there is none, and the place in
front (`covey_agent.keeper.memory`) is all: a group with processes of its own can't hand controllers down, and moving an
agent out of a unit's own group would keep systemd from starting it again ("Device or resource busy").

    <unit>.service/agent          the agent and its keepers
    <unit>.service/engine-<id>    one engine with its children; memory.max, memory.oom.group

The limit is well above what was stamped: the stamp is what is planned with, and this ends what has gone wrong. Pages of
a mapped file count and are given up first.
"""

import contextlib
import os
import time

LEAF = "agent"
# Of what was stamped. A calibrated estimate is never raised by more than this.
_SHARE = 1.5
_SPARE_BYTES = 512 << 20
# How often, so far apart, it is tried to remove a group whose processes are just ending.
_REMOVE_TRIES, _REMOVE_PAUSE_SECONDS = 20, 0.01


def choose_limit(stamped_bytes: int) -> int:
    return int(stamped_bytes * _SHARE) + _SPARE_BYTES


class EngineGroup:
    """`open_group` makes it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._processes = os.open(f"{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        self._kills_before = self._count_kills()

    def enter(self) -> None:
        """This process, and its children to come. Called between fork and exec. OSError when the kernel refuses."""
        os.write(self._processes, b"0")

    def has_killed(self) -> bool:
        """Whether the kernel has ended a process of it for lack of memory: its own limit's or the machine's."""
        return self._count_kills() > self._kills_before

    def _count_kills(self) -> int:
        with contextlib.suppress(OSError, ValueError), open(f"{self._path}/memory.events") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
        return 0

    def remove(self) -> None:
        """End what is left in it, whatever session that made for itself, and the group with it."""
        os.close(self._processes)
        with contextlib.suppress(OSError):
            _write(f"{self._path}/cgroup.kill", "1")
        for _ in range(_REMOVE_TRIES):
            with contextlib.suppress(OSError):
                os.rmdir(self._path)
            if not os.path.exists(self._path):
                return
            time.sleep(_REMOVE_PAUSE_SECONDS)


def open_group(instance_id: str, stamped_bytes: int, root: str = "/") -> EngineGroup | None:
    """The engine's group with its limit; None where there can't be one. `stamped_bytes` of the machine's own memory."""
    unit = find_unit(root)
    if unit is None or stamped_bytes <= 0:
        return None
    path = f"{unit}/engine-{instance_id}"
    try:
        _write(f"{unit}/cgroup.subtree_control", "+memory")
        os.makedirs(path, exist_ok=True)
        _write(f"{path}/memory.max", str(choose_limit(stamped_bytes)))
        with contextlib.suppress(OSError):
            _write(f"{path}/memory.oom.group", "1")
        return EngineGroup(path)
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(path)
        return None


def find_unit(root: str = "/") -> str | None:
    """The delegated group in whose leaf this process is."""
    try:
        with open(f"{root}/proc/self/cgroup") as file:
            own = next((line.strip()[3:] for line in file if line.startswith("0::")), "")
        with open(f"{root}/proc/self/mountinfo") as file:
            mounts = [line.partition(" - ") for line in file]
    except OSError:
        return None
    if os.path.basename(own) != LEAF:
        return None
    mount = next((left.split()[4] for left, _, right in mounts if right.startswith("cgroup2 ")), None)
    return None if mount is None else f"{root}{mount}{os.path.dirname(own)}"


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
