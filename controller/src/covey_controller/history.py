"""What the loop saw and said last: objects, the world and notes, for whoever asks to see them.

In memory only, bounded. It decides nothing and writes nothing.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from covey_api.kinds import Kind, ObjectKey

from covey_controller.ports import Event, ToldEvent
from covey_controller.reconcile.outcomes import Note
from covey_controller.reconcile.world import World
from covey_controller.utc import render_utc

# Notes kept per object, and objects with notes kept: some hundred bytes each.
MAX_NOTES = 64
MAX_OBJECTS = 4096


def _utc_now() -> datetime:
    return datetime.now(UTC)


class History:
    """One event loop, no locks."""

    def __init__(self, utc_now: Callable[[], datetime] = _utc_now) -> None:
        self._utc_now = utc_now
        self.objects: Mapping[ObjectKey, Kind] = {}
        self.world: World | None = None
        self.now = 0.0
        self._notes: OrderedDict[ObjectKey, deque[ToldEvent]] = OrderedDict()
        self._changed = asyncio.Event()

    def observe(self, objects: Mapping[ObjectKey, Kind], world: World, now: float) -> None:
        """The world that the loop plans with; whoever waits hears of objects that changed."""
        has_changed = self.world is None or (objects is not self.objects and objects != self.objects)
        self.objects, self.world, self.now = objects, world, now
        if has_changed:
            self._changed.set()
            self._changed = asyncio.Event()

    def record(self, note: Note) -> bool:
        """Keep a note; False if it is what was said of the object last."""
        notes = self._notes.setdefault(note.key, deque(maxlen=MAX_NOTES))
        event = Event(note.key, note.reason, note.message, note.warning)
        if notes and notes[-1].event == event:
            return False
        notes.append(ToldEvent(event, render_utc(self._utc_now())))
        self._notes.move_to_end(note.key)
        if len(self._notes) > MAX_OBJECTS:
            self._notes.popitem(last=False)
        return True

    def events(self, key: ObjectKey) -> tuple[ToldEvent, ...]:
        return tuple(self._notes.get(key, ()))

    async def wait_changed(self, timeout_seconds: float) -> bool:
        """True as soon as objects change; False after the timeout."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_seconds):
                await changed.wait()
        except TimeoutError:
            return False
        return True
