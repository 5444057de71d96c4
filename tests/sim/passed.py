"""Which seeds passed with which code: one file for each digest, a line for each seed, appended as they pass."""

import hashlib
import sys
from pathlib import Path

# What a run is made of: the product's parts that it runs, the simulator, and what both were installed with.
_SOURCES = ("*/src/**/*.py", "tests/kit/**/*.py", "tests/sim/*.py")


def digest_code(root: Path) -> str:
    """First 16 hex of the digest of all that decides how a seed goes."""
    digest = hashlib.sha256(sys.version.encode())
    paths = sorted({path for pattern in _SOURCES for path in root.glob(pattern)})
    for path in (root / "uv.lock", *paths):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


class Passed:
    """`folder` may be removed at any time: then every seed is run again."""

    def __init__(self, folder: Path, digest: str) -> None:
        self._path = folder / f"passed-{digest}"

    def read(self) -> frozenset[int]:
        try:
            lines = self._path.read_text().splitlines()
        except FileNotFoundError:
            return frozenset()
        return frozenset(int(line) for line in lines)

    def add(self, seed: int) -> None:
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a") as file:
            file.write(f"{seed}\n")
