"""What the host is: processor, memory, C library. Each reader takes the root it reads below and
leaves out what it can't.

Limits of the control group count before those of the machine: an agent in a container that plans with the machine's
memory has its engines killed.
"""

import contextlib
import os
import platform
import sys
from pathlib import Path

import psutil

# cgroup v1 says "no limit" with a number near 2^63.
_NO_LIMIT_BYTES = 1 << 60


def observe_os_version(root: Path) -> str:
    """`Debian GNU/Linux 12 (bookworm)`, `macOS 15.1`."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    for line in _read(root / "etc/os-release").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip("\"'")[:128]
    return platform.release()[:128]


def observe_glibc() -> tuple[int, int] | None:
    """Version of the C library, if it is glibc."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = (int(part) for part in version.split(".")[:2])
    except (AttributeError, OSError, ValueError):
        return None
    return (major, minor) if name == "glibc" else None


def observe_libc() -> str:
    glibc = observe_glibc()
    return f"glibc {glibc[0]}.{glibc[1]}" if glibc else ""


def observe_cpu_model(root: Path) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model"):
            return value.strip()[:128]
    return platform.processor()[:128]


def observe_cpu_cores(root: Path) -> int:
    """Cores that this process may use: affinity, then the group's quota, rounded down and at least one."""
    cores = psutil.cpu_count() or 1
    with contextlib.suppress(AttributeError, OSError):
        cores = len(os.sched_getaffinity(0))
    for folder in _groups(root, "cpu"):
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def observe_memory_bytes(root: Path) -> tuple[int, int]:
    """(total, available) of host memory, within the group's limits."""
    machine = psutil.virtual_memory()
    total_bytes, available_bytes = machine.total, machine.available
    for folder in _groups(root, "memory"):
        names = ("memory.max", "memory.current", "inactive_file")
        if not (folder / names[0]).exists():
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit = _read(folder / names[0]).strip()
        if not limit.isdigit() or int(limit) >= _NO_LIMIT_BYTES:
            continue
        total_bytes = min(total_bytes, int(limit))
        used = _read(folder / names[1]).strip()
        if used.isdigit():
            # Page cache of the group counts as used, and is given back before anything is killed.
            reclaimable = _statistic(folder, names[2])
            available_bytes = min(available_bytes, int(limit) - int(used) + reclaimable)
    return total_bytes, max(0, min(available_bytes, total_bytes))


def _groups(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control group and all above it, v2 and v1."""
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        parts = [part for part in group.split("/") if part not in ("", "..")]
        folders.extend(mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))
    return folders


def _statistic(folder: Path, name: str) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
