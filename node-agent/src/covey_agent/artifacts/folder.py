"""`file://` sources that are folders: a checkpoint's files, used where they are.

A folder's digest is that of the list that `sha256sum` prints of its files, by name: anybody can compute it, and one
file more, less or changed makes another. What an engine doesn't load (code, pictures, `README.md`) doesn't count.
"""

import hashlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from covey_api.model import ArtifactFile, ResolvedArtifact

from covey_agent.artifacts.checkpoint import read_checkpoint
from covey_agent.artifacts.disk import run_to_end
from covey_agent.artifacts.header import Header, find_unmeasured
from covey_agent.artifacts.local import LocalFiles, read_pieces
from covey_agent.artifacts.sets import render_list
from covey_agent.artifacts.web import corrupt, unavailable
from covey_agent.ports import AgentError, OnTransfer, Transfer

# Weights, their index, configuration, tokenizer and template.
LOADED = frozenset({".safetensors", ".json", ".model", ".txt", ".jinja", ".tiktoken"})
MAX_FILES = 256


class LocalFolders:
    """Folders of this machine, by path."""

    def __init__(self, files: LocalFiles) -> None:
        self._files = files
        self._verified: set[str] = set()

    def digests(self) -> frozenset[str]:
        """Of folders that were fetched since this agent began."""
        return frozenset(self._verified)

    async def read_header(self, source: str, path: str, sha256: str) -> tuple[ResolvedArtifact, Header]:
        sizes = await run_to_end(observe_folder, path)

        async def open_file(name: str) -> tuple[AsyncGenerator[bytes], int] | None:
            return (read_pieces(str(Path(path) / name)), sizes[name]) if name in sizes else None

        geometry = await find_unmeasured(read_checkpoint(open_file, f"folder '{path}'"))
        files = await self._observe_files(path, sizes)
        found = digest_of(files)
        if sha256 and sha256 != found:
            raise _changed(path, sha256, found)
        artifact = ResolvedArtifact(
            source=source,
            name=Path(path).name[:255],
            size_bytes=sum(file.size_bytes for file in files),
            sha256=found,
            files=files,
        )
        return artifact, geometry

    async def fetch(self, artifact: ResolvedArtifact, path: str, on_transfer: OnTransfer) -> Path:
        """The folder itself, once its content is known to be the artifact's."""
        found = digest_of(await self._observe_files(path, await run_to_end(observe_folder, path)))
        if artifact.sha256 is None or found != artifact.sha256:
            raise _changed(path, artifact.sha256 or "", found)
        self._verified.add(found)
        on_transfer(Transfer(artifact.size_bytes, artifact.size_bytes, 0))
        return Path(path)

    async def _observe_files(self, path: str, sizes: dict[str, int]) -> tuple[ArtifactFile, ...]:
        """One after the other: a disk that reads several at once is slower."""
        return tuple(
            [
                ArtifactFile(
                    name=name, size_bytes=size, sha256=await self._files.observe_digest(str(Path(path) / name))
                )
                for name, size in sizes.items()
            ]
        )


def digest_of(files: tuple[ArtifactFile, ...]) -> str:
    """sha256 of what `sha256sum` prints of them, by name."""
    return hashlib.sha256(render_list(files)).hexdigest()


def observe_folder(path: str) -> dict[str, int]:
    """Size of each file that an engine loads, by name; AgentError with words otherwise. Blocking."""
    try:
        with os.scandir(path) as entries:
            files = {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    except OSError as error:
        raise unavailable(f"folder '{path}' can't be read on this node: {error.strerror}.") from error
    found = {name: size for name, size in files.items() if Path(name).suffix in LOADED and not name.startswith(".")}
    if not found and (models := sorted(name for name in files if name.endswith(".gguf"))):
        raise corrupt(
            f"'{path}' is a folder, and a GGUF model is one file: name it, such as '{Path(path) / models[0]}'."
        )
    if not 1 <= len(found) <= MAX_FILES:
        raise corrupt(f"folder '{path}' must hold 1 to {MAX_FILES} files of a model; it holds {len(found)}.")
    return dict(sorted(found.items()))


def _changed(path: str, wanted: str, found: str) -> AgentError:
    return corrupt(
        f"folder '{path}' must have sha256 {wanted} over its list of files; it has {found}. Put the right files there, "
        "or change the Model's source or sha256."
    )
