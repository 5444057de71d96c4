"""How a server of asyncio ends without losing a connection."""

import asyncio


async def stop_accepting(server: asyncio.Server) -> None:
    """Nothing is accepted from here on, and what was accepted before has its protocol or task, whose it is to end it.

    asyncio accepts in one turn of the loop and makes the transport in the next, for which the server must still be
    open: else the socket is lost, and is told as unclosed in whichever test comes by when it is collected.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await asyncio.sleep(0)
    server.close()
    await asyncio.sleep(0)  # the protocol is told
    await asyncio.sleep(0)  # a stream's task has begun
