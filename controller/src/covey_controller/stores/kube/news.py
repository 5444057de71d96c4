"""What wakes the reconciler: a change of more than status, unless it is our own write coming back. Pure.

The watch may show a write before its answer is here. Until the answer tells which version is ours, it is only noted.
"""

import asyncio
import math
from collections.abc import Generator
from contextlib import contextmanager

from covey_api.kinds import ObjectKey

from covey_controller.stores.kube.mirror import Change


class OwnWrite:
    """One write under way; its answer names the version that it made."""

    def __init__(self) -> None:
        self.version = 0.0
        self.seen = 0.0
        """The newest version that was seen of the object meanwhile; infinite when it was removed."""

    def removed(self) -> None:
        self.version = math.inf


class News:
    """Tells whether the reconciler should look again."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._writes: dict[ObjectKey, OwnWrite] = {}

    def observe(self, change: Change) -> None:
        if not change.is_wish:
            return
        write = self._writes.get(change.key)
        if write is None:
            self.changed.set()
            return
        write.seen = max(write.seen, change.after.version if change.after else math.inf)

    @contextmanager
    def own_write(self, key: ObjectKey) -> Generator[OwnWrite]:
        """A write of ours, one at a time for an object. What others wrote after it is news when it ends."""
        write = self._writes[key] = OwnWrite()
        try:
            yield write
        finally:
            self._writes.pop(key, None)
            if write.seen > write.version:
                self.changed.set()
