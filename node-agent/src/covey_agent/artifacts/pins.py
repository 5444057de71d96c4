"""What must not be removed from a cache: whose engines run it, or who is about to use it. On disk, for all processes.

Each process that uses the cache keeps a list under `pins/`, and a lock on it while it lives. A list whose process is
gone counts on while one of the engines does that it was written for: they outlive their agent. Else it is removed.

What a person put into the cache may have no other origin: it is pinned by a file of its own, until a person lets go.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from covey_api.meta import Message
from pydantic import Field, ValidationError

from covey_agent.artifacts.disk import has_name, write_atomically
from covey_agent.keeper.observed import is_held, is_locked, open_lock, take_lock

logger = logging.getLogger(__name__)

_ADDED = ".added"
# As `covey cache ls` says it.
BY_HAND = "whoever put it here"


class PinList(Message):
    """One process's list."""

    members: str = ""
    """Folder of the members that it is for; empty: it ends with its process."""
    process: int = 0
    digests: Annotated[tuple[str, ...], Field(max_length=65_536)] = ()
    """`ResolvedArtifact.digest`, or of blobs."""

    def describe(self) -> str:
        return f"the agent of '{Path(self.members).parent}'" if self.members else f"process {self.process}"


class Pins:
    """This process's list."""

    def __init__(self, folder: Path, members: Path | None = None) -> None:
        text = str(members) if members else f"process {os.getpid()}"
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        self._is_written = False
        """Whether the file says what the list does."""
        self._list = PinList(members=str(members or ""), process=os.getpid())
        self._path = folder / f"{key}.json"
        self._lock = _hold(folder / f"{key}.lock")
        # What an agent's earlier life pinned still runs: it counts until this one knows better.
        found = _read(self._path) if members else None
        self.hold(frozenset(found.digests if found else ()))

    def hold(self, digests: frozenset[str]) -> None:
        """These, and no others, from now on. A disk that refuses is told once, and tried again with the next call."""
        wanted = tuple(sorted(digests))
        if self._is_written and wanted == self._list.digests:
            return
        written = self._list.model_copy(update={"digests": wanted})
        try:
            write_atomically(self._path, written.to_json().encode())
        except OSError as error:
            if self._is_written:
                logger.warning("what is needed can't be pinned in the cache: %s", error.strerror)
            self._is_written = False
            return
        self._list, self._is_written = written, True

    def close(self) -> None:
        os.close(self._lock)


@dataclass(frozen=True, slots=True)
class Pinned:
    """Of all lists that count."""

    by_digest: Mapping[str, str]
    """Who needs it."""
    users: tuple[str, ...]
    """All who use the cache now."""


def observe_pins(folder: Path) -> Pinned:
    by_digest: dict[str, str] = {}
    users: list[str] = []
    for path in sorted(folder.glob("*.json")):
        pins = _read(path)
        if pins is not None and (is_held(path.with_suffix(".lock")) or _has_living(pins)):
            users.append(pins.describe())
            by_digest |= {digest: pins.describe() for digest in pins.digests}
    by_digest |= {digest: BY_HAND for added in _read_added(folder).values() for digest in added}
    return Pinned(by_digest, tuple(users))


def pin_added(folder: Path, digest: str, parts: frozenset[str]) -> None:
    """By hand, until `release_added`: what is named `digest`, with the blobs that it is made of."""
    pins = PinList(digests=tuple(sorted({digest, *parts})))
    write_atomically(folder / f"{digest}{_ADDED}", pins.to_json().encode())


def release_added(folder: Path, digest: str) -> bool:
    """Whether it was pinned by hand."""
    try:
        (folder / f"{digest}{_ADDED}").unlink()
    except FileNotFoundError:
        return False
    return True


def _read_added(folder: Path) -> dict[str, tuple[str, ...]]:
    """By the digest that each was added as. One whose list can't be read is at least itself."""
    found = {path.stem: _read(path) for path in sorted(folder.glob(f"*{_ADDED}"))}
    return {digest: pins.digests if pins else (digest,) for digest, pins in found.items()}


def sweep_pins(folder: Path) -> None:
    """Remove the lists that no longer count, each with its lock held: whoever starts meanwhile writes a new one."""
    for path in folder.glob("*.json"):
        try:
            _sweep(path)
        except OSError as error:
            logger.warning("the list of pins '%s' is kept: %s", path, error.strerror)


def _sweep(path: Path) -> None:
    lock = path.with_suffix(".lock")
    descriptor = open_lock(lock, os.O_CREAT)
    try:
        if take_lock(descriptor) and has_name(descriptor, lock) and not _has_living(_read(path)):
            path.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _hold(path: Path) -> int:
    """A lock that others may share, so that nobody removes the list: on the file that has the name by then.

    Another process with the same members folder can't be: an agent has its state folder alone.
    """
    while True:
        descriptor = open_lock(path, os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if has_name(descriptor, path):
            return descriptor
        os.close(descriptor)


def _read(path: Path) -> PinList | None:
    try:
        return PinList.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _has_living(pins: PinList | None) -> bool:
    if pins is None or not pins.members:
        return False
    try:
        return any(is_locked(str(member)) for member in Path(pins.members).iterdir())
    except PermissionError:
        return True  # what can't be looked at is kept
    except OSError:
        return False
