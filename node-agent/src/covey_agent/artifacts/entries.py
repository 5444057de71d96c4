"""What a cache holds, one entry for what is of use, and is removed, as one: looked at on the disk, not in memory.

An entry's size is what the disk gives back: a file that two sets share belongs to one that somebody needs, else to the
first of them by name. A file that is needed for itself belongs to no set that nobody needs.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

from covey_api.model import ResolvedArtifact

from covey_agent.artifacts.cache import Cache, is_digest
from covey_agent.artifacts.disk import list_folder, size_of
from covey_agent.artifacts.pins import observe_pins
from covey_agent.keeper.observed import is_held


class EntryKind(StrEnum):
    MODEL = "Model"
    """A file or a set that some source led to."""
    FILE = "File"
    """A blob that no model refers to: an engine's wheel, or what a moved branch left."""
    PARTIAL = "Partial"
    """A download that was broken off."""
    ENGINE = "Engine"
    """An installed engine."""


@dataclass(frozen=True, slots=True)
class Entry:
    kind: EntryKind
    name: str
    source: str
    """Where it came from; empty when nothing says."""
    digests: frozenset[str]
    """`ResolvedArtifact.digest`, and of the blobs that go with it."""
    size_bytes: int
    used_at: float
    """Seconds since the epoch."""
    pinned_by: str
    """Who needs it; empty: nobody."""
    paths: tuple[Path, ...]


def observe_entries(cache: Cache, held: frozenset[str] = frozenset()) -> list[Entry]:
    """All of them, what was used last first. `held`: what this process needs now. Blocking."""
    found = observe_pins(cache.pins)
    pins = {**found.by_digest, **dict.fromkeys(held, f"process {os.getpid()}")}
    taken: set[str] = set()
    models = sorted(_models(cache), key=lambda model: not _pinned(model.own, pins))
    entries = [entry for model in models if (entry := _model(cache, model, taken, pins))]
    user = next(iter(found.users), "")
    looks = [partial(_file, cache, path, pins) for path in list_folder(cache.blobs) if _is_own(path, taken)]
    looks += [partial(_partial, path, pins) for path in list_folder(cache.partial) if _is_partial(path)]
    looks += [partial(_engine, path, user) for path in list_folder(cache.envs) if is_digest(path.name)]
    for look in looks:
        # Others install and remove meanwhile: what is gone by now is no entry.
        with suppress(FileNotFoundError):
            entries.append(look())
    return sorted(entries, key=lambda entry: (-entry.used_at, entry.name, entry.source))


@dataclass(slots=True)
class _Model:
    """What references lead to, all that refer to it, and its blobs."""

    blobs: tuple[str, ...]
    artifacts: list[ResolvedArtifact] = field(default_factory=list[ResolvedArtifact])
    references: list[Path] = field(default_factory=list[Path])

    @property
    def own(self) -> frozenset[str]:
        """Whoever needs one of these needs all of it. Not the files of a set, which others may have too."""
        digests = frozenset(artifact.digest for artifact in self.artifacts)
        return digests if self.artifacts[0].files else digests | frozenset(self.blobs)


def _models(cache: Cache) -> list[_Model]:
    found: dict[str, _Model] = {}
    for path, reference in cache.read_references().items():
        artifact = reference.artifact
        # Of a set, the list of its files too: it has the set's own digest.
        blobs = (*(file.sha256 for file in artifact.files), reference.blob)
        model = found.setdefault(reference.blob, _Model(blobs))
        model.artifacts.append(artifact)
        model.references.append(path)
    return sorted(found.values(), key=lambda model: (model.artifacts[0].name, model.artifacts[0].source))


def _model(cache: Cache, model: _Model, taken: set[str], pins: dict[str, str]) -> Entry | None:
    first, user = model.artifacts[0], _pinned(model.own, pins)
    blobs = [blob for blob in model.blobs if blob not in taken and (user or blob not in pins)]
    paths = [path for blob in blobs if (path := cache.blobs / blob).is_file()]
    # The list of a set's files is none of what is of use: a set whose files all belong to others gives nothing back.
    size_bytes = sum(size_of(path) for path in paths if not first.files or path.name != first.sha256)
    if first.files and (folder := cache.sets / (first.sha256 or "")).is_dir():
        # Links count once; what is here alone (a copy, or a link whose blob is gone) counts beside them.
        size_bytes += sum(size_of(file, is_lone=True) for file in list_folder(folder))
        paths.append(folder)
    if not paths:
        return None
    taken.update(blobs)
    return Entry(
        kind=EntryKind.MODEL,
        name=first.name,
        source=", ".join(artifact.source for artifact in model.artifacts),
        digests=model.own | frozenset(blobs),
        size_bytes=size_bytes,
        used_at=max((cache.used_at(blob) for blob in model.blobs), default=0.0),
        pinned_by=user,
        paths=(*paths, *model.references, *(cache.stamps.path(blob) for blob in blobs)),
    )


def _is_own(path: Path, taken: set[str]) -> bool:
    return path.name not in taken and is_digest(path.name)


def _file(cache: Cache, path: Path, pins: dict[str, str]) -> Entry:
    digests, stamp = frozenset((path.name,)), cache.stamps.find(path.name)
    return Entry(
        kind=EntryKind.FILE,
        name=stamp.name if stamp and stamp.name else path.name,
        source="",
        digests=digests,
        size_bytes=path.lstat().st_size,
        used_at=cache.used_at(path.name),
        pinned_by=_pinned(digests, pins),
        paths=(path, cache.stamps.path(path.name)),
    )


def _is_partial(path: Path) -> bool:
    return not path.name.endswith(".json") and not path.name.startswith(".")


def _partial(path: Path, pins: dict[str, str]) -> Entry:
    """What is needed is so from its first byte on."""
    found = path.lstat()
    holder = "a download under way" if is_held(path) else pins.get(path.name, "")
    notes = path.with_name(path.name + ".json")
    size_bytes = found.st_blocks * 512
    return Entry(EntryKind.PARTIAL, path.name, "", frozenset(), size_bytes, found.st_mtime, holder, (path, notes))


def _engine(folder: Path, user: str) -> Entry:
    """Nobody tells which engine runs out of which folder: while anybody uses the cache, all of them are kept."""
    names = (folder / "complete").read_text(encoding="utf-8").split() if (folder / "complete").is_file() else []
    size_bytes = sum(size_of(Path(base) / name) for base, _, files in os.walk(folder) for name in files)
    used_at = folder.stat().st_mtime
    name = names[0] if names else f"unfinished {folder.name[:12]}"
    return Entry(EntryKind.ENGINE, name, "", frozenset((folder.name,)), size_bytes, used_at, user, (folder,))


def _pinned(digests: frozenset[str], pins: dict[str, str]) -> str:
    return next((pins[digest] for digest in sorted(digests) if digest in pins), "")
