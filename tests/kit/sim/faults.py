"""What goes wrong, and when: drawn from the seed. Every fault ends by itself, or is ended by `heal`."""

import asyncio
from random import Random

from covey_api.engines import HOST_POOL
from covey_fleet_client.backoff import LONGEST_DELAY_SECONDS
from covey_simulator.loop import Process
from covey_simulator.machine import KILLED, Machine
from covey_simulator.network import SPIKE_SECONDS, Link
from covey_simulator.troubles import (
    back_up_store,
    cut_link,
    cut_path,
    delete_store,
    fill_disk,
    find_part,
    heal_link,
    heal_path,
    pause,
    power_off,
    power_on,
    restore_store,
    resume,
    wedge,
)

from kit.sim.members import lose_members
from kit.sim.seeded import Fault, SeededWorld

SOONEST, LONGEST = 15.0, 60.0
# In every tenth seed engines hang as well. They are drawn apart: all other seeds go as they went without them.
HANG_EVERY = 10


async def kill_controller(world: SeededWorld, random: Random) -> None:
    await world.kill_controller()
    if random.random() < 0.25:
        delete_store(world)
    await asyncio.sleep(random.choice((0.1, 1.0, 5.0, 25.0)))
    if world.controller is None:
        world.start_controller()


async def lose_store(world: SeededWorld, random: Random) -> None:
    delete_store(world)


async def put_back_store(world: SeededWorld, random: Random) -> None:
    """Restored from a backup: it holds the terms of then, and everybody has seen later ones.

    Only while nothing else has changed since: a backup that holds Instances whose memory was given away meanwhile
    promises it twice, whatever the controller does.
    """
    backup, then = back_up_store(world), observe_wishes(world)
    for _ in range(random.choice((2, 3))):
        await world.kill_controller()
        await asyncio.sleep(0.1)
        if world.controller is None:
            world.start_controller()
        await asyncio.sleep(random.choice((1.0, 4.0)))
    await world.kill_controller()
    if world.controller is None:
        if backup is not None and observe_wishes(world) == then:
            restore_store(world, backup)
        world.start_controller()


def observe_wishes(world: SeededWorld) -> list[tuple[str, str, int]]:
    specs = [instance.spec for instance in world.safety.instances]
    return sorted((spec.instance_id, spec.goal.value, spec.attempt) for spec in specs)


async def pause_controller(world: SeededWorld, random: Random) -> None:
    if world.controller is not None:
        await _pause(world, "controller", world.controller.process, random)


async def pause_agent(world: SeededWorld, random: Random) -> None:
    if world.agents:
        name = random.choice(sorted(world.agents))
        await _pause(world, f"agent {name}", world.agents[name].process, random)


async def pause_gateway(world: SeededWorld, random: Random) -> None:
    if world.gateways:
        name = random.choice(sorted(world.gateways))
        await _pause(world, f"gateway {name}", world.gateways[name].process, random)


async def _pause(world: SeededWorld, part: str, process: Process, random: Random) -> None:
    if process.is_paused or process.is_dying:
        return
    pause(world, part, process)
    await asyncio.sleep(random.choice((0.5, 3.0, 12.0, 40.0, 90.0)))
    resume(world, part, process)


async def replace_controller(world: SeededWorld, random: Random) -> None:
    """A leader that was paused wakes when another one leads."""
    elder = world.replace_controller()
    if elder is None:
        return
    await asyncio.sleep(random.choice((0.5, 3.0, 20.0)))
    world.story.tell("controller", "that led before goes on")
    elder.process.resume()
    await asyncio.sleep(random.choice((0.5, 3.0, 8.0)))
    await world.end_elder(elder)


async def kill_agent(world: SeededWorld, random: Random) -> None:
    name = random.choice(sorted(world.machines))
    await world.kill_agent(name)
    if random.random() < 0.15:
        (world.machines[name].folder / "assignments.json").unlink(missing_ok=True)
        world.safety.forget_order(f"agent {name}")
        world.story.tell("people", f"delete what agent {name} kept")
    await asyncio.sleep(random.choice((0.2, 2.0, 15.0, 40.0)))
    world.start_agent(name)


