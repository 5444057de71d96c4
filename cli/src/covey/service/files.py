"""The files of a service on the disk: its own, sealed, and the variables that people give it, which stay theirs."""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from covey_fleet_client.files import PRIVATE_FILE_MODE, describe_refusal

from covey.errors import CommandError
from covey.service.sealed import Hand, judge_hand

_FILE_MODE = 0o644
# A shell's PATH has what a manager's hasn't, `llama-server` from Homebrew say; root's gets no user's folders.
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WORDS = """\
# Variables of this service of Covey's. `covey service install` made it once and never writes it again.
# NAME=VALUE a line. Mode 0600: it may hold credentials, such as
#   HF_TOKEN=…            for models of a hub
#   PIP_INDEX_URL=…       for a mirror of the package index
#   COVEY_ORPHAN_GRACE_SECONDS=300
"""


class Written(StrEnum):
    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    KEPT = "kept"
    """Edited by hand, so it stays."""


def write_service_file(path: Path, content: str, *, is_forced: bool) -> Written:
    """As a whole. What somebody edited is left alone unless `is_forced`. CommandError where it can't be written."""
    before = read_service_file(path)
    if before == content:
        return Written.UNCHANGED
    if before is not None and judge_hand(before) is Hand.EDITED and not is_forced:
        return Written.KEPT
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(content)
        temporary.chmod(_FILE_MODE)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CommandError(describe_refusal(error)) from None
    return Written.CREATED if before is None else Written.CHANGED


def read_service_file(path: Path) -> str | None:
    """None when there is none. CommandError where it can't be read."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"'{path}' can't be read: {error}") from None


def create_environment_file(path: Path, environment: Mapping[str, str], *, is_system: bool) -> bool:
    """Only where there is none, 0600. Whether it was made now."""
    search = _SYSTEM_PATH if is_system else environment.get("PATH", _SYSTEM_PATH)
    content = f"{_WORDS}PATH={search}\n" if search.isprintable() else _WORDS
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE_FILE_MODE)
    except FileExistsError:
        return False
    except OSError as error:
        raise CommandError(describe_refusal(error)) from None
    with open(descriptor, "w") as file:
        file.write(content)
    return True
