"""Makes the events of a scenario happen, each at its time, on a simulated fleet."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from covey_api.kinds import Kind, ObjectKey

from covey_simulator.accounts import Accounts, name_object
from covey_simulator.machine import CRASHED, KILLED, Keeper, Machine
from covey_simulator.scenario import RESTART_SECONDS, EventName, ScenarioEvent
from covey_simulator.settled import find_serving
from covey_simulator.source import ScenarioSource
from covey_simulator.troubles import (
    cut_link,
    cut_path,
    fill_disk,
    heal_link,
    heal_path,
    pause,
    power_off,
    power_on,
    resume,
    wedge,
)
from covey_simulator.world import World


@dataclass(slots=True)
class Player:
    """`applied`: by the index of an `Apply` event, the objects that it applies. `namespace`: of what names none."""

    world: World
    source: ScenarioSource
    accounts: Accounts
    applied: dict[int, Sequence[Kind]]
    namespace: str
    _cuts: dict[str, str] = field(default_factory=dict[str, str])
    """By node: the cause that its network is away for."""

    async def play(self, index: int, event: ScenarioEvent) -> None:
        """One event, from its beginning to its end, at its time."""
        await asyncio.sleep(max(0.0, event.at_seconds - self.accounts.now()))
        match event.event:
            case EventName.NODE_DIES | EventName.NODE_LOSES_NETWORK | EventName.NODE_RETURNS | EventName.DISK_FULL:
                await self._play_node(event.event, event.node or "", event.for_seconds)
            case EventName.CORDON | EventName.UNCORDON:
                self._cordon(event.node or "", is_on=event.event is EventName.CORDON)
            case EventName.AGENT_KILLED:
                await self._kill_agent(event.node or "", event.for_seconds or RESTART_SECONDS)
            case EventName.CONTROLLER_KILLED:
                await self._kill_controller(event.for_seconds or RESTART_SECONDS)
            case EventName.CONTROLLER_PAUSED:
                await self._pause_controller(event.for_seconds or RESTART_SECONDS)
            case EventName.GATEWAY_KILLED:
                await self._kill_gateway(f"g{event.gateway or 1}", event.for_seconds or RESTART_SECONDS)
            case EventName.ENGINE_CRASHES | EventName.ENGINE_OUT_OF_MEMORY | EventName.ENGINE_HANGS:
                self._break_engine(event.event, self._key(event))
            case EventName.APPLY | EventName.DELETE | EventName.SCALE:
                self._edit(index, event)
            case _:
                assert_never(event.event)

    def _key(self, event: ScenarioEvent) -> ObjectKey:
        return ObjectKey("Placement", event.namespace or self.namespace, event.placement or "")

    def _tell(self, message: str) -> None:
        self.accounts.tell("scenario", message)

    # Machines.

    async def _play_node(self, event: EventName, node: str, seconds: int | None) -> None:
        match event:
            case EventName.NODE_DIES:
                is_on = self.world.machines[node].is_on
                self._tell(f"node '{node}' dies" if is_on else f"node '{node}' is dead already")
                self._cut(node)
                if is_on:
                    self.world.links[node].is_dead = True
                    await power_off(self.world, node)
            case EventName.NODE_LOSES_NETWORK:
                self._tell(f"node '{node}' loses its network")
                self._cut(node)
            case EventName.DISK_FULL:
                self._tell(f"the disk of node '{node}' is full")
                fill_disk(self.world, node)
            case _:
                self._return(node)
                return
        if seconds is None:
            return
        await asyncio.sleep(seconds)
        if event is EventName.DISK_FULL:
            self._tell(f"the disk of node '{node}' has space again")
            self.world.machines[node].is_disk_full = False
        else:
            self._return(node)

    def _cut(self, node: str) -> None:
        """No byte leaves it any more, and nobody is told so: neither the controller nor a gateway in mid-answer."""
        if node not in self._cuts:
            self._cuts[node] = cut_link(self.world, self.world.links[node])
            cut_path(self.world, node)
            self.world.machines[node].freeze()

    def _return(self, node: str) -> None:
        machine, cause = self.world.machines[node], self._cuts.pop(node, "")
        self._tell(f"node '{node}' returns" if cause else f"node '{node}' is there already")
        if cause:
            heal_link(self.world, self.world.links[node], cause)
            heal_path(self.world, node)
            machine.thaw()
        if not machine.is_on:
            self.world.links[node].is_dead = False
            power_on(self.world, node)

    def _cordon(self, node: str, *, is_on: bool) -> None:
        self._tell(f"node '{node}' is {'cordoned' if is_on else 'uncordoned'}")
        self.source.cordon(node, is_on=is_on, now=self.world.now())

    # Processes.

    async def _kill_agent(self, node: str, seconds: int) -> None:
        if not self.world.machines[node].is_on:
            self._tell(f"node '{node}' is dead, and its agent with it")
            return
        self._tell(f"the agent of node '{node}' is killed")
        await self.world.kill_agent(node)
        await asyncio.sleep(seconds)
        if self.world.machines[node].is_on and node not in self.world.agents:
            self._tell(f"the agent of node '{node}' is started again")
            self.world.start_agent(node)

    async def _kill_controller(self, seconds: int) -> None:
        is_there = self.world.controller is not None
        if not is_there:
            self._tell("there is no controller to kill")
            return
        self._tell("the controller is killed")
        await self.world.kill_controller()
        await asyncio.sleep(seconds)
        if self.world.controller is None:
            self._tell("the controller is started again")
            self.world.start_controller()

    async def _pause_controller(self, seconds: int) -> None:
        controller = self.world.controller
        if controller is None or controller.process.is_paused or controller.process.is_dying:
            self._tell("there is no controller to pause")
            return
        self._tell("the controller is paused")
        pause(self.world, "controller", controller.process)
        await asyncio.sleep(seconds)
        if not controller.process.is_dying:
            self._tell("the controller goes on")
        resume(self.world, "controller", controller.process)

    async def _kill_gateway(self, name: str, seconds: int) -> None:
        if name not in self.world.gateways:
            self._tell(f"gateway {name.removeprefix('g')} is not there to be killed")
            return
        self._tell(f"gateway {name.removeprefix('g')} is killed")
        await self.world.kill_gateway(name)
        await asyncio.sleep(seconds)
        self._tell(f"gateway {name.removeprefix('g')} is started again")
        self.world.start_gateway(name)

    # Engines.

    def _break_engine(self, event: EventName, key: ObjectKey) -> None:
        """The first by name of those that serve."""
        serving = sorted(find_serving(self.world, key), key=lambda each: each[1].instance.metadata.name)
        if not serving:
            self._tell(f"no engine of {name_object(key)} serves, so none breaks")
            return
        machine, keeper = serving[0]
        does, act = _BREAKS[event]
        self._tell(f"the engine of instance '{keeper.instance.metadata.name}' on node '{machine.name}' {does}")
        act(self.world, machine, keeper)

    # People.

    def _edit(self, index: int, event: ScenarioEvent) -> None:
        now, key = self.world.now(), self._key(event)
        if event.event is EventName.APPLY:
            objects = self.applied[index]
            self._tell(f"applied: {', '.join(name_object(item.key) for item in objects)}")
            self.source.apply(objects, now)
        elif event.event is EventName.DELETE:
            is_done = self.source.delete(key)
            self._tell(f"deleted: {name_object(key)}" if is_done else f"{name_object(key)} is not there to be deleted")
        else:
            is_done = self.source.scale(key, event.replicas or 0, now)
            scaled = f"{name_object(key)} is scaled to {event.replicas}"
            self._tell(scaled if is_done else f"{name_object(key)} is not there to be scaled")


def _crash(world: World, machine: Machine, keeper: Keeper) -> None:
    machine.end_engine(keeper, CRASHED, "Engine")


def _run_out(world: World, machine: Machine, keeper: Keeper) -> None:
    machine.end_engine(keeper, KILLED, "Engine", out_of_memory=True)


_BREAKS: dict[EventName, tuple[str, Callable[[World, Machine, Keeper], None]]] = {
    EventName.ENGINE_CRASHES: ("crashes", _crash),
    EventName.ENGINE_OUT_OF_MEMORY: ("runs out of memory", _run_out),
    EventName.ENGINE_HANGS: ("generates nothing any more", wedge),
}
