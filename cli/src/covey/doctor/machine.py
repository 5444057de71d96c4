"""What the system grants and does: open files, control groups, sleep."""

import os
import re
import resource
import sys
from pathlib import Path

from covey_agent.facts.host import observe_cpu_cores, observe_memory_bytes
from covey_api.units import format_bytes
from covey_fleet_client.process import ENOUGH_FILES

from covey.doctor.finding import Finding, Level, ok
from covey.doctor.place import Place
from covey.doctor.programs import Said, ask_tool

_ROOT = Path("/")


def look_at_files(_: Place) -> list[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= ENOUGH_FILES:
        words = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
        return [ok("files", f"a process may have {words} files open (parts raise {soft} to it)")]
    return [
        Finding(
            "files",
            Level.WARNING,
            f"a process may have {hard} files open",
            f"a gateway needs about two for each client: under {ENOUGH_FILES} it refuses clients early",
            "raise the hard limit `nofile`: in limits.conf, or `LimitNOFILE=` of the service",
        )
    ]


def look_at_groups(_: Place) -> list[Finding]:
    if sys.platform != "linux":
        return [ok("cgroup", "control groups are Linux's alone")]
    total_bytes, _available = observe_memory_bytes(_ROOT)
    may = f"this process may use {observe_cpu_cores(_ROOT)} cores and {format_bytes(total_bytes)} of memory"
    return [describe_groups(_ROOT, os.geteuid(), may)]


def describe_groups(root: Path, user_id: int, may: str) -> Finding:
    """Version 2, and what a service of this user gets handed down."""
    handed = _read(root / "sys/fs/cgroup/cgroup.controllers").split()
    if not handed and not (root / "sys/fs/cgroup/cgroup.controllers").exists():
        return Finding(
            "cgroup",
            Level.WARNING,
            f"control groups are of version 1, or aren't mounted; {may}",
            "`Delegate=` and `OOMPolicy=` of a service do nothing: memory that runs out may end more than one engine",
            "boot with `systemd.unified_cgroup_hierarchy=1`",
        )
    slice_ = root / f"sys/fs/cgroup/user.slice/user-{user_id}.slice/user@{user_id}.service"
    if user_id and slice_.is_dir() and "memory" not in _read(slice_ / "cgroup.controllers").split():
        return Finding(
            "cgroup",
            Level.WARNING,
            f"control groups are of version 2, and users' services aren't handed the memory controller; {may}",
            "a user service's memory isn't its own to account for or bound",
            "`Delegate=cpu memory pids` in a drop-in of user@.service",
        )
    return ok("cgroup", f"control groups are of version 2; {may}")


def look_at_sleep(_: Place) -> list[Finding]:
    if sys.platform == "darwin":
        return [_describe_pmset(ask_tool("pmset", "-g"))]
    return [describe_sleep(_ROOT, ask_tool("systemctl", "is-enabled", "sleep.target"))]


def describe_sleep(root: Path, target: Said | None) -> Finding:
    """Whether a Linux machine goes to sleep by itself, as far as logind and its battery say."""
    if "mem" not in _read(root / "sys/power/state").split() and "disk" not in _read(root / "sys/power/state").split():
        return ok("sleep", "this machine can't sleep")
    if target is not None and "masked" in target.text:
        return ok("sleep", "sleep is masked")
    settings = _read_logind(root)
    idle = settings.get("IdleAction", "ignore")
    is_laptop = any(_read(path).strip() == "Battery" for path in (root / "sys/class/power_supply").glob("*/type"))
    lid = settings.get("HandleLidSwitchExternalPower") or settings.get("HandleLidSwitch", "suspend")
    fix = "`systemctl mask sleep.target suspend.target hibernate.target hybrid-sleep.target`"
    if idle not in ("ignore", "lock"):
        words = f"this machine goes to sleep when nobody uses it (logind: IdleAction={idle})"
        return Finding("sleep", Level.WARNING, words, "engines stop answering while it sleeps", fix)
    if is_laptop and lid not in ("ignore", "lock"):
        words = f"this machine has a battery, and sleeps when its lid is closed (logind: {lid})"
        return Finding("sleep", Level.WARNING, words, "engines stop answering while it sleeps", fix)
    return ok("sleep", "nothing that Covey can see puts this machine to sleep by itself (a desktop's settings may)")


def _describe_pmset(said: Said | None) -> Finding:
    match = re.search(r"^\s*sleep\s+(\d+)", said.text if said else "", re.MULTILINE)
    if match is None:
        return ok("sleep", "whether this machine sleeps by itself isn't known")
    if match[1] == "0":
        return ok("sleep", "this machine doesn't sleep by itself")
    words = f"this machine sleeps after {match[1]} minutes without use"
    return Finding("sleep", Level.WARNING, words, "engines stop answering while it sleeps", "`sudo pmset -a sleep 0`")


def _read_logind(root: Path) -> dict[str, str]:
    """Of its files in their order; the later one wins."""
    folders = [root / place / "systemd" for place in ("usr/lib", "run", "etc")]
    paths = [root / "etc/systemd/logind.conf"]
    paths += [path for folder in folders for path in sorted((folder / "logind.conf.d").glob("*.conf"))]
    found: dict[str, str] = {}
    for path in paths:
        for line in _read(path).splitlines():
            name, separator, value = line.strip().partition("=")
            if separator and not name.startswith(("#", ";")):
                found[name.strip()] = value.strip()
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
