"""Source URIs of artifacts: `pypi://NAME==VERSION#PATH-IN-WHEEL` and `file:///ABSOLUTE/PATH`.

More schemes (`hf`, `oci`, `https`, `store`) come with their fetchers; until then they are refused by name.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

# One pattern for the CRD and for the parser below.
SOURCE_PATTERN = (
    r"^(pypi://[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*#[^#\x00-\x1f\x7f]+|file:///[^#\x00-\x1f\x7f]+)$"
)
_PYPI = re.compile(r"^pypi://([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)#([^#]+)$")


@dataclass(frozen=True, slots=True)
class PypiSource:
    """One file inside one wheel of a package index."""

    project: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class FileSource:
    """An absolute path on the node that runs the model."""

    path: str


Source = PypiSource | FileSource


def parse_source(text: str) -> Source:
    """The parsed source. ValueError says what was found and what must hold."""
    if match := _PYPI.match(text):
        project, version, member = match.groups()
        path = PurePosixPath(member)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"path in the wheel must be relative without '..'; got '{member}'")
        return PypiSource(project, version, member)
    parts = urlsplit(text)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/") and not parts.fragment:
        return FileSource(unquote(parts.path))
    raise ValueError(f"source must be 'pypi://NAME==VERSION#PATH-IN-WHEEL' or 'file:///ABSOLUTE/PATH'; got '{text}'")
