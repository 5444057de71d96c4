"""Room for whole artifacts that are to come one after the other, before the first byte of any (ADR 48)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from covey_api.model import ResolvedArtifact

from covey_agent.artifacts.cache import Cache


@asynccontextmanager
async def reserve_artifact(cache: Cache, artifact: ResolvedArtifact) -> AsyncGenerator[None]:
    """While it waits for its turn, and comes: its download's own reservation is of the same bytes. DiskFull.

    What comes out of a wheel is reserved for when it comes: by what name is known then only (another node may have the
    file, or the index the wheel).
    """
    async with cache.room.reserve_all(_missing_bytes(cache, artifact), artifact.name):
        yield


def _missing_bytes(cache: Cache, artifact: ResolvedArtifact) -> dict[str, int]:
    """By the key that its download reserves under."""
    if artifact.archive or artifact.source.startswith("file:"):
        return {}
    if artifact.files or artifact.sha256 is None:
        return cache.missing_bytes(artifact)
    return cache.missing_of({artifact.sha256: artifact.size_bytes})
