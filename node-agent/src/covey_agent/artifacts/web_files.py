"""`http://` and `https://` sources: one GGUF file at an address that somebody gave.

Nobody vouches for such a file but the Model: its `sha256` is what comes is held against, so plain HTTP is as good for
the content. Logins come from the user's netrc, as for a package index.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from covey_api.model import ResolvedArtifact
from covey_api.source import WebSource
from covey_planner.geometry.reader import HeaderInvalid
from covey_planner.geometry.shards import list_shards

from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.header import Header, find_unmeasured, read_geometry
from covey_agent.artifacts.remote import RemoteFile
from covey_agent.artifacts.web import SERVER, Web, corrupt, unavailable
from covey_agent.ports import OnTransfer

Download = Callable[[Remote, OnTransfer], Awaitable[Path]]


class WebFiles:
    """Files by their URL."""

    def __init__(self, web: Web, download: Download) -> None:
        self._web = web
        self._download = download

    async def read_header(self, source: str, parsed: WebSource, sha256: str) -> tuple[ResolvedArtifact, Header]:
        name = name_of(parsed)
        remote = RemoteFile(self._web, parsed.url, name, 0, SERVER)
        await remote.observe_size()
        geometry = await find_unmeasured(read_geometry(remote.read_pieces(), remote.size_bytes, f"'{name}'"))
        artifact = ResolvedArtifact(source=source, name=name, size_bytes=remote.size_bytes, sha256=sha256 or None)
        return artifact, geometry

    async def fetch(self, artifact: ResolvedArtifact, parsed: WebSource, tell: OnTransfer) -> Path:
        if artifact.sha256 is None:
            raise corrupt(
                f"'{artifact.name}' has no sha256 that it can be verified with. Give the Model's variant a `sha256`."
            )
        remote = Remote(parsed.url, artifact.name, artifact.sha256, artifact.size_bytes, SERVER)
        return await self._download(remote, tell)


def name_of(parsed: WebSource) -> str:
    """Name of the file; AgentError when it is one of several that are useless alone."""
    parts = urlsplit(parsed.url)
    name = PurePosixPath(unquote(parts.path)).name[:255] or parts.netloc
    try:
        count = len(list_shards(name))
    except HeaderInvalid as error:
        raise unavailable(str(error)) from error
    if count > 1:
        raise unavailable(
            f"'{name}' is one of {count} files of a model, and an https:// source is one file. Merge them with "
            "`llama-gguf-split --merge`, or use an hf:// or a file:// source."
        )
    return name
