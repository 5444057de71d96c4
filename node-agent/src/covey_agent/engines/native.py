"""LlamaServer on this node: given, managed or found.

Choice, in this order:
  1. `path` in the Node's spec: that one or a loud error, never another in its place;
  2. the managed one, where its wheel runs and provisioning is on;
  3. `llama-server` on PATH;
  4. the managed one that is installed already, though provisioning is off;
  5. none: NoUsableEngine, with the line that installs one.
"""

import asyncio
import logging
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from covey_api.engines import EngineName, Lane, LaneBuild, LaneState
from covey_api.node import EngineOverride
from covey_api.reasons import FailureCause

from covey_agent.engines.donors import has_donor_program
from covey_agent.engines.environments import Environment
from covey_agent.engines.features import list_lacking, parse_features
from covey_agent.engines.lanes import DONATING, EngineDevice, parse_devices, plan_lanes
from covey_agent.engines.probe import Answer, ask
from covey_agent.engines.recipes import is_llama_server_fit
from covey_agent.engines.source import (
    PROVISIONING_OFF,
    Identity,
    ask_version,
    given_path,
    identify,
    is_lasting,
    is_provisioning_on,
    judge_version,
    parse_version,
    refuse_version,
    unusable,
)
from covey_agent.facts.devices import is_any_seen, observe_reach, observe_set_aside
from covey_agent.ports import AgentError, EngineProgram, OnTransfer, Transfer

logger = logging.getLogger(__name__)

# Offering lanes must not wait for a driver that hangs.
_PROBE_SECONDS = 2.0
# The first start after an installation reads 200 MB of libraries from the disk.
_VERSION_SECONDS = 10.0
# Devices are listed again for their free memory; what can't start is tried again, and what hung is asked again.
_DEVICES_SECONDS = 30.0
_SILENCE_SECONDS = 300.0
# One look waits this long for an installation: less than a look at the node may take.
_INSTALL_SECONDS = 20.0
# A machine that shows no accelerator is looked at for one again after this.
_NO_CARD_SECONDS = 60.0
# Its 68 MB take this long at 400 kB/s.
_PREPARE_SECONDS = 180.0
_ROOT = Path("/")
# Programs that are known to work: as many as there are versions, and what a person puts in the place of one.
_MAX_SOUND = 8


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a program said of itself, and when."""

    version: str
    devices: tuple[EngineDevice, ...]
    is_silent: bool
    at_seconds: float
    problem: AgentError | None = None
    """Why it can't start, if it said so."""

    def is_fresh(self, now: float) -> bool:
        if self.problem is not None:
            return now - self.at_seconds < _DEVICES_SECONDS
        if self.is_silent:
            return now - self.at_seconds < _SILENCE_SECONDS
        return not self.devices or now - self.at_seconds < _DEVICES_SECONDS


