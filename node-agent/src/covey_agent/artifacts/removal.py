"""Takes an entry of a cache off the disk, beside others who may be about to use it.

To look whether anybody needs it and to remove it can't be one step. So its names are taken away first, by renames; then
who needs it is looked at once more, and what somebody does is put back. Whoever found it before the renames had said
that he needs it before he looked (by a pin, or a hold); whoever looks later doesn't find it, and fetches it. A lock on
the cache was the alternative: every start of an engine would wait while a large model is removed.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.disk import name_temporary
from covey_agent.artifacts.entries import Entry, EntryKind
from covey_agent.artifacts.pins import observe_pins
from covey_agent.keeper.observed import take_lock


def remove_entry(cache: Cache, entry: Entry, held: Callable[[], frozenset[str]] = frozenset) -> bool:
    """Whether it is gone: not when somebody needs it by now. `held`: what this process needs, asked at the last moment.

    A link is removed, never what it points at. OSError where the disk refuses. Blocking.
    """
    if entry.kind is EntryKind.PARTIAL:
        return _remove_partial(entry)
    aside: list[tuple[Path, Path]] = []
    try:
        for path in entry.paths:
            if os.path.lexists(path):
                # As a temporary of this process: what a crash leaves is swept by the next who opens the cache.
                away = name_temporary(path)
                path.rename(away)
                aside.append((path, away))
        is_needed = _is_needed(cache, entry, held)
    except OSError:
        _put_back(aside)
        raise
    if is_needed:
        _put_back(aside)
        return False
    for _, away in aside:
        _delete(away)
    return True


def _is_needed(cache: Cache, entry: Entry, held: Callable[[], frozenset[str]]) -> bool:
    pins = observe_pins(cache.pins)
    if entry.kind is EntryKind.ENGINE:
        return bool(pins.users)
    return not entry.digests.isdisjoint({*pins.by_digest, *held()})


def _put_back(aside: list[tuple[Path, Path]]) -> None:
    """The last first: a blob that is found again must have its stamp. What was fetched anew meanwhile stays."""
    for path, away in reversed(aside):
        if os.path.lexists(path):
            _delete(away)
        else:
            away.rename(path)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_partial(entry: Entry) -> bool:
    """With its lock held: who waits for that looks whether the file still has its name."""
    path = entry.paths[0]
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        descriptor = None  # a link, or not to be opened: nobody downloads into it
    try:
        if descriptor is not None and not take_lock(descriptor):
            return False
        for each in entry.paths:
            _delete(each)
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True
