"""What the user of a system service may do, which isn't the user that installs it: asked of the kernel, as that user.

Modes and owners alone don't say it: the folders above count too, and lists of access.
"""

import os
import pwd
import subprocess
from pathlib import Path

_SECONDS = 10.0


def can_read(user: str, path: Path) -> bool:
    return _holds(user, '[ -r "$1" ]', path)


def owns_folder(user: str, path: Path) -> bool:
    """There, the user's, and to be written by it."""
    return _holds(user, '[ -d "$1" ] && [ -O "$1" ] && [ -w "$1" ] && [ -x "$1" ]', path)


def _holds(user: str, test: str, path: Path) -> bool:
    """Of who isn't root, who can't ask for others and can't write a system service's file either, nothing is said."""
    if os.geteuid() != 0:
        return True
    found = pwd.getpwnam(user)
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", test, "sh", str(path)],
            user=found.pw_uid,
            group=found.pw_gid,
            extra_groups=os.getgrouplist(user, found.pw_gid),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
