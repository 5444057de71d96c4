"""The geometry of an artifact that is in the cache: read where it lies, with no network."""

from collections.abc import AsyncGenerator
from pathlib import Path

from covey_api.model import Geometry, ResolvedArtifact
from covey_planner.geometry.gguf import parse_gguf_header, parse_gguf_set
from covey_planner.geometry.reader import HeaderInvalid

from covey_agent.artifacts.checkpoint import read_checkpoint
from covey_agent.artifacts.header import read_geometry, read_start
from covey_agent.artifacts.local import read_pieces
from covey_agent.artifacts.web import corrupt


async def read_installed(artifact: ResolvedArtifact, path: Path) -> Geometry:
    """`path`: what an engine would be given."""
    if not artifact.files:
        return await read_geometry(read_pieces(str(path)), artifact.size_bytes, f"'{artifact.name}'")
    sizes = {file.name: file.size_bytes for file in artifact.files}
    if path.suffix == ".gguf":
        return await _read_set(path.parent, sizes)

    async def open_file(name: str) -> tuple[AsyncGenerator[bytes], int] | None:
        return (read_pieces(str(path / name)), sizes[name]) if name in sizes else None

    return await read_checkpoint(open_file, f"'{artifact.name}'")


async def _read_set(folder: Path, sizes: dict[str, int]) -> Geometry:
    headers = [
        await read_start(read_pieces(str(folder / name)), size, f"'{name}' can't be read as GGUF", parse_gguf_header)
        for name, size in sizes.items()
    ]
    try:
        return parse_gguf_set(headers)
    except HeaderInvalid as error:
        raise corrupt(f"the files of '{folder}' are no whole model: {error}") from error
