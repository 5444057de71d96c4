"""What this node is and offers, looked at now and then. A look that hangs or fails leaves the last one standing."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from covey_api.engines import Lane, UnusableEngine
from covey_api.node import NodeFacts, NodeSpec
from covey_fleet_client.beats import next_beat

from covey_agent.ports import Engines, Facts

logger = logging.getLogger(__name__)

# Lanes change when an engine was installed or a device came or went; looking is cheap, the probes keep what they saw.
LANES_SECONDS = 8.0
# Every so many looks at lanes, the facts too: a minute.
LOOKS_PER_FACTS = 8
# Both are bounded by themselves; this is for a file system that hangs.
LOOK_SECONDS = 30.0


class Survey:
    """The newest look. None: not looked yet. `observe_spec` gives the Node's spec as last assigned; None: never yet.
    `observe_members`: whether any is here, kept or adopted.

    `spec_changed` is set when it is another: it says which engines are wished, so lanes are looked at anew.
    `machine` as `observe_machine` says: it looks on its beats.
    """

    def __init__(
        self,
        engines: Engines,
        facts: Facts,
        observe_spec: Callable[[], NodeSpec | None],
        observe_members: Callable[[], bool],
        spec_changed: asyncio.Event,
        on_change: Callable[[], None],
        machine: str,
    ) -> None:
        self._engines = engines
        self._facts = facts
        self._observe_spec = observe_spec
        self._observe_members = observe_members
        self._spec_changed = spec_changed
        self._on_change = on_change
        self._machine = machine
        self.lanes: tuple[Lane, ...] | None = None
        self.facts: NodeFacts | None = None
        self.unusable: tuple[UnusableEngine, ...] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        looks = 0
        while True:
            before = (self.lanes, self.facts, self.unusable)
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._look(with_facts=looks % LOOKS_PER_FACTS == 0)
            except Exception:
                logger.exception("this node could not be looked at; what was seen last stands")
            if (self.lanes, self.facts, self.unusable) != before:
                self._on_change()
            looks += 1
            await self._wait()

    async def _wait(self) -> None:
        """Until it is time to look again, or the Node's spec is another."""
        now = asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(next_beat(now, LANES_SECONDS, self._machine)):
                await self._spec_changed.wait()

    async def _look(self, *, with_facts: bool) -> None:
        self._spec_changed.clear()
        spec = self._observe_spec()
        if not await self._engines.prepare(spec, has_members=self._observe_members()):
            return
        lanes = await self._engines.observe_lanes(spec or NodeSpec())
        self.unusable = self._engines.observe_unusable(spec or NodeSpec())
        # Pools of devices come with their lanes, so lanes come first and new ones bring the facts along.
        if with_facts or lanes != self.lanes:
            self.facts = await self._facts.observe_facts()
        self.lanes = lanes
