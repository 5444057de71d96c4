"""systemd and launchd: where a service's file belongs, and the few commands that put it into force.

Each command is bounded. What a manager says when it refuses is passed on; nothing is undone for it, for the file is
right and the next `install` goes on from there.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import psutil
from covey_fleet_client.files import ensure_private_folder

from covey.errors import CommandError, ExitCode
from covey.service.launch import forget_starts
from covey.service.unit import Service, find_log, render_launchd, render_systemd

# A stop takes as long as the service's own, which ends its engines.
COMMAND_SECONDS = 60.0
LOG_LINES = 8
_SYSTEMD_STOPPED = ("inactive", "failed", "unknown")
_SYSTEMD_ALIVE = ("active", "activating", "reloading", "deactivating")
_LAUNCHD_GONE = ("Could not find", "No such process")
# What launchd was told to end is still there for as long as it takes.
_GONE_TRIES = 100
_GONE_PAUSE_SECONDS = 0.4
_LAUNCHD_FACT = re.compile(r"^\s*(state|pid|runs|last exit code) = (.*)$", re.MULTILINE)


class State(StrEnum):
    RUNNING = "Running"
    STOPPED = "Stopped"
    FAILED = "Failed"
    """It ended by itself, and isn't started again."""
    STARTING = "Starting"
    """It is being started, or waits for its next try."""
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Status:
    state: State
    words: str = ""
    """Why it isn't running, as its manager says."""
    since: str = ""
    pid: int = 0
    restarts: int = 0
    is_enabled: bool = False
    """It comes back with the machine, or with its user."""
    log_lines: tuple[str, ...] = ()
    log_place: str = ""
    """How to read on."""


class Manager(Protocol):
    name: str

    def path(self, service: str) -> Path: ...
    def render(self, service: Service) -> str: ...
    def start(self, service: Service, *, is_changed: bool) -> list[str]:
        """Take the file and start it, now and with the machine; notes for people. CommandError when it isn't taken."""
        ...

    def remove(self, role: str, state: str) -> None:
        """Stop it and forget it; the file is the caller's to remove."""
        ...

    def observe(self, role: str, state: str) -> Status: ...


