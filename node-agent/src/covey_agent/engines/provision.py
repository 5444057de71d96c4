"""The port `Engines`: which engines this node has or can have, each from its own source.

An engine that is disabled in the Node's spec is offered by none. Why one isn't offered is told once, until it changes.
"""

import asyncio
import logging
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from covey_api.engines import MAX_LACKS, Compute, EngineName, Lane, UnusableEngine
from covey_api.node import EngineOverride, NodeSpec

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.web import Web
from covey_agent.engines.architectures import find_code, is_lacking
from covey_agent.engines.commands import VllmSource
from covey_agent.engines.environments import Environment, Provenances, Recipe
from covey_agent.engines.failed import FailedEngines
from covey_agent.engines.lanes import EngineDevice
from covey_agent.engines.native import LlamaServerSource
from covey_agent.engines.packages import PythonSource
from covey_agent.engines.recipes import LLAMA_SERVERS, llama_cpp_recipe, mlx_recipe
from covey_agent.engines.source import EngineSource, Identity, identify, unusable
from covey_agent.ports import AgentError, EngineProgram, OnTransfer, Transfer

logger = logging.getLogger(__name__)

# Of the message that a report carries.
_MAX_MESSAGE = 1024


class NodeEngines:
    """All engines of this node. `llama_server` is one of `sources`, and knows the accelerators."""

    def __init__(self, llama_server: LlamaServerSource, *others: EngineSource) -> None:
        self._llama_server = llama_server
        self._sources: dict[EngineName, EngineSource] = {each.engine: each for each in (llama_server, *others)}
        self._complaints: dict[EngineName, str] = {}
        self._failed = FailedEngines()
        self._offers_any = True
        self._lacking: dict[_Build, _Lacking] = {}

    @property
    def devices(self) -> tuple[EngineDevice, ...]:
        """Accelerators as llama-server listed them last; `observe_lanes` refreshes them."""
        return self._llama_server.devices

    @property
    def complaints(self) -> Mapping[EngineName, str]:
        """Why an engine isn't offered, as of the last look."""
        return self._complaints

    async def prepare(self, spec: NodeSpec | None, *, has_members: bool) -> bool:
        override = find_override(spec, EngineName.LLAMA_SERVER) if spec else None
        if override is not None and override.disabled:
            return True
        return await self._llama_server.prepare(override, is_wished=spec is not None, has_members=has_members)

    async def observe_lanes(self, spec: NodeSpec) -> tuple[Lane, ...]:
        async with asyncio.TaskGroup() as group:
            looks = [group.create_task(self._observe(source, spec)) for source in self._sources.values()]
        lanes = tuple(lane for look in looks for lane in look.result())
        self._offers_any = bool(lanes)
        for engine in {lane.engine for lane in lanes}:
            override, source = find_override(spec, engine), self._sources[engine]
            is_here, start = partial(source.is_here, override), partial(self._try, source, override)
            self._failed.try_again(engine, override, is_here, start)
        return lanes

    def observe_unusable(self, spec: NodeSpec) -> tuple[UnusableEngine, ...]:
        """Of each engine the first that holds:

        1. disabled: nothing; 2. it couldn't be started when it was wanted; 3. what is here said that it can't start;
        4. it isn't offered, and the Node's spec names it, or there is no other engine: somebody counts on it.
        """
        found: list[UnusableEngine] = []
        for engine in sorted(self._sources):
            override = find_override(spec, engine)
            if override is not None and override.disabled:
                continue
            problem = self._failed.find(engine, override)
            if problem is None and engine is EngineName.LLAMA_SERVER:
                problem = self._llama_server.problem
            if problem is None and (override is not None or not self._offers_any) and engine in self._complaints:
                problem = unusable(self._complaints[engine])
            if problem is not None:
                found.append(UnusableEngine(engine=engine, cause=problem.cause, message=problem.message[:_MAX_MESSAGE]))
        return tuple(found)

    async def _observe(self, source: EngineSource, spec: NodeSpec) -> tuple[Lane, ...]:
        override = find_override(spec, source.engine)
        if override is not None and override.disabled:
            self._complaints.pop(source.engine, None)
            if source is self._llama_server:
                self._llama_server.devices, self._llama_server.problem = (), None
            return ()
        try:
            lanes = await source.observe_lanes(override)
        except AgentError as error:
            if self._complaints.get(source.engine) != error.message:
                logger.error("no lane of %s is offered: %s", source.engine, error.message)
            self._complaints[source.engine] = error.message
            return ()
        self._complaints.pop(source.engine, None)
        for build in [build for build, each in self._lacking.items() if not each.is_so()]:
            del self._lacking[build]
        return tuple(map(self._mark, lanes))

    def _mark(self, lane: Lane) -> Lane:
        builds = tuple(each.changed(lacks=self._lacks(lane.engine, each.version, each.digest)) for each in lane.builds)
        return lane.changed(lacks=self._lacks(lane.engine, lane.version, lane.digest), builds=builds)

    def _lacks(self, engine: EngineName, version: str, digest: str) -> tuple[str, ...]:
        lacking = self._lacking.get((engine, version, digest))
        return tuple(sorted(lacking.names))[:MAX_LACKS] if lacking else ()

    async def refresh_devices(self) -> None:
        await self._llama_server.refresh_devices()

    async def ensure(
        self, engine: EngineName, spec: NodeSpec, on_transfer: OnTransfer, version: str | None = None
    ) -> EngineProgram:
        override = find_override(spec, engine)
        if override is not None and override.disabled:
            raise unusable(
                f"engine '{engine}' is disabled in this Node's `spec.engines`. Enable it, or exclude the node."
            )
        source = self._sources.get(engine)
        if source is None:
            raise unusable(f"this agent knows no engine '{engine}'. Upgrade it, or exclude the node.")
        try:
            program = await source.ensure(override, on_transfer, version)
        except AgentError as error:
            self._failed.fail(engine, version, override, error)
            raise
        self._failed.succeed(engine, version)
        return program

    async def _try(self, source: EngineSource, override: EngineOverride | None, version: str | None) -> None:
        """What failed when an Instance wanted it: whether it starts now."""
        try:
            await source.ensure(override, _ignore, version)
        except AgentError as error:
            self._failed.fail(source.engine, version, override, error, is_trial=True)
        else:
            self._failed.succeed(source.engine, version)

    async def require_architecture(self, engine: EngineName, program: EngineProgram, architecture: str) -> None:
        code = find_code(engine, program)
        if code is None or not await asyncio.to_thread(is_lacking, code, architecture):
            return
        build, identity = (engine, program.version, program.digest), identify(code)
        known = self._lacking.get(build)
        names = known.names if known is not None and known.identity == identity else frozenset[str]()
        self._lacking[build] = _Lacking(code, identity, names | {architecture})
        raise unusable(
            f"{engine} {program.version} on this node has no code for models of architecture '{architecture}'. Give a "
            "newer build in the Node's `spec.engines`, or the Model a variant for another engine."
        )


