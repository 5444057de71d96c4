"""What of the cache other nodes may have: blobs that are as they were verified. Asked from threads."""

from pathlib import Path

from covey_agent.artifacts.cache import Cache, is_digest


class GivenBlobs:
    """Nothing is hashed for whoever asks: that would be work at another's word. Only the time of use is written."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def find_given(self, sha256: str) -> Path | None:
        path = self._cache.blobs / sha256
        if not is_digest(sha256) or not self._cache.stamps.matches(sha256, path):
            return None
        self._cache.stamps.touch(sha256)
        return path
