"""The lifeline: a pipe whose write end only the parent holds. Its end means that the parent is gone, however it died.

Signals can't tell that (a killed parent sends none), and polling the parent's pid would take a reused one for it.
"""

import asyncio
import os

# Nobody writes into a lifeline; what somebody writes by mistake is read away so that it can't hide the end.
_READ_BYTES = 4096


async def watch_lifeline(fd: int) -> None:
    """Return when the pipe's last writer is gone. The descriptor stays open and isn't passed on to children."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def on_readable() -> None:
        try:
            is_alive = bool(os.read(fd, _READ_BYTES))
        except BlockingIOError:
            is_alive = True
        except OSError:
            is_alive = False
        if not is_alive and not ended.done():
            ended.set_result(None)

    os.set_inheritable(fd, False)
    os.set_blocking(fd, False)
    loop.add_reader(fd, on_readable)
    try:
        await ended
    finally:
        loop.remove_reader(fd)
