"""Requests that can be ended by their id, by whoever may: here, and through the controller at every other gateway.

Ids are the clients' own and need not be unique: all of the same caller's go. Of what is somebody else's nobody learns
that it is there.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from covey_api.messages import Cancel

from covey_gateway.routing.access import may_cancel
from covey_gateway.routing.table import Caller


class Cancellable(Protocol):
    def cancel(self) -> None:
        """End it, and tell its client."""
        ...


class NotPassedOn(Exception):
    """Other gateways can't be told now; the words say why."""


async def pass_to_nobody(_: Cancel) -> int:
    return 0


async def end_nowhere_else(_: Cancel, by_operator: bool) -> int:
    return 0


class Cancels:
    def __init__(self) -> None:
        self.pass_on: Callable[[Cancel], Awaitable[int]] = pass_to_nobody
        """Tell all other gateways; how many these are. NotPassedOn."""
        self.end_elsewhere: Callable[[Cancel, bool], Awaitable[int]] = end_nowhere_else
        """End it at the other workers of this gateway, by an operator's wish or not; how many were ended there."""
        self._asked: dict[str, list[tuple[Caller, Cancellable]]] = {}

    def follow(self, id_: str, caller: Caller, request: Cancellable) -> None:
        self._asked.setdefault(id_, []).append((caller, request))

    def unfollow(self, id_: str, request: Cancellable) -> None:
        """It may not be among them: a request that was refused never was, and its id may be another one's."""
        pairs = self._asked.pop(id_, ())
        if len(pairs) == 1 and pairs[0][1] is request:
            return
        if left := [pair for pair in pairs if pair[1] is not request]:
            self._asked[id_] = left

    def end(self, cancel: Cancel, *, by_operator: bool = False) -> int:
        """How many were ended here."""
        ended = [
            request for caller, request in self._asked.get(cancel.id, ()) if by_operator or may_cancel(cancel, caller)
        ]
        for request in ended:
            request.cancel()
        return len(ended)
