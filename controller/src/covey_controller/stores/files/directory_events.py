"""Events of directories, from the kernel: the names that were made, changed or removed in them. It filters nothing.

Linux: inotify, read when there is something to read, in the loop's own thread; at rest it costs nothing. Elsewhere
watchfiles, whose thread wakes at each step for as long as it watches: on Linux too that was a fifth of what a
controller costs at rest.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Sequence

# Events within it come as one signal for each name; a stream of them is passed on that often.
GATHER_SECONDS = 0.05

OnTouched = Callable[[str, bool], None]
"""A path, and whether it was made, removed or moved (and not only changed)."""

if sys.platform == "linux":
    from asyncinotify import Event, Inotify, Mask

    _MEMBERSHIP = (
        Mask.CREATE
        | Mask.DELETE
        | Mask.MOVED_FROM
        | Mask.MOVED_TO
        | Mask.DELETE_SELF
        | Mask.MOVE_SELF
        | Mask.IGNORED
        | Mask.Q_OVERFLOW
    )
    # Also a mode that lets a file be read again.
    _WATCHED = Mask.MODIFY | Mask.ATTRIB | (_MEMBERSHIP & ~(Mask.IGNORED | Mask.Q_OVERFLOW))

    async def watch_directories(directories: Sequence[str], on_touched: OnTouched, stop: asyncio.Event) -> None:
        """Tell until `stop` is set. OSError when they can't be watched. What happens after the call is told."""
        loop = asyncio.get_running_loop()
        with Inotify() as inotify, contextlib.ExitStack() as stack:
            for directory in directories:
                # Its type leaves open what paths are made of.
                inotify.add_watch(directory, _WATCHED)  # pyright: ignore[reportUnknownMemberType]

            def read() -> None:
                loop.remove_reader(inotify.fd)
                stack.callback(loop.call_later(GATHER_SECONDS, listen).cancel)
                for path, is_membership in _take(inotify).items():
                    # The queue of the kernel ran over: whatever it is that was lost, a look at all of it finds it.
                    for each in (path,) if path else directories:
                        on_touched(each, is_membership)

            def listen() -> None:
                stack.pop_all()
                stack.callback(loop.remove_reader, inotify.fd)
                loop.add_reader(inotify.fd, read)

            listen()
            await stop.wait()

    def _take(inotify: Inotify) -> dict[str, bool]:
        """All that waits to be read, by path; no path: events were lost."""
        found: dict[str, bool] = {}
        with contextlib.suppress(BlockingIOError):
            while (event := inotify.sync_get()) is not None:
                path = _path_of(event)
                found[path] = found.get(path, False) or bool(event.mask & _MEMBERSHIP)
        return found

    def _path_of(event: Event) -> str:
        return os.fspath(event.path) if event.path is not None else ""

else:
    import logging

    # Its type names the event class of trio, which isn't installed.
    from watchfiles import Change, awatch  # pyright: ignore[reportUnknownVariableType]

    # How often its thread wakes.
    _STEP_MILLISECONDS = 200

    async def watch_directories(directories: Sequence[str], on_touched: OnTouched, stop: asyncio.Event) -> None:
        """Tell until `stop` is set. OSError, RuntimeError or a group of them when they can't be watched."""
        # It tells every change at INFO, among them those that are none to us.
        logging.getLogger("watchfiles").setLevel(logging.WARNING)
        changes = awatch(
            *directories,
            watch_filter=None,
            recursive=False,
            step=_STEP_MILLISECONDS,
            debounce=_STEP_MILLISECONDS,
            stop_event=stop,
        )
        async with contextlib.aclosing(changes):
            async for found in changes:
                for change, path in found:
                    on_touched(path, change != Change.modified)
