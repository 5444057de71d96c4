"""State and cache: there, ours, private, writable, with room. A link is never judged by its target."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from covey_agent.artifacts.room import SPARE_BYTES
from covey_api.units import format_bytes
from covey_fleet_client.files import PRIVATE_FILE_MODE, PRIVATE_FOLDER_MODE

from covey.doctor.finding import Finding, Level, ok
from covey.doctor.place import Place

# The smallest useful model with its engine; a large one takes tens of times that.
_TIGHT_CACHE_BYTES = 10 * 1024**3
# A state folder is some megabytes, its logs at most 32.
_TIGHT_STATE_BYTES = 1024**3
_FEW_INODES = 10_000
# What the agent writes in (`covey_agent.artifacts.cache`).
CACHE_FOLDERS = ("blobs", "blobs/sha256", "stamps", "pins", "partial", "refs", "files", "sets", "envs")
# Looked at in a state folder: members' folders have a handful of files each.
_MAX_FILES = 20_000
_SECRETS = ("*.key", "key.pem", "server.pem", "control.pem", "fleet.secret", "token", "tokens.json", "assignments.json")


def look_at_state(place: Place) -> list[Finding]:
    running = place.describe_running()
    words = running or "nothing of Covey runs in it"
    findings = list(_look_at_folder("state", place.state, words, is_private=True))
    if findings[0].level is not Level.BROKEN and place.state.is_dir():
        findings += _look_at_secrets(place.state)
    return findings


def look_at_cache(place: Place) -> list[Finding]:
    findings = list(_look_at_folder("cache", place.cache, "models and engines are kept there", is_private=False))
    if findings[0].level is Level.BROKEN:
        return findings
    wrong = [words for each in CACHE_FOLDERS if (words := _describe_wrong_within(place.cache / each))]
    if wrong:
        found = f"in '{place.cache}' {'; '.join(wrong)}"
        fix = f"`sudo chown -R {os.geteuid()} '{place.cache}'`: another user, such as root, made it by a command there"
        return [Finding("cache", Level.BROKEN, found, "the agent doesn't start, or fetches fail", fix)]
    return findings


def _describe_wrong_within(folder: Path) -> str:
    """Why a folder of the cache can't be used; empty when it can, or isn't there yet."""
    found = _lstat(folder)
    words = _describe_wrong(folder, found, is_private=False) if found is not None else ""
    return f"'{folder.name}' {words}" if words else ""


def _look_at_folder(check: str, folder: Path, words: str, *, is_private: bool) -> Iterator[Finding]:
    found = _lstat(folder)
    if found is None:
        yield _look_at_absent(check, folder)
    elif problem := _describe_wrong(folder, found, is_private=is_private):
        consequence = "no part starts with it" if is_private else "nothing can be fetched"
        option = "--state" if is_private else "--cache"
        yield Finding(
            check,
            Level.BROKEN,
            f"'{folder}' {problem}",
            consequence,
            f"give it to this user, or name another: {option}",
        )
    elif is_private and stat.S_IMODE(found.st_mode) & 0o077:
        yield Finding(
            check,
            Level.WARNING,
            f"'{folder}' is open to other users (mode {stat.S_IMODE(found.st_mode):o})",
            "they can see what runs here, and look for a file that is open too",
            f"chmod 700 '{folder}'",
            _closing(folder, PRIVATE_FOLDER_MODE),
        )
    else:
        yield ok(check, f"'{folder}': {words}")


def _look_at_absent(check: str, folder: Path) -> Finding:
    above = next((each for each in folder.parents if each.exists()), Path("/"))
    if os.access(above, os.W_OK | os.X_OK) and not _is_read_only(above):
        return ok(check, f"'{folder}' isn't there yet; it is made at the first start")
    return Finding(
        check,
        Level.BROKEN,
        f"'{folder}' isn't there, and this user (id {os.geteuid()}) can't make it: '{above}' isn't writable",
        "no part starts",
        f"make it and give it to this user, or name another folder with --{check}",
    )


def _describe_wrong(folder: Path, found: os.stat_result, *, is_private: bool) -> str:
    """Why it can't be used; empty when it can."""
    if stat.S_ISLNK(found.st_mode) and is_private:
        return "must be a folder; found a symlink"
    if not folder.is_dir():
        return "must be a folder; found something else"
    if is_private and found.st_uid != os.geteuid():
        return f"must belong to user id {os.geteuid()}; it belongs to {found.st_uid}"
    if _is_read_only(folder) or not os.access(folder, os.W_OK | os.X_OK):
        return f"can't be written by user id {os.geteuid()}"
    return ""


def _look_at_secrets(state: Path) -> Iterator[Finding]:
    """Files that only this user may read, and are open to others."""
    for path in _walk(state):
        found = _lstat(path)
        if found is None or not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            continue
        if stat.S_IMODE(found.st_mode) & 0o077 and any(path.match(name) for name in _SECRETS):
            yield Finding(
                "state",
                Level.WARNING,
                f"'{path}' is a secret and open to other users (mode {stat.S_IMODE(found.st_mode):o})",
                "who can read it can speak for this machine; if others use it, join again with a new token",
                f"chmod 600 '{path}'",
                _closing(path, PRIVATE_FILE_MODE),
            )


def _walk(state: Path) -> Iterator[Path]:
    seen = 0
    for part in ("agent", "gateway", "controller"):
        for folder, _, names in os.walk(state / part):
            for name in names:
                seen += 1
                if seen > _MAX_FILES:
                    return
                yield Path(folder) / name


def look_at_disk(place: Place) -> list[Finding]:
    return [
        _look_at_room("disk", "state", place.state, _TIGHT_STATE_BYTES),
        _look_at_room("disk", "cache", place.cache, _TIGHT_CACHE_BYTES),
    ]


def _look_at_room(check: str, what: str, folder: Path, tight_bytes: int) -> Finding:
    there = next((each for each in (folder, *folder.parents) if each.exists()), Path("/"))
    try:
        free_bytes, inodes = shutil.disk_usage(there).free, os.statvfs(there)
    except OSError as error:
        return Finding(
            check, Level.BROKEN, f"'{there}' can't be looked at: {error.strerror}", "nothing can be kept there"
        )
    free = f"{format_bytes(free_bytes)} free for the {what} folder ('{there}')"
    if free_bytes < SPARE_BYTES:
        consequence = "records can't be written" if what == "state" else "nothing is fetched"
        return Finding(check, Level.BROKEN, f"only {free}", consequence, "free some space on that disk")
    if inodes.f_files and inodes.f_favail < _FEW_INODES:
        few = f"only {inodes.f_favail} more files fit beside the {what} folder ('{there}')"
        return Finding(check, Level.WARNING, few, "the disk counts as full before its bytes are", "remove small files")
    if free_bytes < tight_bytes:
        consequence = "logs and records may fill it" if what == "state" else "a model of some size doesn't fit"
        return Finding(check, Level.WARNING, f"only {free}", consequence, "free some space, or name another folder")
    return ok(check, free)


def _is_read_only(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _closing(path: Path, mode: int) -> Callable[[], None]:
    """By the file that is there now, never by what a link leads to."""

    def close() -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

    return close
