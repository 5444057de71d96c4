"""What a service is, and how each manager is told. Nothing here reads the world.

The rules that a maintainer would break by accident:

- Only the main process is signalled at a stop (`KillMode=process`, `AbandonProcessGroup`): it ends its parts in their
  order, and what it must leave, engines under their keepers, outlives a crash or a restart of it. With the default the
  manager would kill every engine with the first crash.
- An engine that runs out of memory must not take the others along (`OOMPolicy=continue`). Where systemd knows
  `DelegateSubgroup=` each gets a group with a limit, beside the one of the service's own processes; without that line
  systemd could not put a service that starts again among them.
- A clean end stays an end (`Restart=on-failure`, `SuccessfulExit`), and what fails ten times within ten minutes stays
  down: each try costs a whole start. Also what a command calls wrong use (2) is tried again: its line was checked when
  it was installed, so that what is wrong now is a folder or a file that isn't there yet, on a disk that is late say.
"""

import plistlib
import re
from dataclasses import dataclass
from pathlib import Path

from covey_fleet_client.process import ENOUGH_FILES

from covey.commands.gateway_options import find_drain_seconds
from covey.paths import SERVICE_VARIABLE, STATE_VARIABLE
from covey.service.sealed import seal

# Ten starts in ten minutes are a loop. Delays grow to a minute, so that a machine that is only late gets up by itself.
HOT_STARTS = 10
HOT_SECONDS = 600
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS, _DELAY_STEPS = 2, 60, 8
# Where delays can't grow.
_FIXED_DELAY_SECONDS = 10
_STEPS_SINCE = 254
_SUBGROUP_SINCE = 254
# `covey_agent.keeper.group` looks for it.
_AGENT_GROUP = "agent"
# `covey up` and `covey join` stop their parts within so long, and the gateway's last answers.
_STOP_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Service:
    """One service. `command` is absolute, and holds no secret."""

    role: str
    command: tuple[str, ...]
    state: Path
    environment_file: Path
    is_system: bool = False
    run_as: str = ""
    """Of a system service: its user; empty: root."""

    @property
    def name(self) -> str:
        return f"covey-{self.role}"

    @property
    def label(self) -> str:
        return f"dev.covey.{self.role}"

    @property
    def log(self) -> Path:
        """Where launchd keeps what it prints; systemd has its journal."""
        return find_log(self.state, self.role)

    @property
    def stop_seconds(self) -> int:
        return _STOP_SECONDS + find_drain_seconds(self.command)

    @property
    def cache(self) -> Path | None:
        """None: the role has none."""
        flags = [number for number, word in enumerate(self.command) if word == "--cache"]
        return Path(self.command[flags[-1] + 1]) if flags else None


def find_log(state: Path, role: str) -> Path:
    return state / "log" / f"service-{role}.log"


def render_systemd(service: Service, systemd_version: int) -> str:
    """`systemd_version` 0: not known."""
    wanted_by = "multi-user.target" if service.is_system else "default.target"
    lines = [
        f"# Written by `covey service install {service.role}`. To change it: `systemctl edit`, or install anew.",
        f"# covey-state: {service.state}",
        "[Unit]",
        f"Description=Covey ({service.role})",
        *(["Wants=network-online.target", "After=network-online.target"] if service.is_system else []),
        f"StartLimitIntervalSec={HOT_SECONDS}",
        f"StartLimitBurst={HOT_STARTS}",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(quote_systemd(word) for word in service.command)}",
        f"Environment={SERVICE_VARIABLE}={service.role}",
        f"EnvironmentFile=-{_escape_specifiers(str(service.environment_file))}",
        *([f"User={service.run_as}"] if service.run_as else []),
        "Restart=on-failure",
        *_render_delays(systemd_version),
        "KillMode=process",
        f"TimeoutStopSec={service.stop_seconds}",
        "Delegate=yes",
        *([f"DelegateSubgroup={_AGENT_GROUP}"] if systemd_version >= _SUBGROUP_SINCE else []),
        "OOMPolicy=continue",
        "UMask=0077",
        *(["NoNewPrivileges=yes"] if service.is_system else []),
        *_render_folders(service),
        "",
        "[Install]",
        f"WantedBy={wanted_by}",
    ]
    return seal("\n".join(lines) + "\n", "# Written by", "# ")


def _render_delays(version: int) -> list[str]:
    if version < _STEPS_SINCE:
        return [f"RestartSec={_FIXED_DELAY_SECONDS}"]
    return [
        f"RestartSec={_FIRST_DELAY_SECONDS}",
        f"RestartSteps={_DELAY_STEPS}",
        f"RestartMaxDelaySec={_LONGEST_DELAY_SECONDS}",
    ]


def _render_folders(service: Service) -> list[str]:
    """Folders that systemd makes for the service's user: each where it is the usual one."""
    if not service.is_system:
        return []
    state = [f"StateDirectory={SYSTEM_STATE.name}", "StateDirectoryMode=0700"]
    cache = [f"CacheDirectory={SYSTEM_CACHE.name}"]
    return [*(state if service.state == SYSTEM_STATE else []), *(cache if service.cache == SYSTEM_CACHE else [])]


SYSTEM_STATE = Path("/var/lib/covey")
SYSTEM_CACHE = Path("/var/cache/covey")


def quote_systemd(word: str) -> str:
    """One word of `ExecStart`: neither split, nor expanded as a specifier or variable."""
    if not word.isprintable():
        raise ValueError(f"a word of a service's command must be one line of printable text; got {word!r}")
    escaped = _escape_specifiers(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return escaped if re.fullmatch(r"[\w@%+=:,./-]+", escaped, re.ASCII) else f'"{escaped}"'


def _escape_specifiers(text: str) -> str:
    return text.replace("%", "%%")


def render_launchd(service: Service, python: str) -> str:
    """launchd knows no file of variables and stops no loop: a launcher of ours does both, and becomes the service."""
    launcher = (python, "-m", "covey.service.launch", service.role, str(service.environment_file), str(service.state))
    content = {
        "Label": service.label,
        "ProgramArguments": [*launcher, "--", *service.command],
        "EnvironmentVariables": {STATE_VARIABLE: str(service.state), SERVICE_VARIABLE: service.role},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": _FIXED_DELAY_SECONDS,
        "ExitTimeOut": service.stop_seconds,
        "AbandonProcessGroup": True,
        "ProcessType": "Interactive",  # else macOS holds its processor and disk back
        "SoftResourceLimits": {"NumberOfFiles": ENOUGH_FILES},  # its own 256 are a hundred clients
        "StandardErrorPath": str(service.log),
        "StandardOutPath": str(service.log),
        "Umask": 0o077,
    }
    text = plistlib.dumps(content, sort_keys=False).decode()
    return seal(text, "<!DOCTYPE", "<!-- ", " -->")
