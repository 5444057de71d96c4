"""What is remembered of a blob whose content was hashed: size, time and inode, its name, and when it was last used.

A blob that still has all three is not read again. The stamp's own modification time is the last use, so that using a
blob writes no file. A blob without a stamp (from a version that wrote none, or copied by hand) is hashed once.
"""

import logging
import os
from pathlib import Path

from covey_api.meta import Message
from pydantic import ValidationError

from covey_agent.artifacts.disk import write_atomically

logger = logging.getLogger(__name__)


class Stamp(Message):
    """One blob as it was when its content had been hashed."""

    name: str = ""
    """Of the file that it is, for people."""
    size_bytes: int
    modified_ns: int
    inode: int


class Stamps:
    """Of all blobs of a cache, by digest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, sha256: str, path: Path, name: str) -> None:
        """The content of `path` was just found to have this digest. A disk that refuses costs reading it again."""
        try:
            found = path.lstat()
            stamp = Stamp(name=name[:255], size_bytes=found.st_size, modified_ns=found.st_mtime_ns, inode=found.st_ino)
            write_atomically(self.path(sha256), stamp.to_json().encode())
        except OSError as error:
            logger.warning("that blob %s was verified can't be noted in the cache: %s", sha256, error.strerror)

    def find(self, sha256: str) -> Stamp | None:
        try:
            return Stamp.model_validate_json(self.path(sha256).read_bytes())
        except (OSError, ValidationError):
            return None

    def matches(self, sha256: str, path: Path, *, is_link: bool = True) -> bool:
        """Whether the file is the one that was hashed; `is_link`: false for a copy of it."""
        stamp = self.find(sha256)
        if stamp is None:
            return False
        try:
            found = path.lstat()
        except OSError:
            return False
        is_same = (found.st_size, found.st_mtime_ns) == (stamp.size_bytes, stamp.modified_ns)
        return is_same and (found.st_ino == stamp.inode or not is_link)

    def touch(self, sha256: str) -> None:
        """It is used now. A disk that refuses costs the order of eviction, and nothing else."""
        try:
            os.utime(self.path(sha256))
        except OSError:
            return

    def used_at(self, sha256: str) -> float | None:
        """Seconds since the epoch."""
        try:
            return self.path(sha256).stat().st_mtime
        except OSError:
            return None

    def remove(self, sha256: str) -> None:
        self.path(sha256).unlink(missing_ok=True)

    def path(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.json"
