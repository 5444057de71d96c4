"""This machine's artifact cache and its sources, as the agent has them, for commands that need no agent."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.hub import observe_hub_settings
from covey_agent.artifacts.index import observe_index_settings
from covey_agent.artifacts.node import NodeArtifacts
from covey_agent.artifacts.web import Patience, Web
from covey_agent.options import default_cache

from covey.neighbours import open_neighbours
from covey.paths import default_state_folder


@asynccontextmanager
async def open_artifacts(folder: Path | None = None, state: Path | None = None) -> AsyncGenerator[NodeArtifacts]:
    """By default the user's cache; where that can't be written to, one for this command alone. `state`: of the agent
    as which other nodes are asked, by default the user's."""
    home = Path.home()
    web = Web(observe_index_settings(os.environ, home), Patience())
    with TemporaryDirectory(prefix="covey-") as temporary:
        try:
            cache = await asyncio.to_thread(Cache, folder or default_cache())
        except OSError:
            if folder is not None:
                raise
            cache = await asyncio.to_thread(Cache, Path(temporary))
        downloader, hub = Downloader(web, cache), observe_hub_settings(os.environ, home)
        try:
            async with open_neighbours(state or default_state_folder(), web) as neighbours:
                artifacts = NodeArtifacts(web, cache, downloader, hub, Downloader(web, cache, neighbours))
                try:
                    yield artifacts
                finally:
                    await artifacts.close()
        finally:
            await web.close()