class LlamaServerSource:
    """`versions`: those that can be installed; the first where nothing is pinned. `environment`: the agent's own
    variables."""

    engine = EngineName.LLAMA_SERVER

    def __init__(self, versions: tuple[Environment, ...], environment: Mapping[str, str]) -> None:
        self._managed = versions[0]
        self._versions = {each.recipe.version: each for each in versions}
        self._environment = dict(environment)
        self._seen: dict[Identity, _Seen] = {}
        self._sound: dict[Identity, EngineProgram] = {}
        self._features: dict[Identity, frozenset[str] | None] = {}
        """What each build's help names; None of one that gave none."""
        self.devices: tuple[EngineDevice, ...] = ()
        """Accelerators as the engine listed them last; `observe_lanes` refreshes them."""
        self.problem: AgentError | None = None
        """Why it can't be installed, or what is here can't start, as of the last look; its lanes are offered all the
        same (ADR 51)."""
        self._install_problem: AgentError | None = None
        self._listed: EngineProgram | None = None
        self._preparing_since: float | None = None
        self._no_card_until = float("-inf")
        self._has_given_up = False
        self._installing: asyncio.Task[AgentError | None] | None = None

    async def observe_lanes(self, override: EngineOverride | None) -> tuple[Lane, ...]:
        self.devices, self._listed, self.problem = (), None, None
        program = self._find(override)
        if program is None and not self._can_install(override):
            raise unusable(_install_line(is_provisioning_on(override, self._environment)))
        if program is None:
            recipe, self.problem = self._managed.recipe, self._install_problem
            return plan_lanes(
                recipe.version,
                recipe.digest,
                LaneState.INSTALLABLE,
                (),
                tuple(self._versions),
                donates=True,
                builds=await self._observe_builds(recipe.version),
            )
        seen = await self._look_at(program)
        self.devices, self._listed, self.problem = seen.devices, program, seen.problem
        versions = tuple(self._versions) if program.digest else ()
        return plan_lanes(
            program.version or seen.version,
            program.digest,
            LaneState.INSTALLED,
            seen.devices,
            versions,
            donates=has_donor_program(program),
            lacks_features=() if seen.is_silent else list_lacking(await self._find_features(program, _PROBE_SECONDS)),
            builds=await self._observe_builds(program.version) if versions else (),
        )

    async def _observe_builds(self, own: str) -> tuple[LaneBuild, ...]:
        """The versions that a pin may name beside the lanes' own."""
        return tuple([await self._observe_build(each) for version, each in self._versions.items() if version != own])

    async def _observe_build(self, managed: Environment) -> LaneBuild:
        """Of one that isn't here nothing is known but that it can be had."""
        recipe, packages = managed.recipe, managed.find()
        if packages is None:
            return LaneBuild(version=recipe.version, digest=recipe.digest, state=LaneState.INSTALLABLE, roles=DONATING)
        program = self._program(managed, packages)
        return LaneBuild(
            version=recipe.version,
            digest=recipe.digest,
            state=LaneState.INSTALLED,
            lacks_features=list_lacking(await self._find_features(program, _PROBE_SECONDS)),
            roles=DONATING if has_donor_program(program) else (),
        )

    async def refresh_devices(self) -> None:
        """Of the program that listed them last. A driver that hangs now hung not when lanes were looked at."""
        if self._listed is None or not self.devices:
            return
        program = self._listed
        seen = await self._ask_about(program)
        if not seen.is_silent and program is self._listed:
            self._seen, self.devices = {identify(program.path): seen}, seen.devices

    async def prepare(self, override: EngineOverride | None, *, is_wished: bool, has_members: bool) -> bool:
        """Whether lanes can be told: of a machine with an accelerator not before the program is there to list it.

        Else its processor's lane would be all that is offered, and the first replica would go there and stay. Who has
        members is no fresh machine: without lanes these would count as lost. What can't be installed in time doesn't
        hold back what there is; once it has failed, it isn't tried again before a member needs it.
        """
        is_given = override is not None and override.path is not None
        if self._has_given_up or is_given or not self._can_install(override) or self._managed.find():
            return True
        if time.monotonic() < self._no_card_until:
            return True
        if not await is_any_seen(shutil.which("nvidia-smi", path=self._search_path), _ROOT):
            self._no_card_until = time.monotonic() + _NO_CARD_SECONDS
            return True
        if not is_wished:
            return has_members
        now = time.monotonic()
        if self._preparing_since is None:
            logger.info("an accelerator is here: llama-server is installed for it")
            self._preparing_since = now
        # One task, whoever looks meanwhile: an installation that is broken off begins anew.
        installing = self._installing = self._installing or asyncio.create_task(self._install())
        done, _ = await asyncio.wait({installing}, timeout=0 if has_members else _INSTALL_SECONDS)
        if done:
            self._installing = None
        self._judge(installing.result() if done else None, time.monotonic() - self._preparing_since)
        return has_members or self._has_given_up or self._managed.find() is not None

    async def _install(self) -> AgentError | None:
        try:
            await self._managed.ensure(_ignore)
        except AgentError as error:
            return error
        except Exception as error:
            logger.exception("llama-server could not be installed")
            return unusable(f"unexpected {type(error).__name__}: {error}")
        return None

    def _judge(self, problem: AgentError | None, seconds: float) -> None:
        """Whether it is waited for, and what failed is tried again, at the next look."""
        self._install_problem = problem if problem is not None and is_lasting(problem) else None
        if problem is not None and problem.cause is not FailureCause.ARTIFACT_UNAVAILABLE:
            self._has_given_up = True
            logger.error("no accelerator can be offered before llama-server is installed: %s", problem.message)
        elif seconds >= _PREPARE_SECONDS and not self._managed.find():
            self._has_given_up = True
            why = problem.message if problem else "it is still on its way"
            logger.error("llama-server is not here after %.0f s, so the CPU lane is offered only: %s", seconds, why)

    async def ensure(
        self, override: EngineOverride | None, on_transfer: OnTransfer, version: str | None = None
    ) -> EngineProgram:
        program = self._find(override, version)
        if program is None:
            if not self._can_install(override):
                raise unusable(_install_line(is_provisioning_on(override, self._environment)))
            managed = self._environment_of(version)
            program = self._program(managed, await managed.ensure(on_transfer))
        return await self._check(program)

    def is_here(self, override: EngineOverride | None, version: str | None = None) -> bool:
        try:
            return self._find(override, version) is not None
        except AgentError:
            return False

    def _environment_of(self, version: str | None) -> Environment:
        if version is None:
            return self._managed
        if version not in self._versions:
            raise refuse_version(self.engine, version, tuple(self._versions))
        return self._versions[version]

    def _find(self, override: EngineOverride | None, version: str | None = None) -> EngineProgram | None:
        """The program that is on the machine and would be used; None when there is none, or it must be installed."""
        if override is not None and override.path is not None:
            return EngineProgram(given_path(override.path), {}, "", "")
        if not self._can_install(override) and (found := shutil.which("llama-server", path=self._search_path)):
            return EngineProgram(Path(found).resolve(), {}, "", "")
        managed = self._environment_of(version)
        installed = managed.find()
        return self._program(managed, installed) if installed else None

    @property
    def _search_path(self) -> str | None:
        return self._environment.get("PATH")

    def _program(self, managed: Environment, packages: Path) -> EngineProgram:
        recipe = managed.recipe
        path = packages / recipe.program
        # Its libraries are found by `$ORIGIN`; the Vulkan loader beside them must win over an older one.
        return EngineProgram(path, {"LD_LIBRARY_PATH": str(path.parent)}, recipe.version, recipe.digest)

    def _can_install(self, override: EngineOverride | None) -> bool:
        return is_provisioning_on(override, self._environment) and is_llama_server_fit()

    async def _look_at(self, program: EngineProgram) -> _Seen:
        """Version and devices, at most as old as they may be."""
        identity = identify(program.path)
        seen = self._seen.get(identity)
        if seen is None or not seen.is_fresh(time.monotonic()):
            seen = await self._ask_about(program)
            self._seen = {identity: seen}
        return seen

    async def _ask_about(self, program: EngineProgram) -> _Seen:
        now = time.monotonic()
        async with asyncio.TaskGroup() as group:
            version, devices = (
                group.create_task(ask(program.path, option, environment=program.environment, seconds=_PROBE_SECONDS))
                for option in ("--version", "--list-devices")
            )
        listed, said = devices.result(), version.result()
        set_aside = await asyncio.to_thread(observe_set_aside, _ROOT)
        reach = await asyncio.to_thread(observe_reach, _ROOT)
        if listed is None:
            logger.warning("%s did not list its devices within %.0f s: the CPU lane only", program.path, _PROBE_SECONDS)
        return _Seen(
            version=parse_version(said.text) if said else "",
            devices=parse_devices(listed.text, set_aside, reach) if listed and listed.status == 0 else (),
            is_silent=listed is None,
            at_seconds=now,
            problem=_find_problem(program, said) if said else None,
        )

    async def _check(self, program: EngineProgram) -> EngineProgram:
        """The program, once it answered, with what its build can do."""
        identity = identify(program.path)
        if sound := self._sound.get(identity):
            return sound
        version = await ask_version(program, _VERSION_SECONDS)
        features = await self._find_features(program, _VERSION_SECONDS)
        sound = replace(program, version=program.version or version, features=features)
        if len(self._sound) >= _MAX_SOUND:
            self._sound.clear()
        self._sound[identity] = sound
        return sound

    async def _find_features(self, program: EngineProgram, seconds: float) -> frozenset[str] | None:
        """Asked once of each build; of one that gave no answer again when an Instance needs it."""
        identity = identify(program.path)
        known = self._features.get(identity)
        if known is not None or (identity in self._features and seconds <= _PROBE_SECONDS):
            return known
        said = await ask(program.path, "--help", environment=program.environment, seconds=seconds)
        if len(self._features) >= _MAX_SOUND:
            self._features.clear()
        found = self._features[identity] = parse_features(said.text) if said and said.status == 0 else None
        return found


def _find_problem(program: EngineProgram, said: Answer) -> AgentError | None:
    try:
        judge_version(program, said)
    except AgentError as error:
        return error
    return None


def _ignore(transfer: Transfer) -> None:
    """Nobody looks at what is fetched before anybody asks for it."""


def _install_line(can_provision: bool) -> str:
    if sys.platform == "darwin":
        return "no `llama-server` on PATH. Install it: `brew install llama.cpp`."
    if can_provision:
        return (
            "no `llama-server` on PATH, and the managed one needs Linux on x86-64 with glibc 2.35 or newer. Install "
            "llama.cpp for this machine, or give its path in the Node's `spec.engines`."
        )
    return (
        f"no `llama-server` on PATH, and provisioning is off (`spec.engines[].provisioning` or {PROVISIONING_OFF}). "
        "Turn it on, or install llama.cpp."
    )
