"""The controller's disk, which can be full; and times of files that are counted, so that no two saves look alike."""

import itertools
import os

from covey_controller.stores.files.writing import Disk


class SimDisk(Disk):
    """Refuses every step while it is full; the source's files look new every time."""

    def __init__(self) -> None:
        self.is_full = False
        """The store can't be written; source files that are there already are read as ever."""
        self._ticks = itertools.count(1_000_000)

    def write_temporary(self, path: str, content: bytes, mode: int) -> None:
        self._require_space()
        super().write_temporary(path, content, mode)
        stamp_file(path, next(self._ticks))

    def rename(self, temporary: str, path: str) -> None:
        self._require_space()
        super().rename(temporary, path)

    def _require_space(self) -> None:
        if self.is_full:
            raise OSError(28, "no space left on device")


def stamp_file(path: str, tick: int) -> None:
    os.utime(path, ns=(tick * 1000, tick * 1000))
