"""Documents that a command was given: texts with the names of their files, and where a line of the whole came from.

Owns reading and places. What a document may say is the controller's or the API server's to know.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from covey.errors import CommandError, ExitCode

SUFFIXES = {".yaml", ".yml", ".json"}
_SEPARATOR = "\n---\n"


@dataclass(frozen=True, slots=True)
class Documents:
    """`texts`: pairs of the file's name and what it holds, in the order in which they were given."""

    texts: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """What the whole is called where one name is wanted."""
        return ", ".join(name for name, _ in self.texts)[:1024]

    @property
    def joined(self) -> str:
        """All as one text: one set."""
        return _SEPARATOR.join(text for _, text in self.texts)

    def place(self, line: int) -> tuple[str, int]:
        """File and line in it of a line of `joined`, counted from 1."""
        before = 0
        for name, text in self.texts:
            lines = text.count("\n")
            if line <= before + lines + 1 or (name, text) == self.texts[-1]:
                return name, line - before
            before += lines + _SEPARATOR.count("\n")
        return "request", line


def read_documents(names: tuple[str, ...]) -> Documents:
    """What `-f` names: files, folders and `-`. CommandError where there is nothing to read."""
    return Documents(tuple(pair for name in names for pair in _read(name)))


def _read(name: str) -> Iterator[tuple[str, str]]:
    if name == "-":
        yield "standard input", sys.stdin.read()
        return
    path = Path(name)
    try:
        if not path.is_dir():
            yield name, path.read_text(encoding="utf-8")
            return
        files = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES and not p.name.startswith("."))
        if not files:
            raise CommandError(f"folder '{name}' holds no .yaml, .yml or .json file", ExitCode.NOTHING_MATCHED)
        for file in files:
            yield str(file), file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read '{name}': {error}", ExitCode.WRONG_USE) from error
