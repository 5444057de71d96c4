"""Clones that git can't use any more, kept beside the one that is made anew: they may hold edits that nobody else has.

One that surely holds none is replaced by the next. One that may is never touched again, and the next gets a number. Git
can't be asked about them, so their refs are read as the files that they are; what can't be told counts as an edit.
"""

import shutil
from pathlib import Path

from covey_controller.stores.git.command import Fault, GitFault
from covey_controller.stores.git.refs import ASIDE_REFS, HEAD_REF, REMOTE_REF

# Each may take as much as a clone. More of them is a disk that breaks whatever is written to it.
MAX_DAMAGED = 16


def put_aside(folder: Path) -> Path | None:
    """Move a clone away; where it is then. GitFault with UNUSABLE when there is no place left."""
    if not folder.exists():
        return None
    for number in range(1, MAX_DAMAGED + 1):
        place = folder.with_suffix(".damaged" if number == 1 else f".damaged-{number}")
        if not may_hold_edits(place):
            remove(place)
            return folder.rename(place)
    words = (
        f"the clone '{folder}' is damaged, and {MAX_DAMAGED} damaged ones with edits that weren't pushed are kept "
        "beside it: take out of them what is still wanted, and remove them"
    )
    raise GitFault(Fault.UNUSABLE, words)


def may_hold_edits(folder: Path) -> bool:
    """Whether a clone may have commits that the remote lacks."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    refs = _read_refs(folder)
    if any(name.startswith(ASIDE_REFS) for name in refs):
        return True
    if HEAD_REF not in refs and REMOTE_REF not in refs:
        # Refs that were lost; before the first fetch there is nothing to lose.
        return any(folder.glob("objects/??/*"))
    return refs.get(HEAD_REF) != refs.get(REMOTE_REF)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _read_refs(folder: Path) -> dict[str, str]:
    packed = folder / "packed-refs"
    lines = packed.read_text(errors="replace").splitlines() if packed.is_file() else []
    pairs = (line.partition(" ") for line in lines if not line.startswith(("#", "^")))
    loose = {
        path.relative_to(folder).as_posix(): path.read_text(errors="replace").strip()
        for path in folder.glob("refs/**/*")
        if path.is_file()
    }
    return {name: commit for commit, _, name in pairs} | loose
