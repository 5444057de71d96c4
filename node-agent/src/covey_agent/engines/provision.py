"""The port `Engines`: which `llama-server` this node uses.

Choice, in this order:
  1. disabled in the Node's spec: none;
  2. `path` in the Node's spec: that one or a loud error, never another in its place;
  3. the managed one, where its wheel runs and provisioning is on;
  4. `llama-server` on PATH;
  5. the managed one that is installed already, though provisioning is off;
  6. none: NoUsableEngine, with the line that installs one.
"""

import asyncio
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from covey_api.engines import EngineName, Lane, LaneState
from covey_api.node import EngineOverride, NodeSpec, Provisioning
from covey_api.reasons import FailureCause

from covey_agent.engines.lanes import EngineDevice, parse_devices, plan_lanes
from covey_agent.engines.libraries import explain_missing_library
from covey_agent.engines.managed import ManagedEngine, is_platform_fit
from covey_agent.engines.probe import ask
from covey_agent.ports import AgentError, EngineProgram, OnTransfer

logger = logging.getLogger(__name__)

PROVISIONING_OFF = "COVEY_NO_ENGINE_PROVISIONING"
# Offering lanes must not wait for a driver that hangs.
_PROBE_SECONDS = 2.0
# The first start after an installation reads 200 MB of libraries from the disk.
_VERSION_SECONDS = 10.0
# Devices are listed again for their free memory, and what hung is asked again.
_DEVICES_SECONDS = 30.0
_SILENCE_SECONDS = 300.0

