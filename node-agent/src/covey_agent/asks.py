"""Answers to the controller's asks: a few at a time, each before it expires, each once.

An ask comes with every snapshot until it is answered; its id says whether it was. One whose answer could not be brought
to the controller counts as not answered.
"""

import asyncio
import logging
from collections import OrderedDict
from typing import assert_never

from covey_api.messages import MAX_ASKS, Ask, AskAnswer, AskKind
from covey_fleet_client.errors import FleetError, FleetErrorKind

from covey_agent.capturing import Captures
from covey_agent.ports import AgentError, Artifacts, Fleet, UnmeasuredHeader

logger = logging.getLogger(__name__)

# Reading a header is a few ranges of a file; more at once would only share the network.
MAX_AT_ONCE = 4
# Ids of answered asks: many times what a controller may have open (`MAX_ASKS`), for snapshots that are late.
MAX_REMEMBERED = 256
# More open ones than a controller may have are not its own.
MAX_OPEN = 2 * MAX_ASKS
# An answer that didn't reach the controller is brought again after this.
DELIVERY_AGAIN_SECONDS = 1.0
MAX_ERROR = 1024


class Asks:
    """Use `receive` for each snapshot's asks while `run` runs."""

    def __init__(self, node: str, artifacts: Artifacts, captures: Captures) -> None:
        self._node = node
        self._artifacts = artifacts
        self._captures = captures
        self._open: set[str] = set()
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._waiting: asyncio.Queue[Ask] = asyncio.Queue(MAX_OPEN)

    def receive(self, asks: tuple[Ask, ...]) -> None:
        """Take what is new; what finds no room comes again with the next snapshot."""
        for ask in asks:
            is_new = ask.id not in self._open and ask.id not in self._answered
            if is_new and len(self._open) < MAX_OPEN:
                self._open.add(ask.id)
                self._waiting.put_nowait(ask)

    async def run(self, fleet: Fleet) -> None:
        """Answer until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(MAX_AT_ONCE):
                group.create_task(self._work(fleet))

    async def _work(self, fleet: Fleet) -> None:
        while True:
            ask = await self._waiting.get()
            try:
                async with asyncio.timeout(ask.expires_seconds):
                    await self._deliver(fleet, await self._answer(ask))
                self._remember(ask.id)
            except TimeoutError:
                logger.warning("ask '%s' (%s) expired after %.0f s", ask.id, ask.kind, ask.expires_seconds)
            finally:
                self._open.discard(ask.id)

    async def _answer(self, ask: Ask) -> AskAnswer:
        try:
            match ask.kind:
                case AskKind.HEADER:
                    artifact, geometry = await self._artifacts.read_header(ask.source, ask.sha256)
                    return AskAnswer(id=ask.id, artifact=artifact, geometry=geometry)
                case AskKind.LOGS:
                    return AskAnswer(id=ask.id, text=await self._captures.read_log(ask.instance_id))
                case AskKind.CAPTURE:
                    return AskAnswer(id=ask.id, text=await self._captures.capture(ask.instance_id))
            assert_never(ask.kind)
        except UnmeasuredHeader as error:
            return AskAnswer(id=ask.id, error=error.message[:MAX_ERROR], artifact=error.artifact)
        except AgentError as error:
            return AskAnswer(id=ask.id, error=error.message[:MAX_ERROR])
        except Exception as error:
            logger.exception("ask '%s' (%s) failed unexpectedly", ask.id, ask.kind)
            return AskAnswer(id=ask.id, error=f"unexpected {type(error).__name__}: {error}"[:MAX_ERROR])

    async def _deliver(self, fleet: Fleet, answer: AskAnswer) -> None:
        while True:
            try:
                await fleet.put(f"nodes/{self._node}/asks/{answer.id}", answer)
                return
            except FleetError as error:
                if error.kind is not FleetErrorKind.UNREACHABLE:
                    logger.warning("the controller doesn't take the answer to ask '%s': %s", answer.id, error.message)
                    return
            await asyncio.sleep(DELIVERY_AGAIN_SECONDS)

    def _remember(self, ask_id: str) -> None:
        self._answered[ask_id] = None
        if len(self._answered) > MAX_REMEMBERED:
            self._answered.popitem(last=False)