def say(*command: str, seconds: float = COMMAND_SECONDS) -> tuple[int, str]:
    """Exit status and words; 127 without such a program."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        return 127, f"`{command[0]}` isn't on this machine"
    except subprocess.TimeoutExpired:
        return 124, f"`{' '.join(command)}` did not end within {seconds:.0f} s"
    except OSError as error:
        return 126, f"`{command[0]}` can't be run: {error.strerror}"
    return done.returncode, (done.stdout + done.stderr).strip()


def require(*command: str) -> None:
    status, words = say(*command)
    if status:
        shown = " ".join(command)
        raise CommandError(
            f"the service's files are written, and its manager didn't take them: {words or status}. Once it can, run "
            f"`{shown}`, or this command again."
        )


class Systemd:
    """Of the user, or of the system."""

    name = "systemd"

    def __init__(self, environment: Mapping[str, str], home: Path, *, is_system: bool) -> None:
        self._is_system = is_system
        base = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
        self._folder = Path("/etc/systemd/system") if is_system else base / "systemd" / "user"
        self._control = ("systemctl", "--no-ask-password", *(() if is_system else ("--user",)))

    def path(self, service: str) -> Path:
        return self._folder / f"covey-{service}.service"

    def render(self, service: Service) -> str:
        return render_systemd(service, observe_systemd_version())

    def start(self, service: Service, *, is_changed: bool) -> list[str]:
        unit = f"{service.name}.service"
        was_active = say(*self._control, "is-active", "--quiet", unit)[0] == 0
        require(*self._control, "daemon-reload")
        say(*self._control, "reset-failed", unit)  # one that stays down after too many starts begins anew
        require(*self._control, "enable", "--now", unit)
        shown = " ".join(word for word in self._control if word != "--no-ask-password")
        notes = [f"it runs on as it was started; to take the change: `{shown} restart {unit}`"]
        return [*(notes if was_active and is_changed else []), *self._explain_linger()]

    def _explain_linger(self) -> list[str]:
        if self._is_system:
            return []
        status, words = say("loginctl", "show-user", str(os.geteuid()), "--property=Linger", "--value")
        if status == 0 and words == "yes":
            return []
        return ["it ends when its user logs out, and starts at login; to run always: `loginctl enable-linger`"]

    def remove(self, role: str, state: str) -> None:
        unit = f"covey-{role}.service"
        status, words = say(*self._control, "disable", "--now", unit)
        if status and self.has(role):  # its file is gone, and it runs on as systemd remembers it
            _, words = say(*self._control, "stop", unit)
        # No answer, without a bus say, is none that it has stopped.
        if status and say(*self._control, "is-active", unit)[1].partition("\n")[0] not in _SYSTEMD_STOPPED:
            raise CommandError(f"{unit} could not be stopped, and stays as it is: {words}")

    def has(self, role: str) -> bool:
        """Whether it runs, also without its file."""
        return say(*self._control, "is-active", f"covey-{role}.service")[1].partition("\n")[0] in _SYSTEMD_ALIVE

    def forget(self) -> None:
        """Once a file is gone."""
        say(*self._control, "daemon-reload")

    def observe(self, role: str, state: str) -> Status:
        unit = f"covey-{role}.service"
        wanted = ("ActiveState", "SubState", "Result", "ActiveEnterTimestamp", "MainPID", "NRestarts", "UnitFileState")
        status, text = say(*self._control, "show", unit, f"--property={','.join(wanted)}", seconds=10.0)
        scope = () if self._is_system else ("--user",)
        place = " ".join(("journalctl", *scope, "-u", unit))
        if status:
            return Status(State.UNKNOWN, f"systemd doesn't answer: {text or status}", log_place=place)
        found = {name: value for name, _, value in (line.partition("=") for line in text.splitlines())}
        read = say("journalctl", *scope, "-u", unit, "-n", str(LOG_LINES), "--no-pager", "-o", "cat", seconds=10.0)
        lines = tuple(read[1].splitlines()[-LOG_LINES:]) if read[0] == 0 and "No entries" not in read[1] else ()
        return parse_systemd(found, lines, place)


def parse_systemd(found: Mapping[str, str], lines: tuple[str, ...], place: str) -> Status:
    """From what `systemctl show` prints."""
    active, sub, result = found.get("ActiveState", ""), found.get("SubState", ""), found.get("Result", "")
    state = {
        "active": State.RUNNING,
        "activating": State.STARTING,
        "reloading": State.STARTING,
        "inactive": State.STOPPED,
        "deactivating": State.STOPPED,
        "failed": State.FAILED,
    }.get(active, State.UNKNOWN)
    words = "" if state is State.RUNNING else f"{active or 'unknown'} ({sub or '?'}), {result or 'no result'}"
    if result == "start-limit-hit":
        words += ": too many starts in a short time; mend it, then `covey service install` again"
    return Status(
        state,
        words,
        found.get("ActiveEnterTimestamp", "") if state is State.RUNNING else "",
        _number(found.get("MainPID")),
        _number(found.get("NRestarts")),
        found.get("UnitFileState") == "enabled",
        lines,
        place,
    )


def observe_systemd_version() -> int:
    _, words = say("systemctl", "--version", seconds=10.0)
    match = re.match(r"systemd (\d+)", words)
    return int(match[1]) if match else 0


class Launchd:
    """An agent of the user."""

    name = "launchd"

    def __init__(self, home: Path, python: str) -> None:
        self._folder = home / "Library" / "LaunchAgents"
        self._python = python
        self._domain = f"gui/{os.geteuid()}"

    def path(self, service: str) -> Path:
        return self._folder / f"dev.covey.{service}.plist"

    def render(self, service: Service) -> str:
        return render_launchd(service, self._python)

    def start(self, service: Service, *, is_changed: bool) -> list[str]:
        ensure_private_folder(service.state)
        ensure_private_folder(service.log.parent)
        forget_starts(service.state, service.role)
        target = f"{self._domain}/{service.label}"
        status, text = say("launchctl", "print", target)
        say("launchctl", "enable", target)
        if status == 0 and parse_launchd(status, text, (), "").state is State.RUNNING:
            words = (
                f"it runs on as it was started; to take the change: `launchctl bootout {target}`, then install again"
            )
            return [words] if is_changed else []
        if status == 0:  # it has the file as it was, and would start that
            self._boot_out(target)
        require("launchctl", "bootstrap", self._domain, str(self.path(service.role)))
        return []

    def remove(self, role: str, state: str) -> None:
        self._boot_out(f"{self._domain}/dev.covey.{role}")

    def _boot_out(self, target: str) -> None:
        """Once launchd says that it doesn't have it. CommandError when it doesn't say so."""
        _, words = say("launchctl", "bootout", target)
        for _ in range(_GONE_TRIES):
            status, text = say("launchctl", "print", target)
            if status:
                break
            time.sleep(_GONE_PAUSE_SECONDS)
        else:
            raise CommandError(f"{target} could not be stopped: {words or 'it is still there'}")
        if not any(each in text for each in _LAUNCHD_GONE):  # no answer is none that it has stopped
            raise CommandError(f"{target} could not be stopped, and stays as it is: {words or text}")

    def has(self, role: str) -> bool:
        """Whether launchd has it, also without its file."""
        return say("launchctl", "print", f"{self._domain}/dev.covey.{role}")[0] == 0

    def forget(self) -> None: ...

    def observe(self, role: str, state: str) -> Status:
        log = find_log(Path(state), role)
        status, text = say("launchctl", "print", f"{self._domain}/dev.covey.{role}", seconds=10.0)
        return parse_launchd(status, text, _read_tail(log), f"tail -f '{log}'")


def parse_launchd(status: int, text: str, lines: tuple[str, ...], place: str) -> Status:
    """From what `launchctl print` prints, which Apple calls no interface: what isn't there stays out."""
    if status:
        return Status(State.STOPPED, "launchd doesn't have it", log_lines=lines, log_place=place)
    found = {match[1]: match[2] for match in _LAUNCHD_FACT.finditer(text)}
    pid = _number(found.get("pid"))
    if found.get("state") == "running" or pid:
        return Status(State.RUNNING, "", _since(pid), pid, max(0, _number(found.get("runs")) - 1), True, lines, place)
    code = found.get("last exit code", "")
    state = State.STOPPED if code in ("0", "", "(never exited)") else State.STARTING
    return Status(state, f"last exit code {code or 'unknown'}", is_enabled=True, log_lines=lines, log_place=place)


def _since(pid: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(psutil.Process(pid).create_time()))
    except psutil.Error:
        return ""


def _read_tail(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
            return tuple(file.read().decode(errors="replace").splitlines()[-LOG_LINES:])
    except OSError:
        return ()


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def choose_manager(
    environment: Mapping[str, str], home: Path, *, named: str | None, is_system: bool
) -> Systemd | Launchd:
    """`named`: by the user; None: this system's own."""
    name = named or ("launchd" if sys.platform == "darwin" else "systemd")
    if name == "launchd":
        if is_system:
            words = "launchd gets an agent of the user only: leave --system out, and let the machine log in by itself"
            raise CommandError(words, ExitCode.WRONG_USE)
        return Launchd(home, sys.executable)
    return Systemd(environment, home, is_system=is_system)
