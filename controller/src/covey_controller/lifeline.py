"""The lifeline: a pipe whose write end only the parent holds. Its end means that the parent is gone, however it died.

`covey_fleet_client.lifeline` does the same for agents and gateways; the controller may not import it (it dials nobody).
"""

import asyncio
import os

# Nobody writes into a lifeline; what comes by mistake is read away, so that it can't hide the end.
_READ_BYTES = 4096


async def wait_parent_gone(descriptor: int) -> None:
    """Return when the pipe's last writer is gone."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()

    def look() -> None:
        try:
            is_alive = bool(os.read(descriptor, _READ_BYTES))
        except BlockingIOError:
            is_alive = True
        except OSError:
            is_alive = False
        if not is_alive:
            gone.set()

    os.set_inheritable(descriptor, False)
    os.set_blocking(descriptor, False)
    loop.add_reader(descriptor, look)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
