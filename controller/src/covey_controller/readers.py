"""Who reads snapshots, and when each is woken: by news, or because it is time for a sign of life.

Keep-alives of all streams come at the same moments, by one timer: a hundred lines in one wakeup cost a third of what
they cost in a hundred, and a timeout of each stream's own is a cancellation every few seconds. So one may come sooner
than `KEEPALIVE_SECONDS` after the last line, never later. With nobody reading there is no timer.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from covey_api.messages import KEEPALIVE_SECONDS
from covey_fleet_client.beats import next_beat


@dataclass(eq=False, slots=True)
class Reader:
    """One stream that waits for a change, or for its next sign of life."""

    woken: asyncio.Event = field(default_factory=asyncio.Event)
    has_news: bool = False

    def tell(self) -> None:
        self.has_news = True
        self.woken.set()

    async def wait_news(self) -> bool:
        """False when it is time for a keep-alive."""
        await self.woken.wait()
        self.woken.clear()
        had_news, self.has_news = self.has_news, False
        return had_news


class Readers:
    """One event loop, no locks."""

    def __init__(self, machine: str = "") -> None:
        """Signs of life go out on the beats of this `machine`, as `observe_machine` says."""
        self._machine = machine
        self._open: dict[tuple[str, str], list[Reader]] = {}
        self._next_beat: asyncio.TimerHandle | None = None

    def is_read(self, kind: str, name: str) -> bool:
        return (kind, name) in self._open

    @contextmanager
    def reading(self, kind: str, name: str) -> Generator[Reader]:
        reader = Reader()
        self._open.setdefault((kind, name), []).append(reader)
        if self._next_beat is None:
            self._await_beat()
        try:
            yield reader
        finally:
            same = self._open[kind, name]
            same.remove(reader)
            if not same:
                del self._open[kind, name]
            if not self._open and self._next_beat is not None:
                self._next_beat.cancel()
                self._next_beat = None

    def wake(self, kind: str, name: str = "") -> None:
        """Those of one name, or all of this kind: there is something new."""
        for (reader_kind, reader_name), readers in self._open.items():
            if reader_kind == kind and name in ("", reader_name):
                for reader in readers:
                    reader.tell()

    def _await_beat(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_beat = loop.call_at(next_beat(loop.time(), KEEPALIVE_SECONDS, self._machine), self._beat)

    def _beat(self) -> None:
        for readers in self._open.values():
            for reader in readers:
                reader.woken.set()
        self._await_beat()
