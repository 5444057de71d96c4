"""Members of groups are lost, at a phase of their group that is waited for: drawn from the seed, as all faults are."""

import asyncio
from dataclasses import replace
from random import Random

from covey_api.instance import Instance, InstanceGoal, MemberRole
from covey_simulator.machine import KILLED, Keeper, Machine
from covey_simulator.troubles import power_off, power_on

from kit.sim.seeded import SeededWorld

PHASES = ("fetch", "start", "connect", "load", "ready", "drain")
# Those that a group comes through on its way.
_FORMING = frozenset({"fetch", "start", "connect", "load"})
CONTEXTS = (512, 1024, 2048)
# Until a group is in the phase that was drawn.
PATIENCE_SECONDS = 40.0
LOOK_SECONDS = 0.05


def phase_of(world: SeededWorld, instance: Instance) -> str:
    """Of a group: what it waits for."""
    if instance.spec.goal is InstanceGoal.DRAIN:
        return "drain"
    keepers = find_members(world, instance)
    donors = [each for each in instance.spec.members if each.role is MemberRole.DONOR]
    if not keepers:
        return "fetch"
    if any(each.name not in keepers or keepers[each.name][1].engine.ready_told_at is None for each in donors):
        return "start"
    driver = keepers.get(instance.spec.members[0].name)
    if driver is None or not driver[1].engine.is_linked:
        return "connect"
    return "load" if driver[1].engine.ready_told_at is None else "ready"


def find_members(world: SeededWorld, instance: Instance) -> dict[str, tuple[Machine, Keeper]]:
    """Of its attempt, those that live, by name."""
    found: dict[str, tuple[Machine, Keeper]] = {}
    for each in instance.spec.members:
        machine = world.machines[each.node]
        keeper = machine.keepers.get(instance.spec.instance_id)
        if keeper is not None and keeper.engine.is_alive and keeper.attempt == instance.spec.attempt:
            found[each.name] = machine, keeper
    return found


async def lose_members(world: SeededWorld, random: Random) -> None:
    """Two to five times."""
    for _ in range(random.choice((2, 3, 4, 5))):
        phase = random.choice(PHASES)
        _bring_about(world, phase, random)
        instance = await _wait_for(world, phase)
        if instance is None or world.story.violations:
            continue
        await _lose_one(world, instance, phase, random)
        await asyncio.sleep(random.choice((0.1, 3.0, 12.0)))


def _bring_about(world: SeededWorld, phase: str, random: Random) -> None:
    """A group that serves is made to form again, or to drain: else most would be met while they serve."""
    ready = [each for each in find_groups(world) if phase_of(world, each) == "ready"]
    if not ready or world.people.said.broken:
        return
    instance = random.choice(ready)
    wish = world.people.wishes.get(instance.spec.placement)
    if phase == "drain" and wish is not None:
        others = [each for each in CONTEXTS if each != wish.context_tokens]
        world.people.wish(instance.spec.placement, replace(wish, context_tokens=random.choice(others)), world.now())
    elif phase in _FORMING:
        machine, keeper = random.choice(list(find_members(world, instance).values()))
        world.story.tell("groups", f"member {keeper.member.name} of {instance.metadata.name} is killed")
        machine.end_engine(keeper, KILLED, "Engine")


def find_groups(world: SeededWorld) -> list[Instance]:
    groups = [each for each in world.safety.instances if len(each.spec.members) > 1]
    return sorted(groups, key=lambda item: item.metadata.name)


async def _wait_for(world: SeededWorld, phase: str) -> Instance | None:
    deadline = world.now() + PATIENCE_SECONDS
    while world.now() < deadline:
        for each in find_groups(world):
            if phase_of(world, each) == phase:
                return each
        await asyncio.sleep(LOOK_SECONDS)
    return None


async def _lose_one(world: SeededWorld, instance: Instance, phase: str, random: Random) -> None:
    member = random.choice(instance.spec.members)
    kind = random.choice(("engine", "keeper", "agent", "power", "way", "way", "fetch"))
    world.story.tell("groups", f"{kind} of member {member.name} of {instance.metadata.name} is lost in {phase}")
    machine = world.machines[member.node]
    found = find_members(world, instance).get(member.name)
    match kind:
        case "engine" | "keeper" if found is not None:
            if kind == "engine":
                machine.end_engine(found[1], KILLED, "Engine")
            else:
                machine.kill_keeper(found[1])
        case "way":
            others = [each.node for each in instance.spec.members if each is not member]
            pair = frozenset((member.node, random.choice(others)))
            world.neighbours.cut.add(pair)
            await asyncio.sleep(random.choice((1.0, 4.0, 8.0, 30.0)))
            world.neighbours.cut.discard(pair)
        case "power":
            if machine.is_on:
                await power_off(world, machine.name)
                await asyncio.sleep(random.choice((2.0, 20.0, 90.0)))
                if not machine.is_on:
                    power_on(world, machine.name)
        case "agent":
            await world.kill_agent(machine.name)
            await asyncio.sleep(random.choice((0.2, 5.0, 15.0)))
            world.start_agent(machine.name)
        case _:
            machine.is_fetch_broken = True
            machine.cached.clear()
            await asyncio.sleep(random.uniform(2.0, 15.0))
            machine.is_fetch_broken = False
