"""Who makes an edit, as git would name them in a commit: asked of git itself, so that both always agree."""

import getpass
import re
import socket
import subprocess

# Git reads some files for it; a home folder on a network that is away must not hold up an apply.
_ASK_SECONDS = 5.0
_IDENT = re.compile(r"(?P<author>.* <[^<>]+>) \d+ [-+]\d{4}\s*")


def find_author() -> str:
    """`Name <email>`: GIT_AUTHOR_NAME and GIT_AUTHOR_EMAIL, git's configuration, else the user and the machine."""
    try:
        asked = subprocess.run(
            ["git", "var", "GIT_AUTHOR_IDENT"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_SECONDS,
            check=False,
        )
        if found := _IDENT.fullmatch(asked.stdout):
            return found["author"]
    except (OSError, subprocess.TimeoutExpired):
        pass
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        user = "unknown"
    return f"{user} <{user}@{socket.gethostname() or 'localhost'}>"