async def kill_gateway(world: SeededWorld, random: Random) -> None:
    name = random.choice(world.gateway_names)
    await world.kill_gateway(name)
    if random.random() < 0.2:
        (world.folder / name / "table.json").unlink(missing_ok=True)
    await asyncio.sleep(random.choice((0.1, 1.0, 15.0)))
    world.start_gateway(name)


async def kill_engine(world: SeededWorld, random: Random) -> None:
    found = [(machine, keeper) for machine in world.machines.values() for keeper in machine.keepers.values()]
    living = [(machine, keeper) for machine, keeper in found if keeper.engine.is_alive]
    if not living:
        return
    machine, keeper = random.choice(living)
    if random.random() < 0.3:
        world.story.tell(machine.name, f"the keeper of {keeper.engine.instance_id} is killed")
        machine.kill_keeper(keeper)
    else:
        world.story.tell(machine.name, f"the engine of {keeper.engine.instance_id} is killed")
        machine.end_engine(keeper, KILLED, "Engine")


async def lose_link(world: SeededWorld, random: Random) -> None:
    _, _, link = _choose_link(world, random)
    cause = cut_link(world, link)
    await asyncio.sleep(random.choice((1.0, 8.0, 25.0, 80.0)))
    heal_link(world, link, cause)


async def break_streams(world: SeededWorld, random: Random) -> None:
    name, part, link = _choose_link(world, random)
    world.story.tell("wires", f"streams of {name} break")
    world.calm.end(part, "broken", world.now() + LONGEST_DELAY_SECONDS)
    world.network.break_streams(link)


async def trouble_link(world: SeededWorld, random: Random) -> None:
    """Messages are late, overtake each other, arrive twice, or are lost."""
    name, part, link = _choose_link(world, random)
    link.spike_share, link.loss_share = random.choice(((0.2, 0.0), (0.5, 0.0), (0.1, 0.2), (0.0, 0.4)))
    link.repeat_share = random.choice((0.0, 0.3))
    world.calm.begin(part, cause := f"trouble at {world.now()}")
    words = f"{link.spike_share:.0%} late, {link.loss_share:.0%} lost, {link.repeat_share:.0%} twice"
    world.story.tell("wires", f"messages of {name} arrive: {words}")
    await asyncio.sleep(random.uniform(5.0, 40.0))
    link.spike_share = link.loss_share = link.repeat_share = 0.0
    world.calm.end(part, cause, world.now() + SPIKE_SECONDS[1] + LONGEST_DELAY_SECONDS)


def _choose_link(world: SeededWorld, random: Random) -> tuple[str, str, Link]:
    name = random.choice(sorted(world.links))
    return name, find_part(world, name), world.links[name]


async def lose_path(world: SeededWorld, random: Random) -> None:
    name = random.choice(sorted(world.machines))
    cut_path(world, name)
    await asyncio.sleep(random.choice((3.0, 20.0)))
    heal_path(world, name)


async def flap_link(world: SeededWorld, random: Random) -> None:
    """It comes and goes, often."""
    name, part, link = _choose_link(world, random)
    world.calm.begin(part, cause := f"flaps at {world.now()}")
    world.story.tell("wires", f"{name} is reached now and then only")
    for _ in range(random.randrange(3, 9)):
        link.is_cut = True
        world.network.break_streams(link)
        await asyncio.sleep(random.choice((0.2, 1.0, 3.0)))
        world.network.heal(link)
        await asyncio.sleep(random.choice((0.1, 0.5, 2.0, 6.0)))
    world.calm.end(part, cause, world.now() + LONGEST_DELAY_SECONDS)
    world.story.tell("wires", f"{name} is reached again")


async def flap_node(world: SeededWorld, random: Random) -> None:
    name = random.choice(sorted(world.machines))
    for _ in range(random.randrange(2, 4)):
        await _lose_node(world, name, random.choice((1.0, 4.0, 12.0)))
        await asyncio.sleep(random.choice((0.5, 3.0, 15.0)))


