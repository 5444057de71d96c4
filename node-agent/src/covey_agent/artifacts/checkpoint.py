"""The geometry of a checkpoint (`config.json` beside safetensors files), from the heads of its files alone.

Wherever they lie: a folder, a wheel. The index is asked for first, since it knows when a file of the set is missing.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from covey_api.model import Geometry
from covey_planner.geometry.checkpoint import MAX_CONFIG_BYTES, parse_checkpoint
from covey_planner.geometry.reader import GeometryUnmeasured, HeaderInvalid
from covey_planner.geometry.safetensors import (
    MAX_INDEX_BYTES,
    Directory,
    merge_directories,
    parse_directory,
    parse_index,
)

from covey_agent.artifacts.header import read_start
from covey_agent.artifacts.web import corrupt
from covey_agent.ports import UnmeasuredHeader

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

OpenFile = Callable[[str], Awaitable[tuple[AsyncGenerator[bytes], int] | None]]
"""Content and size of a file of the checkpoint by its name; None: there is none."""


async def read_checkpoint(open_file: OpenFile, where: str) -> Geometry:
    """AgentError when a file is missing, damaged, or says otherwise than the others."""
    config = await _read_whole(open_file, CONFIG, MAX_CONFIG_BYTES, where)
    if config is None:
        raise corrupt(f"{where} has no '{CONFIG}', which must be beside its safetensors files.")
    index = await _read_whole(open_file, INDEX, MAX_INDEX_BYTES, where)
    try:
        # Beside the loop: the largest models have hundreds of thousands of tensors.
        names = await asyncio.to_thread(parse_index, index) if index is not None else (SINGLE,)
        directories = [await _read_directory(open_file, name, where) for name in names]
        return await asyncio.to_thread(_parse, config, directories)
    except GeometryUnmeasured as error:
        raise UnmeasuredHeader(f"{where} can't be used: {error}") from error
    except HeaderInvalid as error:
        raise corrupt(f"{where} can't be used: {error}") from error


def _parse(config: bytes, directories: Sequence[Directory]) -> Geometry:
    return parse_checkpoint(config, merge_directories(directories))


async def _read_directory(open_file: OpenFile, name: str, where: str) -> Directory:
    opened = await open_file(name)
    if opened is None:
        raise corrupt(f"{where} has no '{name}', which must be there: every file of the set is needed.")
    pieces, size_bytes = opened
    return await read_start(pieces, size_bytes, f"'{name}' of {where} can't be read as safetensors", parse_directory)


async def _read_whole(open_file: OpenFile, name: str, most_bytes: int, where: str) -> bytes | None:
    opened = await open_file(name)
    if opened is None:
        return None
    pieces, size_bytes = opened
    async with aclosing(pieces) as source:
        if size_bytes > most_bytes:
            raise corrupt(f"'{name}' of {where} must be at most {most_bytes} bytes long; got {size_bytes}.")
        return b"".join([piece async for piece in source])
