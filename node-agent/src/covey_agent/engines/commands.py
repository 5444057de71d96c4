"""Vllm on this node: the `vllm` that the operator installed, named in the Node's spec or found on PATH.

There is no environment of ours: its wheels take six gigabytes and are made for one driver each. Its only lane is the
processor's, from which cards are hidden (`engines.vllm`): a build for cards would end at once, with a card or without.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from covey_api.engines import HOST_POOL, Compute, EngineName, Lane, LaneState
from covey_api.node import EngineOverride

from covey_agent.engines.source import Identity, ask_version, given_path, identify, unusable
from covey_agent.ports import EngineProgram, OnTransfer

# It imports torch to say its version.
_VERSION_SECONDS = 90.0
# The version is told by the name of a folder beside the program: asking the program takes a minute.
_INSTALLED = re.compile(r"vllm-(?P<version>[^-]+)\.dist-info")
_NONE = "no `vllm` on PATH. Install it into an environment of its own, and give its path in the Node's `spec.engines`."


class VllmSource:
    """`environment`: the agent's own variables."""

    engine = EngineName.VLLM

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._sound: dict[Identity, EngineProgram] = {}

    async def observe_lanes(self, override: EngineOverride | None) -> tuple[Lane, ...]:
        program = self._find(override)
        if program is None:
            return ()
        if made := find_build_for_cards(program.path):
            raise unusable(
                f"{program.path} is vLLM {made}, a build for cards, and Covey runs vLLM on processors only: it would "
                "end at its start. Install a build whose version ends in `+cpu`, and give its path in the Node's "
                "`spec.engines`, or disable the engine there."
            )
        version = self._sound.get(identify(program.path), program).version
        lane = Lane(engine=self.engine, compute=Compute.CPU, state=LaneState.INSTALLED, version=version, pool=HOST_POOL)
        return (lane,)

    async def ensure(
        self, override: EngineOverride | None, on_transfer: OnTransfer, version: str | None = None
    ) -> EngineProgram:
        program = self._find(override)
        if program is None:
            raise unusable(_NONE)
        identity = identify(program.path)
        if identity not in self._sound:
            found = await ask_version(program, _VERSION_SECONDS)
            self._sound = {identity: EngineProgram(program.path, {}, found, "")}
        return self._sound[identity]

    def is_here(self, override: EngineOverride | None, version: str | None = None) -> bool:
        return True  # one that isn't is refused, and never fetched

    def _find(self, override: EngineOverride | None) -> EngineProgram | None:
        if override is not None and override.path is not None:
            return EngineProgram(given_path(override.path), {}, "", "")
        found = shutil.which("vllm", path=self._environment.get("PATH"))
        return EngineProgram(Path(found), {}, "", "") if found else None


def find_build_for_cards(program: Path) -> str:
    """Its version, if its environment has no build for processors; empty also where the environment tells nothing."""
    packages = program.resolve().parent.parent.glob("lib*/python3*/site-packages/vllm-*.dist-info")
    found = [match["version"] for folder in packages if (match := _INSTALLED.fullmatch(folder.name))]
    is_for_processors = any("cpu" in version.partition("+")[2].split(".") for version in found)
    return "" if is_for_processors else next(iter(found), "")
