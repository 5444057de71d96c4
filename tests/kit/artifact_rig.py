"""One agent's artifacts on a cache folder of their own, with little patience with what refuses."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.hub import HubSettings
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.node import NodeArtifacts
from covey_agent.artifacts.web import Patience, Web
from covey_agent.ports import Transfer

# A busy machine is silent for a second or two by itself: that costs no try where silence isn't what is tested.
QUICK = Patience(connect_seconds=20, stall_seconds=20, tries=4, backoff_seconds=0.05, longest_pause_seconds=3)
IMPATIENT = replace(QUICK, stall_seconds=2)


@dataclass(frozen=True, slots=True)
class Rig:
    """One agent's artifacts on one cache folder."""

    cache: Cache
    web: Web
    downloader: Downloader
    artifacts: NodeArtifacts


@asynccontextmanager
async def rig_on(
    folder: Path, settings: IndexSettings, patience: Patience = QUICK, hub: HubSettings | None = None
) -> AsyncGenerator[Rig]:
    cache, web = Cache(folder), Web(settings, patience)
    downloader = Downloader(web, cache)
    artifacts = NodeArtifacts(web, cache, downloader, hub or HubSettings())
    try:
        yield Rig(cache, web, downloader, artifacts)
    finally:
        await artifacts.close()
        await web.close()


def ignore(transfer: Transfer) -> None:
    assert 0 <= transfer.done_bytes <= transfer.total_bytes
