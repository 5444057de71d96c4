"""Edits that people asked for and wait for: bounded in number and in time."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from covey_controller.ports import Applied, InvalidSet, SourceError
from covey_controller.stores.files.request import Apply, Delete

# Longest wait of who applies by name: for a source at rest, then for the disk.
EDIT_SECONDS = 30.0
# Edits are asked for by people and scripts; more than this at once is a loop gone wild.
MAX_EDITS_WAITING = 64


@dataclass(frozen=True, slots=True)
class Request:
    """One edit and who waits for it."""

    asked: Apply | Delete
    answer: asyncio.Future[tuple[Applied, ...]]

    def fulfil(self, results: tuple[Applied, ...]) -> None:
        if not self.answer.done():
            self.answer.set_result(results)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class EditQueue:
    """Edits in the order in which they were asked for."""

    def __init__(self, source: str, on_ask: Callable[[], None]) -> None:
        self._source = source
        self._on_ask = on_ask
        self._requests: deque[Request] = deque()

    async def ask(self, asked: Apply | Delete) -> tuple[Applied, ...]:
        """Have the source edited; returns when the edit is in force."""
        if len(self._requests) >= MAX_EDITS_WAITING:
            raise refusal(self._source, f"more than {MAX_EDITS_WAITING} edits wait for the source; try again later")
        request = Request(asked, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self._on_ask()
        try:
            async with asyncio.timeout(EDIT_SECONDS):
                return await request.answer
        except TimeoutError:
            raise refusal(
                self._source,
                f"the edit was not confirmed within {EDIT_SECONDS:.0f} s: the source must rest for it, and the disk "
                "answer. Stop what is changing the source, look at what it holds, and try again",
            ) from None

    def first(self) -> Request | None:
        """The oldest request that somebody still waits for."""
        while self._requests and self._requests[0].answer.done():
            self._requests.popleft()
        return self._requests[0] if self._requests else None

    def fail_all(self, error: Exception) -> None:
        while self._requests:
            self._requests.popleft().fail(error)


def refusal(source: str, message: str) -> InvalidSet:
    """Why an edit was not made, when no document is to blame."""
    return InvalidSet((SourceError(source, 1, "", "", message),))
