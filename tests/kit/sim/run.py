"""One run: a fleet begins, faults happen, all heals, it converges, and then it is quiet."""

import asyncio
import logging
import random as module_random
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import cast

from covey_api.kinds import Kind, ObjectKey
from covey_controller.stores.files.store import store_paths
from covey_simulator.loop import SimLoop, running_loop
from covey_simulator.story import Story, Violation

from kit.sim.faults import cause_faults, heal
from kit.sim.goal import why_not_converged
from kit.sim.seeded import SeededWorld

# Backoffs of up to 5 min, fetch tries up to a minute apart, strays that drain after 15 min.
CONVERGE_SECONDS = 1800.0
# The last message that a troubled wire held back has come, and every backoff towards the controller is over.
SETTLED_SECONDS = 15.0
QUIET_SECONDS, LONG_QUIET_SECONDS = 300.0, 3600.0
LONG_QUIET_EVERY = 50


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    failure: str
    """Why it failed; empty: it did not."""
    trace: str
    story: tuple[str, ...]
    virtual_seconds: float
    converged_seconds: float
    outcomes: dict[str, int]


def run_seed(seed: int, *, is_told: bool = False) -> Result:
    """Run one seed to its end."""
    logging.disable(logging.CRITICAL)  # thousands of lines a seed; the story has what matters
    module_random.seed(seed)
    parent = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="covey-sim-", dir=parent if parent.is_dir() else None))
    try:
        with asyncio.Runner(loop_factory=SimLoop) as runner:
            return runner.run(_run(seed, folder, is_told))
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(folder, ignore_errors=True)


async def _run(seed: int, folder: Path, is_told: bool) -> Result:
    loop = running_loop()
    story = Story(loop.time, is_told=is_told)
    loop.set_exception_handler(lambda _, what: story.violate(f"{what['message']}: {what.get('exception')!r}"))
    world = SeededWorld(seed, folder, story)
    converged = 0.0
    failure = ""
    try:
        world.begin()
        loop.watch_turns(world.look)
        await cause_faults(world, Random(f"{seed} faults"))
        await heal(world)
        healed = world.now()
        await _converge(world)
        converged = world.now() - healed
        await _stay_quiet(world, LONG_QUIET_SECONDS if seed % LONG_QUIET_EVERY == 0 else QUIET_SECONDS)
    except Violation as violation:
        failure = str(violation)
    finally:
        loop.watch_turns(None)
        await world.end()
    return Result(
        seed, failure, story.trace, tuple(story.lines), world.now(), converged, dict(sorted(world.outcomes.items()))
    )


async def _converge(world: SeededWorld) -> None:
    """Until all has been as it should be for `SETTLED_SECONDS`."""
    deadline, since = world.now() + CONVERGE_SECONDS, world.now()
    while world.now() < since + SETTLED_SECONDS:
        if why := why_not_converged(world):
            since = world.now()
            if since > deadline:
                raise Violation(f"not converged {CONVERGE_SECONDS:.0f} s after all was healed: {why}")
        await asyncio.sleep(1.0)
        world.check()
    world.story.tell("run", "converged")


def _published_wishes(world: SeededWorld) -> object:
    """All that is published but serials and `suspectSince`: an engine that nobody asks is looked at now and then."""
    assert world.controller is not None
    published = world.controller.board.published
    undoubted = {
        node: each.changed(serial=0, members=tuple(member.changed(suspect_since="") for member in each.members))
        for node, each in published.assignments.items()
    }
    return published.endpoints, undoubted


async def _stay_quiet(world: SeededWorld, seconds: float) -> None:
    """Nothing is written, nothing but looks at idle engines is published, every request succeeds."""
    assert world.controller is not None
    path, _ = store_paths(world.source, world.folder / "controller")
    if not path.exists():
        raise Violation("the store's file is gone, and the leader goes on without it")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
        version = reader.execute("PRAGMA data_version").fetchone()
        wishes, before = _published_wishes(world), dict(world.controller.history.objects)
        deadline = world.now() + seconds
        while world.now() < deadline:
            await asyncio.sleep(seconds / 10)
            world.check()
            await _ask_all(world)
            if reader.execute("PRAGMA data_version").fetchone() != version:
                raise Violation(f"the store was written although nothing changed: {_differences(before, world)}")
            if _published_wishes(world) != wishes:
                raise Violation(f"{world.controller.board.order} was published although nothing changed")
            if why := why_not_converged(world):
                raise Violation(f"it did not stay as wished: {why}")


def _differences(before: Mapping[ObjectKey, Kind], world: SeededWorld) -> str:
    """What is stored otherwise than before, field by field."""
    found: list[str] = []
    after: Mapping[ObjectKey, Kind] = world.controller.history.objects if world.controller else {}
    for key in sorted(before.keys() | after.keys(), key=str):
        old, new = before.get(key), after.get(key)
        if old is None or new is None:
            found.append(f"{key} {'is gone' if new is None else 'is new'}")
        elif old != new:
            was, now = flatten(old.to_wire()), flatten(new.to_wire())
            changed = [each for each in sorted(was.keys() | now.keys()) if was.get(each) != now.get(each)]
            found += [f"{key} {each}: {was.get(each)} -> {now.get(each)}" for each in changed]
    return "; ".join(found)[:1000]


def flatten(value: object, path: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        items = [(str(key), each) for key, each in cast("dict[object, object]", value).items()]
    elif isinstance(value, list):
        items = [(str(index), each) for index, each in enumerate(cast("list[object]", value))]
    else:
        return {path: str(value)}
    return {name: text for key, each in items for name, text in flatten(each, f"{path}.{key}").items()}


async def _ask_all(world: SeededWorld) -> None:
    served = sorted({wish.model for wish in world.people.wishes.values()})
    for name in world.gateway_names:
        for model in served:
            if any(
                target.model == model
                for targets in world.gateways[name].traffic.table.targets.values()
                for target in targets
            ):
                outcome = await world.ask(name, model)
                if outcome != "200":
                    raise Violation(f"a request for '{model}' at {name} failed in a quiet fleet: {outcome}")
