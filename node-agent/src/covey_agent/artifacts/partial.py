"""A file that is on its way: what is there, the digest of that, and what the server said of it when it began."""

import hashlib
import os
from pathlib import Path

from covey_api.meta import Message
from pydantic import ValidationError

from covey_agent.artifacts.disk import write_atomically

# One write and one hash update: large enough that the hop to a thread costs nothing beside it.
CHUNK_BYTES = 1024 * 1024
# Read back in one hop to a thread: a cancelled download waits for no more than this.
TAKE_UP_BYTES = 16 * CHUNK_BYTES


class Validators(Message):
    """What the server said of the file when its first bytes came."""

    url: str
    etag: str = ""
    last_modified: str = ""

    @property
    def condition(self) -> str:
        """Value of `If-Range`: a strong validator, or nothing."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.last_modified

    def contradicts(self, other: "Validators") -> bool:
        return bool(self.url == other.url and self.etag and other.etag and self.etag != other.etag)


class PartialFile:
    """The partial file: grows, is hashed as it grows, can start over. Methods that touch the disk block."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._notes = path.with_name(path.name + ".json")
        self._hash = hashlib.sha256()
        self.done_bytes = 0
        self.validators: Validators | None = None
        self.is_joined = False
        """True when not all bytes came over one connection."""

    def open(self, size_bytes: int) -> None:
        """Look at what an earlier try left."""
        if os.fstat(self._descriptor).st_size > size_bytes:
            self.start_over()
        try:
            self.validators = Validators.model_validate_json(self._notes.read_bytes())
        except (OSError, ValidationError):
            self.validators = None

    def take_up(self) -> bool:
        """Hash the next piece of what an earlier try left; False at its end."""
        piece = os.pread(self._descriptor, TAKE_UP_BYTES, self.done_bytes)
        self._hash.update(piece)
        self.done_bytes += len(piece)
        self.is_joined = self.done_bytes > 0
        return bool(piece)

    def begin(self, validators: Validators) -> None:
        """The first byte is about to come."""
        self.start_over()
        self.validators = validators
        write_atomically(self._notes, validators.model_dump_json().encode())

    def append(self, piece: bytes | memoryview) -> None:
        view = memoryview(piece)
        while view:
            view = view[os.pwrite(self._descriptor, view, self.done_bytes + len(piece) - len(view)) :]
        self._hash.update(piece)
        self.done_bytes += len(piece)

    def start_over(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self._hash = hashlib.sha256()
        self.done_bytes = 0
        self.validators = None
        self.is_joined = False

    def touch(self) -> None:
        """Tell other processes that its holder lives, while nothing comes."""
        os.utime(self._descriptor)

    def digest(self) -> str:
        return self._hash.hexdigest()

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def forget_notes(self) -> None:
        self._notes.unlink(missing_ok=True)

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)
        self.forget_notes()
