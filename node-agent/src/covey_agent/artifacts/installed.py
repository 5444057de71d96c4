"""The geometry of an artifact that is in the cache: read where it lies, with no network."""

from collections.abc import AsyncGenerator
from pathlib import Path

from covey_api.model import Geometry, ResolvedArtifact

from covey_agent.artifacts.checkpoint import read_checkpoint
from covey_agent.artifacts.header import read_geometry, read_gguf_set
from covey_agent.artifacts.local import read_pieces


async def read_installed(artifact: ResolvedArtifact, path: Path) -> Geometry:
    """`path`: what an engine would be given."""
    if not artifact.files:
        return await read_geometry(read_pieces(str(path)), artifact.size_bytes, f"'{artifact.name}'")
    sizes = {file.name: file.size_bytes for file in artifact.files}
    if path.suffix == ".gguf":
        files = {f"'{name}'": (read_pieces(str(path.parent / name)), size) for name, size in sizes.items()}
        return await read_gguf_set(files, f"the files of '{path.parent}'")

    async def open_file(name: str) -> tuple[AsyncGenerator[bytes], int] | None:
        return (read_pieces(str(path / name)), sizes[name]) if name in sizes else None

    return await read_checkpoint(open_file, f"'{artifact.name}'")
