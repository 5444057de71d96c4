"""What keepers of one attempt do with each other: links between machines, and that all end when one does.

As the real ones: a neighbour's end or a closed link ends the own member at once, 5 s of silence end it too, and so does
a neighbour that wasn't reached in time; no controller and no agent is asked. A driver answers once each of its donors
is reached and listens. A keeper lets nobody in who asks for another attempt.
"""

import asyncio
from collections.abc import Mapping
from contextvars import Context

from covey_agent.ports import Neighbour

from covey_simulator.machine import KILLED, Keeper, Machine

SILENCE_SECONDS = 5.0
# Between two looks: an end is heard within this.
LOOK_SECONDS = 0.25


class Neighbours:
    """`machines`: all that there are, by name."""

    def __init__(self, machines: Mapping[str, Machine]) -> None:
        self.cut: set[frozenset[str]] = set()
        """Pairs of machines between which nothing passes."""
        self._machines = machines
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, machine: Machine, keeper: Keeper) -> None:
        """From the keeper's start to its end."""
        if keeper.group is None:
            return
        # A keeper is no part of its agent's process: it goes on while that is paused.
        task = asyncio.get_running_loop().create_task(self._follow(machine, keeper), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        for task in sorted(self._tasks, key=hash):
            task.cancel()

    async def _follow(self, machine: Machine, keeper: Keeper) -> None:
        group = keeper.group
        if group is None:
            return
        form_until = float("inf") if group.form_seconds is None else machine.now() + group.form_seconds
        heard: dict[str, float] = {}
        while keeper.engine.is_alive and machine.is_living(keeper):
            for each in (*group.dials, *group.admits):
                if why := self._look(machine, keeper, each, heard, form_until):
                    words = f"member '{each.member}' on node '{each.node}' {why}"
                    machine.end_engine(keeper, KILLED, "Neighbour", why=words)
                    return
            keeper.engine.is_linked = all(self._serves(machine, keeper, each) for each in group.dials)
            # Each token passes through all of them: a driver waits for ever for a donor that computes nothing.
            keeper.engine.is_wedged |= any(self._is_wedged(keeper, each) for each in group.dials)
            await asyncio.sleep(LOOK_SECONDS)

    def _look(
        self, machine: Machine, keeper: Keeper, neighbour: Neighbour, heard: dict[str, float], form_until: float
    ) -> str:
        """Why it counts as ended; empty: it doesn't."""
        now, name = machine.now(), neighbour.member
        other, there = self._find(keeper, neighbour), self._machines[neighbour.node]
        if there.is_on and frozenset((machine.name, neighbour.node)) not in self.cut:
            if other is not None and there.is_living(other) and other.engine.is_alive:
                heard[name] = now
            elif name in heard:
                return "has ended"
        if name in heard:
            return f"said nothing for {SILENCE_SECONDS:.0f} s" if now - heard[name] >= SILENCE_SECONDS else ""
        return "could not be reached in time" if now >= form_until else ""

    def _find(self, keeper: Keeper, neighbour: Neighbour) -> Keeper | None:
        """Its keeper, if that is of the same attempt and, where it is dialled, where this one was told."""
        other = self._machines[neighbour.node].keepers.get(keeper.engine.instance_id)
        if other is None or other.attempt != keeper.attempt or other.member.name != neighbour.member:
            return None
        return other if neighbour.port in (0, other.front_port) else None

    def _is_wedged(self, keeper: Keeper, neighbour: Neighbour) -> bool:
        other = self._find(keeper, neighbour)
        return other is not None and other.engine.is_alive and other.engine.is_wedged

    def _serves(self, machine: Machine, keeper: Keeper, neighbour: Neighbour) -> bool:
        other = self._find(keeper, neighbour)
        is_reached = frozenset((machine.name, neighbour.node)) not in self.cut
        return is_reached and other is not None and other.engine.is_loaded(machine.now())