async def lose_node(world: SeededWorld, random: Random) -> None:
    await _lose_node(world, random.choice(sorted(world.machines)), random.choice((3.0, 20.0, 90.0, 140.0)))


async def _lose_node(world: SeededWorld, name: str, seconds: float) -> None:
    machine = world.machines[name]
    if not machine.is_on:
        return
    await power_off(world, name)
    await asyncio.sleep(seconds)
    if not machine.is_on:
        power_on(world, name)


async def take_memory(world: SeededWorld, random: Random) -> None:
    """Somebody else's process: the agent refuses to start what doesn't fit beside it."""
    name = random.choice(sorted(world.machines))
    machine = world.machines[name]
    machine.foreign_bytes = random.randrange(machine.pools[HOST_POOL])
    world.story.tell(name, f"another program takes {machine.foreign_bytes} bytes")
    await asyncio.sleep(random.uniform(5.0, 40.0))
    machine.foreign_bytes = 0


async def lie(world: SeededWorld, random: Random) -> None:
    """A node's facts say less than there is, or far more, after its agent's next look. Readings are true."""
    machine = world.machines[random.choice(sorted(world.machines))]
    pool = random.choice(sorted(machine.pools))
    machine.claim(pool, int(machine.pools[pool] * random.choice((0.3, 0.6, 1.5, 4.0))))
    world.story.tell(machine.name, f"its facts say {machine.claimed[pool]} bytes of {pool}, not {machine.pools[pool]}")
    await world.kill_agent(machine.name)
    world.start_agent(machine.name)
    await asyncio.sleep(random.choice((10.0, 60.0, 120.0)))
    machine.claim(pool, machine.pools[pool])


async def lose_artifacts(world: SeededWorld, random: Random) -> None:
    """Somebody clears the caches."""
    for machine in world.machines.values():
        if random.random() < 0.7:
            machine.cached.clear()
            world.story.tell(machine.name, "the artifact cache is cleared")


async def cordon(world: SeededWorld, random: Random) -> None:
    name = random.choice(sorted(world.machines))
    world.people.cordon(name, is_on=True, now=world.now())
    await asyncio.sleep(random.choice((5.0, 40.0)))
    world.people.cordon(name, is_on=False, now=world.now())


async def break_fetches(world: SeededWorld, random: Random) -> None:
    machine = world.machines[random.choice(sorted(world.machines))]
    machine.is_fetch_broken = True
    machine.cached.clear()
    world.story.tell(machine.name, "artifacts can't be fetched, and the cache is empty")
    await asyncio.sleep(random.uniform(5.0, 40.0))
    machine.is_fetch_broken = False


async def fill_node_disk(world: SeededWorld, random: Random) -> None:
    name = random.choice(sorted(world.machines))
    fill_disk(world, name)
    await asyncio.sleep(random.uniform(2.0, 30.0))
    world.machines[name].is_disk_full = False


async def fill_store(world: SeededWorld, random: Random) -> None:
    """The controller's: it decides, and can store nothing. What is dead must leave gateways' tables all the same."""
    world.disk.is_full = True
    world.story.tell("controller", "its disk is full")
    await asyncio.sleep(random.choice((3.0, 12.0, 40.0)))
    world.disk.is_full = False
    world.story.tell("controller", "its disk has space again")


async def hang_engines(world: SeededWorld, random: Random) -> None:
    """One or two that had generated. Whoever asks for them waits; nobody else notices."""
    for _ in range(random.choice((1, 1, 2))):
        await asyncio.sleep(random.uniform(5.0, 40.0))
        found = [(machine, keeper) for machine in world.machines.values() for keeper in machine.keepers.values()]
        ready = [(machine, keeper) for machine, keeper in found if keeper.engine.generates]
        if ready:
            wedge(world, *random.choice(ready))


