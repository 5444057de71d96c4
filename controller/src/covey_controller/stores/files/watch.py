"""Signals that the source may have changed. Only signals: what changed, if anything, is found by scanning.

Directories are watched one by one, never recursively: the kernel's watcher would follow links out of the source, and
the scan knows them all. The parent of the source is watched too, so that its removal, its return and a switched link
are seen. Where nothing can be watched (no watches left, a file system without them) the store's slow look is what
remains; that is a notice, not a failure.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from covey_controller.stores.files.directory_events import watch_directories
from covey_controller.stores.files.folder import Scan, is_ignored

log = logging.getLogger(__name__)

# After a failure (a directory vanished, watches ran out) it is tried again this late; the slow look covers meanwhile.
RETRY_SECONDS = 5.0


class Watch:
    """Watches the directories of the last scan."""

    def __init__(self, source: Path, on_signal: Callable[[], None]) -> None:
        self._source = Path(os.path.abspath(source))
        self._on_signal = on_signal
        self._directories: frozenset[str] = frozenset()
        self._moved = asyncio.Event()
        self.fault = ""
        """Why nothing is watched; empty while all is well."""

    def look_at(self, scan: Scan) -> None:
        """Watch what this scan found from now on."""
        parent = str(self._source.parent)
        directories = frozenset({*scan.directories, parent} if os.path.isdir(parent) else scan.directories)
        if directories != self._directories:
            self._directories = directories
            self._moved.set()

    async def run(self) -> None:
        """Signal until cancelled."""
        while True:
            self._moved.clear()
            try:
                present = sorted(filter(os.path.isdir, self._directories))
                if present:
                    await self._watch(present)
                else:
                    await self._moved.wait()
            # anyio wraps what its thread raises in a group.
            except (OSError, RuntimeError, ExceptionGroup) as error:
                self._fail(str(error))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS):
                        await self._moved.wait()

    async def _watch(self, directories: list[str]) -> None:
        """Signal changes in these directories until others are to be watched, or one of them was removed or made."""
        # Watching begins within the step that begins right after this; what changed before that is looked for then.
        asyncio.get_running_loop().call_soon(self._on_signal)
        await watch_directories(directories, self._touch, self._moved)

    def _touch(self, path: str, is_membership: bool) -> None:
        self.fault = ""
        if self._is_relevant(path):
            self._on_signal()
        if is_membership and path in self._directories:
            self._moved.set()

    def _is_relevant(self, path: str) -> bool:
        """Drops what the scan would ignore, and the neighbours of the source in its parent."""
        if path == str(self._source) or path in self._directories:
            return True
        folder, name = os.path.split(path)
        return folder != str(self._source.parent) and not is_ignored(name)

    def _fail(self, words: str) -> None:
        # A directory that vanished under the watcher is an everyday change, seen by the next look.
        if not all(os.path.isdir(directory) for directory in self._directories):
            return
        if words != self.fault:
            log.warning("the source can't be watched, it is looked at every few seconds instead: %s", words)
        self.fault = words
