"""One artifact cache for all tests that use the real model or the real engine: fetched once, kept between runs."""

import os
from pathlib import Path


def shared_cache() -> Path:
    """`COVEY_TEST_CACHE`, else a folder in the user's cache."""
    given = os.environ.get("COVEY_TEST_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(given) if given else base / "covey-test"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
