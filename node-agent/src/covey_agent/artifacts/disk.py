"""Writing to a disk that may fail, beside other processes that write there too: whole files, locks, work in threads."""

import asyncio
import contextlib
import errno
import os
import shutil
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import psutil
from covey_api.reasons import FailureCause

from covey_agent.keeper.observed import take_lock
from covey_agent.ports import AgentError

P = ParamSpec("P")
T = TypeVar("T")

# How often a lock that another process holds is tried again.
LOCK_POLL_SECONDS = 0.2


def write_atomically(path: Path, content: bytes) -> None:
    """Whole or not at all, also after a power cut."""
    temporary = name_temporary(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def name_temporary(path: Path) -> Path:
    """A name beside it that is this thread's alone, and that `sweep_temporaries` knows."""
    return path.with_name(f".{path.name}.{threading.get_ident()}.{os.getpid()}")


def sweep_temporaries(folder: Path) -> None:
    """Remove what was about to be made, or removed, when its process ended, or the power did."""
    for path in folder.glob(".*.*"):
        process = path.name.rpartition(".")[2]
        if not process.isdigit() or _has_living_maker(path, int(process)):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _has_living_maker(path: Path, process: int) -> bool:
    if process != os.getpid():
        return psutil.pid_exists(process)
    # In a container the next process gets the same id: what is older than this one was another's.
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_ctime >= psutil.Process().create_time()
    return True


def list_folder(folder: Path) -> list[Path]:
    """What is in it, by name; nothing where it isn't there."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def size_of(path: Path, *, is_lone: bool = False) -> int:
    """Of the file itself; zero where there is none. `is_lone`: zero as well for one that has other names."""
    try:
        found = path.lstat()
    except OSError:
        return 0
    return 0 if is_lone and found.st_nlink > 1 else found.st_size


def taken_by(path: Path) -> int:
    """Bytes of the disk, at most as many as it is long: holes take none. Zero where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return 0
    return min(found.st_size, found.st_blocks * 512)


def sync_folder(folder: Path) -> None:
    """Make the renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def run_to_end(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a thread; a caller that is cancelled meanwhile still waits for its end.

    The work uses a descriptor that the caller closes when it leaves: a thread that ran on would write to whatever file
    gets that number next. So keep the work short.
    """
    work = asyncio.get_running_loop().run_in_executor(None, lambda: function(*args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        raise


@asynccontextmanager
async def hold_partial(path: Path, patience_seconds: float) -> AsyncGenerator[int]:
    """A descriptor of the partial file, locked against other processes; waits while its holder makes progress.

    The lock is on the file itself, so that nothing is left behind: who gets it checks that the file still has its name.
    """
    loop = asyncio.get_running_loop()
    seen, deadline = (-1, 0), loop.time() + patience_seconds
    while True:
        descriptor = _open_own(path)
        try:
            if take_lock(descriptor) and has_name(descriptor, path):
                yield descriptor
                return
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        # A holder that waits for another node touches it: it lives, and nothing is the matter with it.
        if seen != (status.st_size, status.st_mtime_ns):
            seen, deadline = (status.st_size, status.st_mtime_ns), loop.time() + patience_seconds
        if loop.time() > deadline:
            raise AgentError(
                FailureCause.ARTIFACT_UNAVAILABLE,
                f"another process holds {path} and has written nothing for {patience_seconds:.0f} s. "
                f"Find it with `fuser {path}`.",
            )
        await asyncio.sleep(LOCK_POLL_SECONDS)


def _open_own(path: Path) -> int:
    """Never what a link points at: it may be anything, and would be written over."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    path.unlink(missing_ok=True)
    return os.open(path, flags, 0o644)


def has_name(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
