"""A machine that loses its power in mid-write: a writer of the product runs in a forked child that ends at step N.

A step is every opening for writing, fsync, rename, link, removal and truncation below the folder. At the cut, files
that were written and not synced since lose half of their bytes, under whatever name a rename has given them by then: a
writer that renames first and syncs later is found out.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

DONE, CUT, FAILED = 0, 77, 70
# A writer of one small file has about six steps; more than this is a mistake in the test.
MAX_STEPS = 400
_CHANGES = frozenset(("os.rename", "os.link", "os.remove", "os.truncate", "os.mkdir", "os.rmdir"))


class _Power:
    def __init__(self, folder: Path, step: int) -> None:
        self._folder = str(folder)
        self._left = step
        self._is_off = False
        self._unsynced: set[str] = set()
        self._sync = os.fsync

    def install(self) -> None:
        """For the rest of this process."""
        sys.addaudithook(self._observe)
        os.fsync = self._fsync

    def _fsync(self, file: int) -> None:
        self._count()
        self._sync(file)
        self._unsynced.discard(os.readlink(f"/proc/self/fd/{file}"))

    def _observe(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._is_off or not arguments:
            return
        path = str(arguments[0])  # or a descriptor, which is no path below the folder
        if not path.startswith(self._folder):
            return
        if event == "open":
            flags = arguments[2]
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
                self._count()
                self._unsynced.add(path)
        elif event in _CHANGES:
            self._count()
            if event == "os.rename" and path in self._unsynced:
                self._unsynced.remove(path)
                self._unsynced.add(str(arguments[1]))

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            self._cut()

    def _cut(self) -> None:
        self._is_off = True
        for path in self._unsynced:
            if os.path.isfile(path):
                os.truncate(path, os.path.getsize(path) // 2)
        os._exit(CUT)


def write_until_cut(write: Callable[[], None], folder: Path, step: int) -> bool:
    """Run the writer in a child whose power ends at this step; False once it is done before."""
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            _Power(folder, step).install()
            write()
            status = DONE
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (DONE, CUT), f"the writer failed by itself with {status}"
    return status == CUT


def cut_at_every_step(
    prepare: Callable[[Path], None], write: Callable[[Path], None], check: Callable[[Path], None], base: Path
) -> int:
    """`prepare` a folder, `write` until step 0, 1, 2 …, `check` that the next start holds; how many cuts there were."""
    for step in range(MAX_STEPS):
        folder = base / f"{step}"
        folder.mkdir(mode=0o700)
        prepare(folder)
        was_cut = write_until_cut(lambda: write(folder), folder, step)  # noqa: B023 called at once
        check(folder)
        if not was_cut:
            return step
    raise AssertionError(f"a writer must end within {MAX_STEPS} steps")
