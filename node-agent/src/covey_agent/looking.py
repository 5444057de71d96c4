"""What this machine could run, looked at once by the agent's own probes: for whoever asks before an agent does.

Nothing is installed, joined or reported, and nothing is written: a cache that isn't there yet is looked for in an empty
folder that goes again.
"""

import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from covey_api.engines import EngineName
from covey_api.node import NodeSpec

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.index import observe_index_settings
from covey_agent.artifacts.web import Patience, Web
from covey_agent.engines.provision import NodeEngines, open_engines
from covey_agent.ports import AgentError, Transfer
from covey_agent.supervisor.kept import Kept


@asynccontextmanager
async def look_at_engines(cache: Path, environment: Mapping[str, str], home: Path) -> AsyncGenerator[NodeEngines]:
    """The engines as an agent with this cache and environment has them."""
    with tempfile.TemporaryDirectory(prefix="covey-look-") as empty:
        web = Web(observe_index_settings(environment, home), Patience())
        try:
            opened = _open_cache(cache, Path(empty))
            yield open_engines(web, opened, Downloader(web, opened), environment)
        finally:
            await web.close()


def _open_cache(folder: Path, empty: Path) -> Cache:
    try:
        return Cache(folder, is_only_looked_at=True) if (folder / "blobs").is_dir() else Cache(empty)
    except OSError:
        return Cache(empty)


async def explain_unusable(engines: NodeEngines, engine: EngineName, spec: NodeSpec) -> str:
    """Why an engine that is installed doesn't start; empty when it does."""
    try:
        await engines.ensure(engine, spec, _ignore)
    except AgentError as error:
        return error.message
    return ""


def read_kept_spec(state: Path) -> NodeSpec:
    """The Node's spec as it was last assigned; the defaults where nothing was, or it can't be read."""
    try:
        return Kept.model_validate_json((state / "agent" / "assignments.json").read_bytes()).spec
    except (OSError, ValueError):
        return NodeSpec()


def _ignore(_: Transfer) -> None: ...
