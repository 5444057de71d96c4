"""Runs a scenario: the fleet starts and settles, events happen, clients ask, and it ends when nothing is left to do."""

import asyncio
import logging
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from covey_agent.ports import AgentError
from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey
from covey_api.model import Geometry, Model, ResolvedArtifact
from covey_api.node import Node
from covey_api.reasons import FailureCause
from covey_api.units import parse_quantity

from covey_simulator.accounts import Accounts, count_wished
from covey_simulator.clients import ask_steadily
from covey_simulator.ground import Ground, Headers
from covey_simulator.loop import SimLoop, running_loop
from covey_simulator.outcome import Outcome, conclude
from covey_simulator.play import Player
from covey_simulator.scenario import Pacing, Scenario
from covey_simulator.settled import find_serving, why_not_settled
from covey_simulator.source import ScenarioSource
from covey_simulator.story import Story, Violation
from covey_simulator.world import World

# As long as nothing has changed for this, nothing will: longer than every wait of an orderly rollout.
SETTLED_SECONDS = 15.0
# Downloads of large models take long; a fleet that has not settled by then is taken as it is.
START_SECONDS = 14_400.0
LOOK_SECONDS = 0.1
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Staged:
    """A scenario with all that it names."""

    scenario: Scenario
    nodes: Sequence[Node]
    """With facts and lanes in their status."""
    objects: Sequence[Kind]
    """Everything else; Models know their artifacts and geometry, or why they can't be read."""
    applied: Mapping[int, Sequence[Kind]]
    """By the index of an `Apply` event: what it applies."""
    namespace: str
    """Of Placements whose namespace isn't said."""


@dataclass(frozen=True, slots=True)
class AssumedPace:
    pacing: Pacing

    def load_seconds(self, instance: Instance, random: Random) -> float:
        size = max(1, instance.spec.artifact.size_bytes)
        return 0.5 + size / (self.pacing.load_mib_per_second * MIB)

    def fetch_seconds(self, size_bytes: int, random: Random) -> float:
        return size_bytes / (self.pacing.download_mib_per_second * MIB)


def run_scenario(staged: Staged) -> Outcome:
    """From its start to its end; the same scenario comes to the same, to the byte."""
    logging.disable(logging.CRITICAL)  # the timeline has what matters
    random.seed(staged.scenario.seed)  # backoffs of the parts draw from it
    folder = Path(tempfile.mkdtemp(prefix="covey-simulate-"))
    try:
        with asyncio.Runner(loop_factory=SimLoop) as runner:
            return runner.run(_run(staged, folder))
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(folder, ignore_errors=True)


async def _run(staged: Staged, folder: Path) -> Outcome:
    loop = running_loop()
    story = Story(loop.time)
    loop.set_exception_handler(lambda _, what: story.violate(f"{what['message']}: {what.get('exception')!r}"))
    world, source = _build(staged, folder, story)
    accounts = Accounts(loop.time)
    world.on_note = accounts.on_note
    player = Player(world, source, accounts, dict(staged.applied), staged.namespace)
    try:
        world.begin()
        loop.watch_turns(world.look)
        await _start(world, source, accounts)
        await _go_through(staged.scenario, player)
    except* Violation as broken:
        accounts.tell("VIOLATION", str(broken.exceptions[0]))
    finally:
        loop.watch_turns(None)
        outcome = conclude(staged.scenario, world, source, accounts)
        await world.end()
    return outcome


def _build(staged: Staged, folder: Path, story: Story) -> tuple[World, ScenarioSource]:
    scenario = staged.scenario
    world = World(scenario.seed, folder, story)
    source = ScenarioSource(world.source, world.wishes)
    source.apply((*(node.changed(status=type(node.status)()) for node in staged.nodes), *staged.objects), 0.0)
    headers = _know_headers([item for each in (staged.objects, *staged.applied.values()) for item in each])
    for node in sorted(staged.nodes, key=lambda each: each.metadata.name):
        facts = node.status.facts
        if facts is not None:
            reserve = parse_quantity(node.spec.reserve.memory)
            ground = Ground(facts, node.status.lanes, reserve, AssumedPace(scenario.pace), headers)
            world.add_machine(node.metadata.name, ground)
    world.gateway_names += [f"g{number}" for number in range(1, scenario.gateways + 1)]
    return world, source


def _know_headers(objects: Sequence[Kind]) -> Headers:
    known: dict[str, tuple[ResolvedArtifact, Geometry]] = {}
    errors: dict[str, str] = {}
    for item in objects:
        for variant in item.status.variants if isinstance(item, Model) else ():
            if variant.artifact is not None and variant.geometry is not None:
                known[variant.source] = variant.artifact, variant.geometry
            else:
                errors[variant.source] = variant.error

    def read(source: str) -> tuple[ResolvedArtifact, Geometry]:
        if source not in known:
            raise AgentError(FailureCause.ARTIFACT_UNAVAILABLE, errors.get(source) or f"'{source}' is not known here")
        return known[source]

    return read


async def _start(world: World, source: ScenarioSource, accounts: Accounts) -> None:
    await _wait_settled(world, source, world.now() + START_SECONDS)
    accounts.begin(why_not_settled(world, source.placements))


async def _wait_settled(world: World, source: ScenarioSource, deadline: float) -> None:
    """Until it has been settled for a while, or the deadline; Violation if a rule is broken meanwhile."""
    since = world.now()
    while world.now() < min(deadline, since + SETTLED_SECONDS):
        if why_not_settled(world, source.placements):
            since = world.now()
        await asyncio.sleep(1.0)
        world.check()


async def _go_through(scenario: Scenario, player: Player) -> None:
    world, source, accounts = player.world, player.source, player.accounts
    deadline = accounts.began_at + scenario.end_seconds
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_watch(world, source, accounts))
        clients = [group.create_task(ask_steadily(world, each, accounts)) for each in scenario.requests]
        events = [group.create_task(player.play(index, event)) for index, event in enumerate(scenario.events)]
        try:
            while world.now() < min(deadline, accounts.began_at + scenario.last_event_seconds):
                await asyncio.sleep(1.0)
                world.check()
            await _wait_settled(world, source, deadline)
            accounts.end()
            if clients:
                await asyncio.wait(clients)
        finally:
            for task in (watching, *clients, *events):
                task.cancel()


async def _watch(world: World, source: ScenarioSource, accounts: Accounts) -> None:
    """How many replicas serve, ten times a second."""
    while accounts.ended_at is None:
        placements = dict(source.placements)
        serving: dict[ObjectKey, int] = {key: len(find_serving(world, key)) for key in placements}
        accounts.on_counts(serving, count_wished(placements))
        await asyncio.sleep(LOOK_SECONDS)