_VERSION = re.compile(r"^version: (.{1,64})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a program said of itself, and when."""

    version: str
    devices: tuple[EngineDevice, ...]
    is_silent: bool
    at_seconds: float

    def is_fresh(self, now: float) -> bool:
        if self.is_silent:
            return now - self.at_seconds < _SILENCE_SECONDS
        return not self.devices or now - self.at_seconds < _DEVICES_SECONDS


class NodeEngines:
    """LlamaServer on this node: given, managed or found."""

    def __init__(self, managed: ManagedEngine, environment: Mapping[str, str]) -> None:
        self._managed = managed
        self._environment = environment
        self._seen: dict[tuple[str, int, int, int], _Seen] = {}
        self._sound: set[tuple[str, int, int, int]] = set()
        self._complaint = ""
        self.devices: tuple[EngineDevice, ...] = ()
        """Accelerators as the engine listed them last; `observe_lanes` refreshes them."""

    async def observe_lanes(self, spec: NodeSpec) -> tuple[Lane, ...]:
        override = _override(spec, EngineName.LLAMA_SERVER)
        if override.disabled:
            self.devices = ()
            return ()
        try:
            program = self._find(override)
        except AgentError as error:
            return self._offer_none(error.message)
        if program is None and not self._can_install(override):
            return self._offer_none(_install_line(self._is_provisioning_on(override)))
        self._complaint = ""
        if program is None:
            self.devices = ()
            pin = self._managed.pin
            return plan_lanes(pin.version, pin.sha256, LaneState.INSTALLABLE, ())
        seen = await self._look_at(program)
        self.devices = seen.devices
        return plan_lanes(program.version or seen.version, program.digest, LaneState.INSTALLED, seen.devices)

    def _offer_none(self, why: str) -> tuple[Lane, ...]:
        """No lane; why is told once, until it changes."""
        if why != self._complaint:
            logger.error("no lane of LlamaServer is offered: %s", why)
        self._complaint, self.devices = why, ()
        return ()

    async def ensure(self, engine: EngineName, spec: NodeSpec, on_transfer: OnTransfer) -> EngineProgram:
        override = _override(spec, engine)
        if override.disabled:
            raise _unusable(
                f"engine '{engine}' is disabled in this Node's `spec.engines`. Enable it, or exclude the node."
            )
        program = self._find(override)
        if program is None:
            if not self._can_install(override):
                raise _unusable(_install_line(self._is_provisioning_on(override)))
            program = await self._managed.ensure(on_transfer)
        return await self._check(program)

    def _find(self, override: EngineOverride) -> EngineProgram | None:
        """The program that is on the machine and would be used; None when there is none, or it must be installed."""
        if override.path is not None:
            return _given(override.path)
        if self._can_install(override):
            return self._managed.find()
        if found := shutil.which("llama-server", path=self._environment.get("PATH")):
            return EngineProgram(path=Path(found).resolve(), environment={}, version="", digest="")
        return self._managed.find()

    def _is_provisioning_on(self, override: EngineOverride) -> bool:
        is_forbidden = self._environment.get(PROVISIONING_OFF, "0") not in ("", "0")
        return override.provisioning is Provisioning.MANAGED and not is_forbidden

    def _can_install(self, override: EngineOverride) -> bool:
        return self._is_provisioning_on(override) and is_platform_fit(self._managed.pin)

    async def _look_at(self, program: EngineProgram) -> _Seen:
        """Version and devices, at most as old as they may be."""
        identity = _identify(program.path)
        now = time.monotonic()
        seen = self._seen.get(identity)
        if seen is not None and seen.is_fresh(now):
            return seen
        async with asyncio.TaskGroup() as group:
            version, devices = (
                group.create_task(ask(program.path, option, environment=program.environment, seconds=_PROBE_SECONDS))
                for option in ("--version", "--list-devices")
            )
        listed, said = devices.result(), version.result()
        if listed is None:
            logger.warning("%s did not list its devices within %.0f s: the CPU lane only", program.path, _PROBE_SECONDS)
        seen = _Seen(
            version=_parse_version(said.text) if said else "",
            devices=parse_devices(listed.text) if listed and listed.status == 0 else (),
            is_silent=listed is None,
            at_seconds=now,
        )
        self._seen = {identity: seen}
        return seen

    async def _check(self, program: EngineProgram) -> EngineProgram:
        """The program, once it answered: what can't start is told apart here, before weights are waited for."""
        identity = _identify(program.path)
        if program.version and identity in self._sound:
            return program
        answer = await ask(program.path, "--version", environment=program.environment, seconds=_VERSION_SECONDS)
        if answer is None:
            raise _unusable(f"{program.path} did not answer `--version` within {_VERSION_SECONDS:.0f} s.")
        if missing := explain_missing_library(str(program.path), answer.text):
            raise AgentError(FailureCause.MISSING_LIBRARY, missing)
        if answer.status != 0:
            last = " ".join(answer.text.split())[-200:]
            raise _unusable(f"{program.path} must answer `--version`; it ended with {answer.status}: {last}")
        self._sound.add(identity)
        version = program.version or _parse_version(answer.text)
        return EngineProgram(program.path, program.environment, version, program.digest)


def _override(spec: NodeSpec, engine: EngineName) -> EngineOverride:
    for override in spec.engines:
        if override.engine is engine:
            return override
    return EngineOverride(engine=engine)


def _given(text: str) -> EngineProgram:
    path = Path(text)
    if not path.is_absolute() or not path.is_file() or not os.access(path, os.X_OK):
        raise _unusable(
            f"`spec.engines[].path` of this Node must be the absolute path of a program that the agent's user may run; "
            f"got '{text}', which is not. Correct it, or leave it out."
        )
    return EngineProgram(path=path, environment={}, version="", digest="")


def _identify(path: Path) -> tuple[str, int, int, int]:
    """Changes whenever the program does."""
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0, 0
    return str(path), found.st_size, found.st_mtime_ns, found.st_ino


def _parse_version(text: str) -> str:
    match = _VERSION.search(text)
    return match.group(1).strip() if match else ""


def _unusable(message: str) -> AgentError:
    return AgentError(FailureCause.NO_USABLE_ENGINE, message)


def _install_line(is_provisioning_on: bool) -> str:
    if sys.platform == "darwin":
        return "no `llama-server` on PATH. Install it: `brew install llama.cpp`."
    if is_provisioning_on:
        return (
            "no `llama-server` on PATH, and the managed one needs Linux on x86-64 with glibc 2.35 or newer. Install "
            "llama.cpp for this machine, or give its path in the Node's `spec.engines`."
        )
    return (
        f"no `llama-server` on PATH, and provisioning is off (`spec.engines[].provisioning` or {PROVISIONING_OFF}). "
        "Turn it on, or install llama.cpp."
    )