async def crash_engines(world: SeededWorld, random: Random) -> None:
    machine = world.machines[random.choice(sorted(world.machines))]
    kind = random.random()
    if kind < 0.3:
        machine.hangs_to_come = 1
    elif kind < 0.5:
        machine.leaks_to_come = random.choice((1, 2, 4))
    else:
        machine.crashes_to_come = random.choice((1, 2, 5))
    world.story.tell(machine.name, _say_crashes(machine))


def _say_crashes(machine: Machine) -> str:
    counts = f"{machine.crashes_to_come} crash, {machine.hangs_to_come} hang, {machine.leaks_to_come} run out of memory"
    return f"of the next engines {counts}"


async def edit(world: SeededWorld, random: Random) -> None:
    world.people.edit(world.now())


async def edit_again(world: SeededWorld, random: Random) -> None:
    for _ in range(random.randrange(2, 5)):
        world.people.edit(world.now())
        await asyncio.sleep(random.choice((0.1, 1.0, 4.0)))


FAULTS: tuple[tuple[Fault, int], ...] = (
    (kill_controller, 8),
    (lose_store, 2),
    (put_back_store, 3),
    (pause_controller, 4),
    (replace_controller, 3),
    (pause_agent, 3),
    (pause_gateway, 3),
    (kill_agent, 7),
    (kill_gateway, 4),
    (kill_engine, 6),
    (lose_link, 5),
    (break_streams, 3),
    (flap_link, 3),
    (trouble_link, 4),
    (lose_path, 2),
    (lose_node, 4),
    (flap_node, 2),
    (take_memory, 3),
    (lie, 3),
    (break_fetches, 2),
    (lose_artifacts, 1),
    (cordon, 3),
    (fill_node_disk, 1),
    (fill_store, 2),
    (crash_engines, 3),
    (edit, 14),
    (edit_again, 4),
)


async def cause_faults(world: SeededWorld, random: Random) -> None:
    """A time of trouble, with clients that ask all the while."""
    seconds = random.uniform(SOONEST, LONGEST)
    count = random.randrange(3, 13)
    faults, weights = zip(*FAULTS, strict=True)
    await asyncio.sleep(random.uniform(0.0, 12.0))
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(_ask_for_ever(world))
        troubles = [
            group.create_task(_cause(world, fault, random.uniform(0.0, seconds), Random(f"{random.random()} {index}")))
            for index, fault in enumerate(random.choices(faults, weights, k=count))
        ]
        if world.seed % HANG_EVERY == 0:
            troubles.append(group.create_task(hang_engines(world, Random(f"{world.seed} hangs"))))
        if world.has_groups:
            troubles.append(group.create_task(lose_members(world, Random(f"{world.seed} members"))))
        await asyncio.wait(troubles)
        asking.cancel()


async def _cause(world: SeededWorld, fault: Fault, after_seconds: float, random: Random) -> None:
    await asyncio.sleep(after_seconds)
    if not world.story.violations:
        await fault(world, random)


async def _ask_for_ever(world: SeededWorld) -> None:
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(world.random.uniform(0.1, 2.0))
            group.create_task(_ask(world))


async def _ask(world: SeededWorld) -> None:
    await world.ask(world.random.choice(world.gateway_names), world.choose_model())


async def heal(world: SeededWorld) -> None:
    """Everything that is broken works again."""
    world.story.tell("run", "all heals")
    world.disk.is_full = False
    world.neighbours.cut.clear()
    for elder in list(world.elders):
        await world.end_elder(elder)
    for name, is_on in sorted(world.wishes.cordons.items()):
        if is_on:
            world.people.cordon(name, is_on=False, now=world.now())
    if world.wishes.broken:
        world.people.repair(world.now())
    for machine in world.machines.values():
        machine.foreign_bytes = machine.crashes_to_come = machine.hangs_to_come = machine.leaks_to_come = 0
        machine.is_disk_full = machine.is_fetch_broken = False
        for pool, size in machine.pools.items():
            machine.claim(pool, size)
        if not machine.is_on:
            power_on(world, machine.name)
        world.start_agent(machine.name)
    for name in world.gateway_names:
        world.start_gateway(name)
    if world.controller is None:
        world.start_controller()
