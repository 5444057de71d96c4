"""What an engine's processes have done so far: processor time, what they read from disks, and what they read at all.

`psutil` reads it alike on Linux and macOS. Per thread it can't be had everywhere, so that of threads that take requests
counts with that of those that compute: who judges by it must allow for them.
"""

import psutil

from covey_agent.ports import Effort


def observe_effort(pid: int) -> Effort | None:
    """Of this process and its children that live; None: it is gone, or a zombie."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return None
    cpu_seconds, disk_bytes, read_bytes = 0.0, 0, 0
    for each in family:
        try:
            times = each.cpu_times()
            cpu_seconds += times.user + times.system
            from_disk, at_all = _read_bytes(each)
        except psutil.Error:
            continue  # a child that ended just now
        disk_bytes += from_disk
        read_bytes += at_all
    return Effort(cpu_seconds, disk_bytes, read_bytes)


def _read_bytes(process: psutil.Process) -> tuple[int, int]:
    """From disks, and by reading from files wherever they were."""
    try:
        counters = process.io_counters()
        return counters.read_bytes, int(getattr(counters, "read_chars", 0))  # of Linux alone
    except (psutil.AccessDenied, AttributeError):  # not Linux, or none of ours to see
        return 0, 0
