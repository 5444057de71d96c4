"""The controller's private files: 0600, in folders of mode 0700, written whole.

`covey_fleet_client.files` does the same for agents and gateways. The controller may not import it (it dials nobody),
and the contract package does no I/O: these few lines are the price of both borders.
"""

import os
import secrets
import stat
from pathlib import Path


def ensure_private_folder(path: Path) -> None:
    """The folder exists, is this user's and nobody else may enter it. PermissionError says what was found instead."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(
            f"'{path}' must be a folder (no symlink) that belongs to user id {os.geteuid()}; it isn't. "
            "Run as its owner or name another with `--state`."
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)


def write_private(path: Path, content: bytes) -> None:
    """Replace the file as a whole, on the disk when it returns; its folder must exist."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
