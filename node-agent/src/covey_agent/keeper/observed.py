"""What a keeper and its agent read of a machine alike: processes, locks. And the one way a keeper writes a record."""

import errno
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from typing import Any

# Of macOS' sys/un.h; Python has no names for them.
SOL_LOCAL, LOCAL_PEERPID = 0, 2


def observe_start_time(pid: int) -> str:
    """What tells this process from a later one with the same id; empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        # A zombie runs nothing and holds nothing.
        return "" if fields[0] == b"Z" else f"{boot}:{fields[19].decode()}"
    except OSError:
        if sys.platform == "linux":
            return ""
    return ask_start_time(pid)


def ask_start_time(pid: int) -> str:
    """As `ps` tells it, where no file does."""
    try:
        # In words that are alike for all who look, in whatever language and time zone they were started.
        words = {"PATH": "/bin:/usr/bin", "LC_ALL": "C", "TZ": "UTC"}
        command = ["ps", "-o", "lstart=", "-p", str(pid)]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, env=words)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()


def observe_peer_pid(peer: Any) -> int:
    """The process at the other end of a Unix socket, as the kernel knows it: who connected, or who listens. 0: gone."""
    try:
        if sys.platform == "linux":
            return int(struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
        return int(peer.getsockopt(SOL_LOCAL, LOCAL_PEERPID))
    except OSError:
        return 0


def open_lock(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Another user's lock, or one on a read-only disk, can be locked without being written to. Never through a link."""
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o644)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS):
            raise
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def take_lock(descriptor: int) -> bool:
    """The lock on an open file, until that is closed everywhere; False when another holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(path: str | os.PathLike[str]) -> bool:
    """Whether anybody holds the lock on a file. To look is to take it for an instant."""
    try:
        lock = open_lock(path)
    except OSError:
        return False
    try:
        return not take_lock(lock)
    finally:
        os.close(lock)


def is_locked(folder: str) -> bool:
    """True while a living keeper holds the member's lock."""
    return is_held(os.path.join(folder, "keeper.lock"))


def write_record(name: str, record: dict[str, Any]) -> None:
    """Write a JSON file of the current folder whole or not at all. OSError when the disk refuses."""
    temporary = f"{name}.new"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, name)


def explain_status(status: int) -> str:
    """Of an engine's end: `ended by SIGKILL`, `exited with code 1`."""
    if status >= 0:
        return f"exited with code {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def observe_oom_kills() -> int | None:
    """How many processes the kernel has ended for lack of memory since boot; None where it doesn't say."""
    try:
        with open("/proc/vmstat", "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(b"oom_kill ")), None)
    except OSError:
        return None
