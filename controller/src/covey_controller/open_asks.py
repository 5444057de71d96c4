"""Questions that people ask of nodes: open for as long as somebody waits, then gone (ADR 33).

They ride on the assignments' stream beside those of the plan, which are state and survive this process; these are not.
"""

import asyncio
from dataclasses import dataclass

from covey_api.messages import Ask, AskAnswer

# Beside the plan's: together well below `MAX_ASKS`.
MAX_OPEN_PER_NODE = 16


class TooManyAsks(Exception):
    """This node has as many questions open as it may have."""


@dataclass(frozen=True, slots=True)
class _OpenAsk:
    ask: Ask
    answered: asyncio.Future[AskAnswer]


class OpenAsks:
    """By node. One event loop, no locks."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, _OpenAsk]] = {}

    def of(self, node: str) -> tuple[Ask, ...]:
        return tuple(each.ask for each in self._open.get(node, {}).values())

    def open(self, node: str, ask: Ask) -> asyncio.Future[AskAnswer]:
        """Its answer, in time; `close` it in any case. TooManyAsks."""
        asks = self._open.setdefault(node, {})
        if len(asks) >= MAX_OPEN_PER_NODE:
            raise TooManyAsks(f"node '{node}' has {len(asks)} questions open: ask again in some seconds")
        asks[ask.id] = _OpenAsk(ask, asyncio.get_running_loop().create_future())
        return asks[ask.id].answered

    def close(self, node: str, ask_id: str) -> None:
        asks = self._open.get(node, {})
        if (closed := asks.pop(ask_id, None)) is not None:
            closed.answered.cancel()
        if not asks:
            self._open.pop(node, None)

    def take(self, node: str, answer: AskAnswer) -> bool:
        """Whether it answers one of these."""
        asked = self._open.get(node, {}).get(answer.id)
        if asked is not None and not asked.answered.done():
            asked.answered.set_result(answer)
        return asked is not None
