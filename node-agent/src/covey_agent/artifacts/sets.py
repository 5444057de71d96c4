"""Artifacts of several files: a folder in which each file has its own name, made of hard links to blobs.

Engines find the files of a checkpoint, or of a GGUF model that was split, by their names. A link costs no space; where
the file system has none, a copy does. A folder appears under its name by one rename, so it is whole or not there.
"""

import errno
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from covey_api.model import ArtifactFile, ResolvedArtifact

from covey_agent.artifacts.disk import name_temporary, sync_folder

_LINE = re.compile(r"([0-9a-f]{64})  (.{1,255})")


def render_list(files: tuple[ArtifactFile, ...]) -> bytes:
    """What `sha256sum` prints of them, by name: its own digest is the set's."""
    return "".join(f"{file.sha256}  {file.name}\n" for file in sorted(files, key=lambda file: file.name)).encode()


def parse_list(text: bytes) -> dict[str, str] | None:
    """Digests by name; None: it is no such list. The names may be any."""
    try:
        lines = text.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    found = [_LINE.fullmatch(line) for line in lines[:-1]]
    if lines[-1] or not found or not all(found):
        return None
    named = {each[2]: each[1] for each in found if each}
    return named if len(named) == len(found) else None


def install_set(folder: Path, artifact: ResolvedArtifact, blobs: Mapping[str, Path]) -> Path:
    """The artifact's folder with all of its files. Blocking."""
    name = artifact.sha256 or ""
    final, temporary = folder / name, name_temporary(folder / name)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        for file in artifact.files:
            _check_name(file.name)
            _link(blobs[file.name], temporary / file.name)
        sync_folder(temporary)
        if final.is_symlink():
            final.unlink()
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(folder)
    return final


def find_set(folder: Path, artifact: ResolvedArtifact) -> Path | None:
    """What an engine is given: the folder, or the first file of a GGUF model. None unless all files have their size."""
    found = folder / (artifact.sha256 or "")
    if found.is_symlink():
        return None
    try:
        _check_name(artifact.name)
        for file in artifact.files:
            _check_name(file.name)
            each = (found / file.name).lstat()
            if not stat.S_ISREG(each.st_mode) or each.st_size != file.size_bytes:
                return None
    except OSError:
        return None
    return found / artifact.name if artifact.name.endswith(".gguf") else found


def _check_name(name: str) -> None:
    """OSError unless it stays in its folder: it may have been kept before its type asked for that."""
    if Path(name).name != name or name == "..":
        raise OSError(errno.EINVAL, "the name of a file of it leads out of its folder")


def _link(blob: Path, name: Path) -> None:
    try:
        name.hardlink_to(blob)
    except OSError:
        shutil.copy2(blob, name)
