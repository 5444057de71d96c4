"""When a simulated fleet has nothing left to do, and when it does all that is wished.

Settled is what the controller says of itself, held against what truly runs: no Placement that waits, no Instance that
drains, nothing that runs unasked, gateways that route to what is ready and nothing else. What runs on a machine
that nobody reaches is told, and holds nothing up.
"""

from collections.abc import Mapping

from covey_api.instance import Instance, InstanceGoal
from covey_api.kinds import Kind, ObjectKey
from covey_api.meta import Condition, ConditionStatus
from covey_api.placement import Placement

from covey_simulator.engine import Engine
from covey_simulator.machine import Keeper, Machine
from covey_simulator.world import World

Wished = Mapping[ObjectKey, Placement]


def is_reached(world: World, machine: Machine) -> bool:
    link = world.links.get(machine.name)
    return machine.is_on and link is not None and not link.is_cut


def find_serving(world: World, key: ObjectKey) -> list[tuple[Machine, Keeper]]:
    """Instances of a Placement that generate, on machines that are reached: each by the member that answers."""
    return [
        (machine, keeper)
        for machine in world.machines.values()
        if is_reached(world, machine)
        for keeper in machine.keepers.values()
        if keeper.answers and keeper.engine.generates and _placement_of(keeper.instance) == key
    ]


def _placement_of(instance: Instance) -> ObjectKey:
    return ObjectKey("Placement", instance.metadata.namespace, instance.spec.placement)


def why_not_settled(world: World, wished: Wished) -> str:
    """What is still to happen; empty when nothing is."""
    controller = world.controller
    if controller is None or controller.process.is_paused or not controller.loop.is_leading:
        return "no controller leads"
    objects = controller.history.objects
    return (
        _why_not_judged(objects, wished)
        or _why_not_placed(objects, wished)
        or _why_unasked(world, objects)
        or _why_not_routed(world)
    )


def _why_not_judged(objects: Mapping[ObjectKey, Kind], wished: Wished) -> str:
    for key, item in objects.items():
        if isinstance(item, Placement) and key not in wished:
            return f"{key} is not gone yet"
    for key, placement in wished.items():
        found = objects.get(key)
        if not isinstance(found, Placement) or found.spec != placement.spec:
            return f"{key} is not in force yet"
        if found.status.observed_generation != found.metadata.generation:
            return f"{key} has not been looked at"
        ready = find_condition(found, "Ready")
        is_final = ready is not None and (ready.status is ConditionStatus.TRUE or find_condition(found, "Stalled"))
        if ready is None or not is_final:
            return f"{key}: {ready.reason}: {ready.message}" if ready else f"{key} has not been judged"
    return ""


def _why_not_placed(objects: Mapping[ObjectKey, Kind], wished: Wished) -> str:
    for key, item in objects.items():
        if isinstance(item, Instance) and (item.spec.goal is InstanceGoal.DRAIN or _placement_of(item) not in wished):
            return f"{key} drains"
    return ""


def _why_unasked(world: World, objects: Mapping[ObjectKey, Kind]) -> str:
    stored = {item.spec.instance_id for item in objects.values() if isinstance(item, Instance)}
    for engine in _reached_engines(world):
        if engine.instance_id not in stored:
            return f"an engine of {engine.instance_id} runs, which nobody asks for"
    return ""


def _why_not_routed(world: World) -> str:
    ready = {
        keeper.engine.instance_id
        for machine in world.machines.values()
        if is_reached(world, machine)
        for keeper in machine.keepers.values()
        if keeper.answers and keeper.engine.generates
    }
    for name, gateway in world.gateways.items():
        targets = [target for each in gateway.traffic.table.targets.values() for target in each if target.confirmed]
        routed = {target.instance_id for target in targets}
        if routed != ready:
            return f"gateway {name} routes to {len(routed)} instances, and {len(ready)} are ready"
    return ""


def _reached_engines(world: World) -> list[Engine]:
    machines = [machine for machine in world.machines.values() if is_reached(world, machine)]
    return [engine for machine in machines for engine in machine.engines()]


def find_condition(item: Placement, name: str) -> Condition | None:
    """A condition that is there; `Stalled` and `Reconciling` are there only while they are true."""
    return next((each for each in item.status.conditions if each.type == name), None)
