"""What goes wrong, one thing at a time; when it begins and ends is decided by whoever calls.

Each tells the story, and marks the parts that it touches as disturbed for as long as what they say may be old.
"""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from covey_controller.stores.files.store import store_paths
from covey_fleet_client.backoff import LONGEST_DELAY_SECONDS

from covey_simulator.loop import Process
from covey_simulator.machine import Keeper, Machine
from covey_simulator.network import Link
from covey_simulator.world import LOST_SEEN_WHOLE_SECONDS, World

# A store that is taken away is noticed at the next look.
LOOK_SECONDS = 6.0


async def power_off(world: World, name: str) -> None:
    """Its engines and its agent are gone; what is on its disk stays."""
    world.calm.begin(name, "power")
    world.story.tell(name, "loses power")
    await world.kill_agent(name)
    world.machines[name].power_off()


def power_on(world: World, name: str) -> None:
    world.story.tell(name, "starts again")
    world.machines[name].power_on()
    world.calm.end(name, "power", world.now())
    world.start_agent(name)


def find_part(world: World, name: str) -> str:
    """What rules call the part at the member's end of a link."""
    return f"agent {name}" if name in world.machines else f"gateway {name}"


def cut_link(world: World, link: Link) -> str:
    """Nothing passes between this member and the controller. The cause, for `heal_link`."""
    link.is_cut = True
    cause = f"cut at {world.now()}"
    world.calm.begin(find_part(world, link.peer), cause)
    world.story.tell("wires", f"{link.peer} is cut off from the controller")
    return cause


def heal_link(world: World, link: Link, cause: str) -> None:
    world.network.heal(link)
    world.calm.end(find_part(world, link.peer), cause, world.now() + LONGEST_DELAY_SECONDS)
    world.story.tell("wires", f"{link.peer} reaches the controller again")


def cut_path(world: World, name: str) -> None:
    world.cut_paths.add(name)
    world.calm.begin(name, "path")
    world.story.tell("wires", f"no gateway reaches engines of {name}")


def heal_path(world: World, name: str) -> None:
    world.cut_paths.discard(name)
    world.calm.end(name, "path", world.now())


def pause(world: World, part: str, process: Process) -> None:
    """As SIGSTOP does, or a machine that swaps."""
    process.pause()
    world.calm.begin(part, "paused")
    world.story.tell(part, "is paused")


def resume(world: World, part: str, process: Process) -> None:
    if process.is_paused and not process.is_dying:
        world.story.tell(part, "goes on")
        process.resume()
    world.calm.end(part, "paused", world.now())


def fill_disk(world: World, name: str) -> None:
    """What its agent decides from now on, its next start may not know."""
    world.machines[name].is_disk_full = True
    world.safety.forget_order(f"agent {name}")
    world.machines[name].has_lost_memory = True
    world.story.tell(name, "the disk is full")


def wedge(world: World, machine: Machine, keeper: Keeper) -> None:
    """It lives, listens and takes connections, and whatever generates in it is dead. Nothing ends that but its end."""
    keeper.engine.is_wedged = True
    world.story.tell(machine.name, f"the engine of {keeper.engine.instance_id} generates nothing any more")


def delete_store(world: World) -> None:
    """Under the leader, if one is there: it notices at its next look."""
    path = _find_store(world)
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    if world.controller is not None:
        world.calm.end("controller", "store", world.now() + LOOK_SECONDS + LOST_SEEN_WHOLE_SECONDS)
    world.story.tell("people", "delete the store's file")


def back_up_store(world: World) -> Path | None:
    """A copy of the store as it is; None while there is none, or it can't be read: its files were just deleted."""
    path = _find_store(world)
    if not path.exists():
        return None
    copy = world.folder / f"backup-{world.leaders}.sqlite"
    with closing(sqlite3.connect(path)) as store, closing(sqlite3.connect(copy)) as backup:
        try:
            store.backup(backup)
        except sqlite3.OperationalError:
            return None
    return copy


def restore_store(world: World, copy: Path) -> None:
    """The controller must be away."""
    path = _find_store(world)
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    shutil.copyfile(copy, path)
    world.story.tell("people", "put an older copy of the store back")


def _find_store(world: World) -> Path:
    return store_paths(world.source, world.folder / "controller")[0]
