"""The geometry of a file from its first bytes, whatever they come out of.

The planner's reader says how many bytes it lacks; this feeds it, within bounds, and puts into words what was found when
it is no GGUF file at all.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TypeVar

from covey_api.model import Geometry
from covey_api.units import format_bytes
from covey_planner.geometry.gguf import (
    HeaderIncomplete,
    HeaderInvalid,
    parse_gguf_geometry,
    parse_gguf_header,
    parse_gguf_set,
)

from covey_agent.artifacts.web import corrupt

# The largest vocabularies (260,000 tokens with merges and scores) make headers of 16 MiB.
MAX_HEADER_BYTES = 64 * 1024 * 1024
# Every try reads the header from its start: growing by half keeps the tries few and the excess small.
_FIRST_BYTES = 256 * 1024

T = TypeVar("T")
Parse = Callable[[bytes, int], T]
"""From the first bytes of a file and its size; raises as the planner's readers do."""


async def read_geometry(pieces: AsyncGenerator[bytes], size_bytes: int, where: str) -> Geometry:
    """Geometry of the file whose content comes in `pieces`; takes no more of them than needed."""
    return await read_start(pieces, size_bytes, f"{where} can't be read as GGUF", parse_gguf_geometry)


async def read_gguf_set(files: Mapping[str, tuple[AsyncGenerator[bytes], int]], what: str) -> Geometry:
    """Of a model over several files: content and size of each, by what it is called; `what`: what all of them are."""
    headers = [
        await read_start(pieces, size_bytes, f"{name} can't be read as GGUF", parse_gguf_header)
        for name, (pieces, size_bytes) in files.items()
    ]
    try:
        return parse_gguf_set(headers)
    except HeaderInvalid as error:
        raise corrupt(f"{what} are no whole model: {error}") from error


async def read_start(pieces: AsyncGenerator[bytes], size_bytes: int, failure: str, parse: Parse[T]) -> T:
    """What `parse` makes of the first bytes of a file; `failure`: what to say before its refusal."""
    prefix, wanted_bytes = bytearray(), _FIRST_BYTES
    async with aclosing(pieces) as source:
        async for piece in source:
            prefix += piece
            if len(prefix) < min(wanted_bytes, size_bytes):
                continue
            try:
                return await asyncio.to_thread(parse, bytes(prefix), size_bytes)
            except HeaderIncomplete as incomplete:
                found = max(incomplete.at_least_bytes, len(prefix) + 1)
            except HeaderInvalid as error:
                raise corrupt(f"{failure}: {error}{_describe_start(bytes(prefix))}") from error
            wanted_bytes = max(found, len(prefix) * 3 // 2)
            if found > min(size_bytes, MAX_HEADER_BYTES):
                limit = "the file's size" if size_bytes <= MAX_HEADER_BYTES else format_bytes(MAX_HEADER_BYTES)
                raise corrupt(f"{failure}: it is cut off or damaged: its header claims to go beyond {limit}.")
    raise corrupt(f"{failure}: it is cut off: it ends at byte {len(prefix)} of {size_bytes}, inside its header.")


def _describe_start(prefix: bytes) -> str:
    """What the file seems to be instead. Never its text: it may be any file of the machine."""
    start = prefix[:512].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<head")):
        return "; it is an HTML page, as a proxy or a login form sends one"
    if start.startswith(b"version https://git-lfs"):
        return "; it is a Git LFS pointer, not the file itself"
    if start.startswith(b"pk\x03\x04"):
        return "; it is a ZIP archive"
    return ""
