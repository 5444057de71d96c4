"""The age identities that open the source's secrets, read once from a file that only its owner can read."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyrage

# Some hundred keys; a file that is larger is another file.
MAX_KEY_FILE_BYTES = 64 << 10
KEY_FILE_VARIABLE = "SOPS_AGE_KEY_FILE"


class CannotOpen(Exception):
    """An encrypted text can't be opened with these keys; the words hold nothing of its content."""


class AgeKeys:
    """Identities that decrypt. Nothing of them is ever printed."""

    def __init__(self, identities: Sequence[Any]) -> None:
        self._identities = identities

    def open(self, encrypted: bytes) -> bytes:
        """The plain bytes of an age file, armored or not. CannotOpen if no key fits, or it was changed."""
        library: Any = pyrage
        try:
            return bytes(library.decrypt(encrypted, list(self._identities)))
        except library.DecryptError as error:
            raise CannotOpen(f"no key in the age key file opens it, or it is damaged ({error})") from None


def read_age_keys(path: Path) -> AgeKeys:
    """ValueError or OSError says what must hold of the file."""
    if path.stat().st_mode & 0o077:
        raise ValueError(f"the age key file must be readable by its owner only: chmod 600 '{path}'")
    with path.open("rb") as file:
        content = file.read(MAX_KEY_FILE_BYTES + 1)
    if len(content) > MAX_KEY_FILE_BYTES:
        raise ValueError(f"the age key file must be at most {MAX_KEY_FILE_BYTES} bytes; is '{path}' the right file?")
    library: Any = pyrage
    identities: list[Any] = []
    for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        try:
            identities.append(library.x25519.Identity.from_str(word))
        except library.IdentityError:
            message = f"line {number} of the age key file '{path}' must be a key 'AGE-SECRET-KEY-1…' or a comment"
            raise ValueError(message) from None
    if not identities:
        raise ValueError(f"the age key file '{path}' must hold at least one key 'AGE-SECRET-KEY-1…'")
    return AgeKeys(identities)


def find_age_key_file(given: Path | None) -> Path | None:
    """The file that was given, else the one that SOPS itself would take from the environment."""
    named = os.environ.get(KEY_FILE_VARIABLE, "")
    return given or (Path(named) if named else None)
