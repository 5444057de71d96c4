"""Engines in Python: an environment of ours under the agent's interpreter, or a Python that the operator names.

They run under a server of ours (`servers`), which is the program's last argument before the adapter's own; the agent's
own packages are not on its path (`-I -S`).

On a machine where such an engine is not at home it is offered only if the Node's spec names it: MLX on a processor is
for tests and the curious, and llama-cpp-python is compiled on the node.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from covey_api.engines import HOST_POOL, Compute, EngineName, Lane, LaneState
from covey_api.instance import MemberRole
from covey_api.node import EngineOverride

from covey_agent.engines.environments import Environment
from covey_agent.engines.source import (
    Identity,
    ask_version,
    given_path,
    identify,
    is_provisioning_on,
    refuse_version,
    unusable,
)
from covey_agent.ports import EngineProgram, OnTransfer

SERVE = Path(__file__).parent / "servers" / "serve.py"
# The first import of a few thousand modules, from a slow disk.
_VERSION_SECONDS = 60.0


class PythonSource:
    """`managed`: None where no environment can be made here. `is_at_home`: offered without being named."""

    def __init__(
        self,
        engine: EngineName,
        find_environment: Callable[[], Environment | None],
        computes: tuple[Compute, ...],
        environment: Mapping[str, str],
        *,
        is_at_home: bool,
    ) -> None:
        self.engine = engine
        self._find_environment = find_environment
        self._computes = computes
        self._environment = dict(environment)
        self._is_at_home = is_at_home
        self._sound: dict[Identity, EngineProgram] = {}

    async def observe_lanes(self, override: EngineOverride | None) -> tuple[Lane, ...]:
        if override is None and not self._is_at_home:
            return ()
        if override is not None and override.path is not None:
            program = self._given(given_path(override.path))
            return self._lanes(LaneState.INSTALLED, self._sound.get(_identify(program), program).version, "")
        managed = self._managed(override)
        state = LaneState.INSTALLED if managed.find() else LaneState.INSTALLABLE
        return self._lanes(state, managed.recipe.version, managed.recipe.digest)

    async def ensure(
        self, override: EngineOverride | None, on_transfer: OnTransfer, version: str | None = None
    ) -> EngineProgram:
        if override is not None and override.path is not None:
            program = self._given(given_path(override.path))
        else:
            managed = self._managed(override)
            if version not in (None, managed.recipe.version):
                raise refuse_version(self.engine, version or "", (managed.recipe.version,))
            packages = await managed.ensure(on_transfer)
            flags = ("-I", "-S", str(SERVE), self.engine.value, "--packages", str(packages))
            recipe = managed.recipe
            program = EngineProgram(
                Path(sys.executable), self._extras(), recipe.version, recipe.digest, flags, packages=packages
            )
        identity = _identify(program)
        if sound := self._sound.get(identity):
            return sound
        found = await ask_version(program, _VERSION_SECONDS)
        sound = replace(program, version=program.version or found)
        self._sound = {identity: sound}
        return sound

    def is_here(self, override: EngineOverride | None, version: str | None = None) -> bool:
        managed = self._find_environment()
        return (override is not None and override.path is not None) or bool(managed and managed.find())

    def _given(self, python: Path) -> EngineProgram:
        return EngineProgram(python, self._extras(), "", "", ("-I", str(SERVE), self.engine.value))

    def _extras(self) -> dict[str, str]:
        """MLX on a processor multiplies with the BLAS that it finds first; its wheel brings one that is very slow."""
        if self.engine is not EngineName.MLX or sys.platform != "linux":
            return {}
        found = sorted(Path("/usr/lib").glob("*/libopenblas.so.0"))
        return {"LD_PRELOAD": str(found[0])} if found else {}

    def _managed(self, override: EngineOverride | None) -> Environment:
        managed = self._find_environment()
        if managed is not None and (managed.find() or is_provisioning_on(override, self._environment)):
            return managed
        why = "provisioning is off" if managed is not None else "it can't be installed on this machine"
        needs = (
            " (llama-cpp-python is compiled: it needs `cc` and `c++`)" if self.engine is EngineName.LLAMA_CPP else ""
        )
        raise unusable(
            f"no `path` of a Python for engine '{self.engine}' in the Node's `spec.engines`, and {why}{needs}."
        )

    def _lanes(self, state: LaneState, version: str, digest: str) -> tuple[Lane, ...]:
        return tuple(
            Lane(
                engine=self.engine,
                compute=compute,
                state=state,
                version=version,
                digest=digest,
                pool=HOST_POOL,
                versions=(version,) if digest else (),
                roles=(MemberRole.RANK.value,) if self.engine is EngineName.MLX else (),
            )
            for compute in self._computes
        )


def _identify(program: EngineProgram) -> Identity:
    """Of one in an environment of ours by what is in it: the interpreter is the agent's own, whatever that is."""
    path, size, changed, node = identify(program.path)
    return program.digest or path, size, changed, node
