"""Files that a person puts into the cache: what has no other origin, or is to be had without its origin (ADR 62).

A file or a folder is copied, hashed as it is written, and pinned by hand: nothing here removes it until a person lets
go of it. Its name is its digest, so putting it there twice changes nothing, and needs no second room: what has the size
of a file that is here is hashed first. All of this blocks.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from covey_api.model import ArtifactFile, ResolvedArtifact
from covey_api.source import render_store_source
from covey_planner.geometry.shards import list_shards

from covey_agent.artifacts.cache import Cache, is_digest
from covey_agent.artifacts.disk import list_folder, name_temporary, size_of
from covey_agent.artifacts.flight import Meter
from covey_agent.artifacts.folder import digest_of, observe_folder
from covey_agent.artifacts.local import open_file
from covey_agent.artifacts.local_set import is_of_set, observe_set
from covey_agent.artifacts.pins import Pins, pin_added
from covey_agent.artifacts.web import corrupt
from covey_agent.ports import AgentError, OnTransfer

_CHUNK_BYTES = 1024 * 1024


def measure_added(path: Path) -> dict[Path, int]:
    """The files that are meant, with their sizes: a GGUF file, all of its set, or what an engine loads of a folder.
    AgentError; ValueError for a name that no source can have."""
    sizes = _measure(path)
    _name(path, tuple(ArtifactFile(name=each.name, size_bytes=size, sha256="0" * 64) for each, size in sizes.items()))
    return sizes


def _measure(path: Path) -> dict[Path, int]:
    if path.is_dir():
        return {path / name: size for name, size in observe_folder(str(path)).items()}
    if is_of_set(path.name):
        return observe_set(str(path))
    os.close(open_file(str(path)))
    if not (size_bytes := size_of(path.resolve())):
        raise corrupt(f"file '{path}' is empty.")
    return {path: size_bytes}


def find_here(cache: Cache, sizes: dict[Path, int], tell: OnTransfer) -> dict[Path, str]:
    """Digests of those that the cache has: they need no room. Read is what has the size of a file that is there."""
    likely = {size_of(path) for path in list_folder(cache.blobs) if is_digest(path.name)}
    meter, done_bytes, found = Meter(sum(sizes.values()), tell), 0, dict[Path, str]()
    for each, size_bytes in sizes.items():
        if size_bytes in likely:
            sha256 = _hash(each, lambda count, base=done_bytes: meter.observe_bytes(base + count))
            if _is_here(cache, sha256, size_bytes):
                found[each] = sha256
                done_bytes += size_bytes
    return found


def add_files(
    cache: Cache, path: Path, sizes: dict[Path, int], tell: OnTransfer, here: Mapping[Path, str] = MappingProxyType({})
) -> ResolvedArtifact:
    """Copied, but for what was found `here`, named and pinned. AgentError, OSError."""
    meter, done_bytes = Meter(sum(sizes.values()), tell), 0
    files: list[ArtifactFile] = []
    # Each before it is there: whoever makes room meanwhile must not find it unneeded.
    pins, held = Pins(cache.pins), frozenset[str]()
    try:
        for each, expected_bytes in sizes.items():

            def told(count: int, base: int = done_bytes) -> None:
                meter.observe_bytes(base + count)

            def hold(sha256: str) -> None:
                nonlocal held
                held |= {sha256}
                pins.hold(held)

            if known := here.get(each):
                hold(known)
            if known and _is_here(cache, known, expected_bytes):
                sha256, size_bytes = known, expected_bytes
            else:
                sha256, size_bytes = _copy(cache, each, told, hold)
            done_bytes += size_bytes
            files.append(ArtifactFile(name=each.name, size_bytes=size_bytes, sha256=sha256))
        artifact = _name(path, tuple(files))
        digest = artifact.sha256 or ""
        pin_added(cache.pins, digest, held)
        if artifact.files:
            cache.install_set(artifact, {file.name: cache.blobs / file.sha256 for file in files})
        else:
            cache.add_reference(artifact, digest)
        return artifact
    finally:
        pins.close()


def _name(path: Path, files: tuple[ArtifactFile, ...]) -> ResolvedArtifact:
    is_folder, first = path.is_dir(), files[0]
    is_one = len(files) == 1 and not is_folder
    digest = first.sha256 if is_one else digest_of(files)
    name = path.resolve().name if is_folder else list_shards(path.name)[0]
    return ResolvedArtifact(
        source=render_store_source(digest, name),
        name=name,
        size_bytes=sum(file.size_bytes for file in files),
        sha256=digest,
        files=() if is_one else files,
    )


def _copy(cache: Cache, path: Path, told: Callable[[int], None], hold: Callable[[str], None]) -> tuple[str, int]:
    """Digest and size of what was written. A file that changes meanwhile is refused."""
    temporary, digest, count = name_temporary(cache.partial / "added"), hashlib.sha256(), 0
    source = open_file(str(path))
    try:
        before = os.fstat(source)
        with temporary.open("wb") as target:
            while piece := os.pread(source, _CHUNK_BYTES, count):
                target.write(piece)
                digest.update(piece)
                count += len(piece)
                told(count)
            target.flush()
            os.fsync(target.fileno())
        after = os.fstat(source)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or count != after.st_size:
            raise _changed(path)
        sha256 = digest.hexdigest()
        hold(sha256)
        if not _is_here(cache, sha256, count):
            cache.install_blob(temporary, sha256, path.name)
        return sha256, count
    finally:
        os.close(source)
        temporary.unlink(missing_ok=True)


def _hash(path: Path, told: Callable[[int], None]) -> str:
    digest, count = hashlib.sha256(), 0
    source = open_file(str(path))
    try:
        while piece := os.pread(source, _CHUNK_BYTES, count):
            digest.update(piece)
            count += len(piece)
            told(count)
        return digest.hexdigest()
    finally:
        os.close(source)


def _is_here(cache: Cache, sha256: str, size_bytes: int) -> bool:
    return cache.find_blob(sha256, size_bytes) is not None and cache.stamps.matches(sha256, cache.blobs / sha256)


def _changed(path: Path) -> AgentError:
    return corrupt(f"file '{path}' changed while it was read. Nothing was added. Wait until it is written.")
