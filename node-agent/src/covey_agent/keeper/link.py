"""One claimed connection to a keeper: requests and answers in order, and the engine's exit as a future.

An open link is the claim. It knows the protocol of `asking.py` and nothing of folders or processes. It is a protocol
class and not a pair of streams, so that nobody has to own a reading task.
"""

import asyncio
import json
import os
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from covey_agent.keeper.observed import observe_peer_pid

# A keeper answers from memory; one that doesn't in this time is stopped, or the machine is.
ANSWER_SECONDS = 5.0
# `sun_path` holds 108 bytes on Linux and 104 on macOS, with a closing zero.
MAX_SOCKET_PATH_BYTES = 103


class LinkError(Exception):
    """The keeper can't be reached, or said no; the words say which."""


class KeeperLink(asyncio.Protocol):
    """Use `connect`; then `ask`, and await `exit`."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.exit: asyncio.Future[dict[str, Any] | None] = loop.create_future()
        """The exit record; None when the connection ended first."""
        self.peer_pid = 0
        """The process at the other end, as the kernel knows it; 0: not known."""
        self._transport: asyncio.WriteTransport | None = None
        self._answers: deque[asyncio.Future[dict[str, Any]]] = deque()
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):  # always: asyncio's signature is wider than its socket
            self._transport = transport
            self.peer_pid = observe_peer_pid(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            if message.get("event") == "exited":
                self.set_exit(message["exit"])
            elif self._answers:
                answer = self._answers.popleft()
                if not answer.done():
                    answer.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self.set_exit(None)
        while self._answers:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_exception(LinkError("the keeper closed the connection"))

    def set_exit(self, record: dict[str, Any] | None) -> None:
        if not self.exit.done():
            self.exit.set_result(record)

    async def ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        """One request and its answer. LinkError when there is none in time, or it is an error."""
        if self._transport is None or self._transport.is_closing():
            raise LinkError("the keeper closed the connection")
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._transport.write(json.dumps({"do": verb, **arguments}).encode() + b"\n")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                message = await answer
        except TimeoutError:
            raise LinkError(f"the keeper must answer '{verb}' within {ANSWER_SECONDS:.0f} s; got nothing") from None
        if error := message.get("error"):
            raise LinkError(f"the keeper refused '{verb}': {error}")
        return message

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect(folder: Path) -> KeeperLink:
    """An open connection to the keeper of this folder. LinkError when there is none in time."""
    path = folder / "k.sock"
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
                _, link = await loop.create_unix_connection(KeeperLink, str(path))
                return link
            # A path too long for a socket address is reached through a short-lived link to its folder: the same on
            # every system, while /proc/self/fd is Linux's alone and changing the directory is the whole process's.
            with tempfile.TemporaryDirectory(prefix="covey-") as short:
                os.symlink(folder, f"{short}/m")
                _, link = await loop.create_unix_connection(KeeperLink, f"{short}/m/k.sock")
                return link
    except (OSError, TimeoutError) as error:
        raise LinkError(f"the keeper's socket '{path}' can't be reached: {error or 'no answer in time'}") from error
