"""The vault in files mode: each document a private file in the controller's folder, under its own name.

Replacing compares and writes under a lock of the folder, so two processes on one state folder can't both have read what
they replace. The lock is the folder's own descriptor: there is no lock file to leave behind. A write blocks the event
loop for the disk, a few milliseconds: rejected was a thread, for documents that change when somebody joins.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from covey_fleet_client.files import ensure_private_folder, write_private

from covey_controller.ports import Conflict, VaultUnavailable


class FilesVault:
    """`Vault` on a folder, which it makes. PermissionError if that can't be private."""

    def __init__(self, folder: Path) -> None:
        ensure_private_folder(folder)
        self._folder = folder

    async def read(self, name: str) -> bytes | None:
        return _read(self._folder / name)

    async def replace(self, name: str, content: bytes, *, seen: bytes | None) -> None:
        path = self._folder / name
        with _locked(self._folder):
            if _read(path) != seen:
                raise Conflict(f"'{path}' was written by another process meanwhile")
            try:
                write_private(path, content)
            except OSError as error:
                raise _unavailable(path, error) from error


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unavailable(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unavailable(path, error) from error


def _unavailable(path: Path, error: OSError) -> VaultUnavailable:
    return VaultUnavailable(f"'{path}' must be a file that this process may read and write: {error.strerror}")
