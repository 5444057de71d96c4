"""Making room: what was used longest ago goes first, and nothing that anybody needs."""

import asyncio
import logging
import time

from covey_api.units import format_bytes

from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.entries import Entry, EntryKind, observe_entries
from covey_agent.artifacts.removal import remove_entry

logger = logging.getLogger(__name__)

# What was broken off less long ago is likely gone on with: its agent waits for the next try.
_PARTIAL_SECONDS = 3600.0


def choose_evictions(entries: list[Entry], short_bytes: int, now: float) -> list[Entry]:
    """What to remove for so many bytes: broken downloads first, then models and files by their last use.

    None at all when all of them together wouldn't do: what is lost then would be lost for nothing. Installed engines
    stay: what they take is small beside what it takes to make them again.
    """
    partials = [e for e in entries if e.kind is EntryKind.PARTIAL and now - e.used_at > _PARTIAL_SECONDS]
    others = [e for e in entries if e.kind in (EntryKind.MODEL, EntryKind.FILE)]
    chosen: list[Entry] = []
    for group in (partials, others):
        for entry in sorted(group, key=lambda each: (each.used_at, each.name)):
            # A set whose files all belong to others gives nothing back.
            if short_bytes > 0 and entry.size_bytes and not entry.pinned_by:
                chosen.append(entry)
                short_bytes -= entry.size_bytes
    return chosen if short_bytes <= 0 else []


async def evict(cache: Cache, short_bytes: int, name: str) -> bool:
    """Make room for `name` if that can be done. False when nothing was chosen, or nothing of it could be removed."""
    entries = await asyncio.to_thread(observe_entries, cache, cache.room.held())
    is_of_use = False
    for entry in choose_evictions(entries, short_bytes, time.time()):
        try:
            is_gone = await asyncio.to_thread(remove_entry, cache, entry, cache.room.held)
        except OSError as error:
            logger.warning("'%s' can't be removed from the cache: %s", entry.name, error.strerror)
            continue
        # What is needed by now isn't chosen again: others may be.
        is_of_use = True
        if is_gone:
            cache.forget(entry.digests)
            logger.warning(
                "removed '%s' (%s) from the cache to make room for '%s': it was used longest ago",
                *(entry.name, format_bytes(entry.size_bytes), name),
            )
    return is_of_use
