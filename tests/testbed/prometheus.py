"""Prometheus as Debian packages it: on PATH, or its two programs unpacked into the tests' cache by `make prometheus`.

The package isn't installed: it would bring ten JavaScript libraries and start a service on this machine.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kit.cache import shared_cache

FETCH_SECONDS = 300


class NoPrometheus(Exception):
    """Why there is none on this machine: tests skip with these words."""


def find_program(name: str) -> str:
    """`prometheus` or `promtool`. NoPrometheus where it is neither on PATH nor in the cache."""
    if found := shutil.which(name):
        return found
    cached = _folder() / "usr" / "bin" / name
    if not cached.exists():
        raise NoPrometheus(f"needs '{name}': run `make prometheus` on Debian or Ubuntu, or put it on PATH")
    return str(cached)


def ensure_prometheus() -> None:
    """Fetch it by apt unless it is there. NoPrometheus where that can't be."""
    try:
        find_program("prometheus")
        find_program("promtool")
        return
    except NoPrometheus:
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise
    folder = _folder()
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(folder)


def _folder() -> Path:
    return shared_cache() / "prometheus"


def _fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as made:
        download = ["apt-get", "download", "-qq", "prometheus"]
        if _run(download, made).returncode:  # perhaps for want of lists, which an image often leaves out
            _run(["apt-get", "update", "-qq"], made)
            answer = _run(download, made)
            if answer.returncode:
                raise NoPrometheus(f"`apt-get download prometheus` failed: {answer.stderr.strip()}")
        (package,) = Path(made).glob("prometheus_*.deb")
        unpacked = Path(made) / "unpacked"
        answer = _run(["dpkg-deb", "--extract", str(package), str(unpacked)], made)
        if answer.returncode:
            raise NoPrometheus(f"Debian's package can't be unpacked: {answer.stderr.strip()}")
        unpacked.rename(target)


def _run(command: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    # apt steps down to a user of its own, who may write into no folder of ours.
    as_root = ["-o", "APT::Sandbox::User=root"] if command[0] == "apt-get" and os.geteuid() == 0 else []
    return subprocess.run(
        [command[0], *as_root, *command[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=FETCH_SECONDS,
        check=False,
    )


if __name__ == "__main__":
    try:
        ensure_prometheus()
    except NoPrometheus as error:
        sys.exit(str(error))