def _ignore(transfer: Transfer) -> None:
    """What is tried again is here."""


# Its engine, its version, its digest: what a lane tells of itself. Pinned versions are there beside the own one.
_Build = tuple[EngineName, str, str]


@dataclass(frozen=True, slots=True)
class _Lacking:
    """What one build was asked for and has no code for."""

    code: Path
    identity: Identity
    names: frozenset[str]

    def is_so(self) -> bool:
        """Whether the build is what it was."""
        return identify(self.code) == self.identity


def find_override(spec: NodeSpec, engine: EngineName) -> EngineOverride | None:
    return next((override for override in spec.engines if override.engine is engine), None)


def open_engines(
    web: Web,
    cache: Cache,
    downloader: Downloader,
    environment: Mapping[str, str],
    provenances: Provenances | None = None,
) -> NodeEngines:
    """Every engine that this version knows."""

    def prepare(find_recipe: Callable[[], Recipe | None]) -> Callable[[], Environment | None]:
        made: list[Environment | None] = []

        def find() -> Environment | None:
            if not made:
                recipe = find_recipe()
                made.append(Environment(recipe, web, cache, downloader, provenances) if recipe else None)
            return made[0]

        return find

    is_apple = sys.platform == "darwin" and platform.machine() == "arm64"
    computes = (Compute.METAL,) if is_apple else (Compute.CPU,)
    return NodeEngines(
        LlamaServerSource(
            tuple(Environment(each, web, cache, downloader, provenances) for each in LLAMA_SERVERS), environment
        ),
        PythonSource(EngineName.LLAMA_CPP, prepare(llama_cpp_recipe), computes, environment, is_at_home=False),
        PythonSource(EngineName.MLX, prepare(mlx_recipe), computes, environment, is_at_home=is_apple),
        VllmSource(environment),
    )
