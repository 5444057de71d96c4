"""Private files: 0600, in folders of mode 0700, written whole.

A reader sees the old content or the new one, never a part, also after a power cut: the bytes go to a temporary file in
the same folder, reach the disk, and take the name by a rename that reaches the disk too. A writer that is killed in
between leaves the temporary file; whoever uses the folder next removes it.
"""

import errno
import os
import re
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path

PRIVATE_FOLDER_MODE = 0o700
PRIVATE_FILE_MODE = 0o600
# No writer that lives has one for so long: it is some milliseconds of a disk.
ABANDONED_SECONDS = 600.0
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")


def ensure_private_folder(path: Path) -> None:
    """The folder exists, is this user's, nobody else may enter it, and no writer's leftovers are in it.

    PermissionError says what was found: a symlink or another user's folder is refused, for whoever owns it could
    replace what is inside.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(path, PRIVATE_FOLDER_MODE)
    except FileExistsError:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            raise PermissionError(f"'{path}' must be a folder; found a symlink. Name the folder itself.") from None
        if not stat.S_ISDIR(found.st_mode):
            raise PermissionError(f"'{path}' must be a folder; found a file. Remove it or name another.") from None
        if found.st_uid != os.geteuid():
            raise PermissionError(
                f"'{path}' must belong to user id {os.geteuid()}; it belongs to {found.st_uid}. "
                "Run as its owner or name another folder."
            ) from None
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.chmod(path, PRIVATE_FOLDER_MODE)
        _remove_abandoned(path)


def describe_refusal(error: OSError) -> str:
    """For people: which file, why not, what to do."""
    if error.errno is None:
        return str(error)  # our own words, as above
    where = f"'{error.filename}'" if error.filename else "a file"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where} can't be written: no space left. Free some space on its disk, then try again."
    return f"{where} can't be used: {error.strerror}"


def write_private(path: Path, content: bytes | str) -> None:
    """Replace the file as a whole; its folder must exist. Blocks for the disk: a few milliseconds.

    An OSError names the file, also where the system, which was given a descriptor, doesn't.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        _write_synced(temporary, data)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            error.filename, error.filename2 = str(path), None
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_abandoned(folder: Path) -> None:
    """What a writer of ours left: by its name, a regular file of this user, and old. Who can't look leaves them."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name) and _is_abandoned(entry.stat(follow_symlinks=False)):
                os.unlink(entry.path)


def _is_abandoned(found: os.stat_result) -> bool:
    is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and time.time() - found.st_mtime > ABANDONED_SECONDS


def _write_synced(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE_FILE_MODE)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
