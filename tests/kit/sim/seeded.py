"""The fleet of a seed: sizes of machines, gateways and wishes are drawn; every Model is a small one that fits some."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

from covey_api.engines import HOST_POOL, Compute
from covey_api.instance import Instance, MemberRole
from covey_api.kinds import ObjectKey
from covey_api.model import Geometry, ResolvedArtifact
from covey_api.node import MemoryPool, NodeFacts
from covey_simulator.ground import Ground
from covey_simulator.story import Story
from covey_simulator.world import World

from kit import builders
from kit.builders import GIB
from kit.sim.people import DWELL_SECONDS, MODELS, People

MIB = 2**20
RESERVE_BYTES = GIB
# What the planner leaves of so small a device.
DEVICE_RESERVE_BYTES = 512 * MIB
LANE = builders.lane(digest="0" * 64)
DEVICE_POOL = "Cuda0"
DEVICE_LANE = builders.lane(digest="1" * 64, compute=Compute.CUDA, pool=DEVICE_POOL)
# Of machines, those with an accelerator that has memory of its own.
DEVICE_SHARE = 0.3
# Of seeds, those in which Placements scale and clients wait for models.
SCALED_EVERY, SCALED_REST = 8, 4
# Those in which Placements have ranks and may displace, and those of many kinds: a larger variant that is preferred,
# machines with several small devices, engines that take other memory than is computed.
KINDS_EVERY, RANKED_REST, MIXED_REST = 16, 9, 10
LARGE_BYTES = 700 * MIB
# Seeds from here on are of groups: some Placements are wished over several nodes. A range of their own: all other seeds
# go as they went without them.
FIRST_OF_GROUPS = 1_000_000
# More than any machine of theirs has for it, and less than three have.
WIDE_BYTES = 1500 * MIB
ROLES = (MemberRole.DRIVER.value, MemberRole.DONOR.value)
SECOND_LANE = builders.lane(digest="1" * 64, compute=Compute.CUDA, pool="Cuda1")


class DrawnPace:
    """Short, whatever the sizes are: what is looked for are orders of events."""

    def load_seconds(self, instance: Instance, random: Random) -> float:
        return random.uniform(0.3, 4.0)

    def fetch_seconds(self, size_bytes: int, random: Random) -> float:
        return random.uniform(0.1, 2.0)


def read_header(source: str) -> tuple[ResolvedArtifact, Geometry]:
    name = source.rpartition("/")[2]
    geometry = builders.geometry(weights_bytes=LARGE_BYTES) if name.endswith("-large.gguf") else builders.geometry()
    if name.endswith("-wide.gguf"):
        geometry = builders.geometry(weights_bytes=WIDE_BYTES)
    return builders.artifact(source=source, name=name), geometry


class SeededWorld(World):
    def __init__(self, seed: int, folder: Path, story: Story) -> None:
        super().__init__(seed, folder, story)
        self.seed = seed
        self.revisions: dict[ObjectKey, tuple[tuple[object, ...], str]] = {}
        """By Placement, with what each was made from."""
        self.people = People(self.source, Random(f"{seed} people"), story, self.wishes)
        self.has_groups = seed >= FIRST_OF_GROUPS
        if self.has_groups:
            self.people.groups = Random(f"{seed} groups")
        if seed % SCALED_EVERY == SCALED_REST and not self.has_groups:
            self.people.scaling = Random(f"{seed} scaling")
            self.wishes.dwell_seconds = DWELL_SECONDS
            self.do_clients_wait = True
        if seed % KINDS_EVERY == RANKED_REST and not self.has_groups:
            self.people.ranks = Random(f"{seed} ranks")
        is_mixed = seed % KINDS_EVERY == MIXED_REST and not self.has_groups
        self.mixed = Random(f"{seed} kinds") if is_mixed else None
        self.people.has_large = self.mixed is not None
        self.gateway_names += [f"g{index}" for index in range(self.random.choice((1, 2)))]
        count = self.random.choice((2, 3, 3, 4, 5))
        if (few := self.people.scaling or self.people.ranks) is not None:
            count = few.choice((1, 2))
        if self.has_groups:
            count = max(count, 3)
        for index in range(count):
            self.add_machine("abcde"[index], self._draw_ground())

    def _draw_ground(self) -> Ground:
        pools = {HOST_POOL: RESERVE_BYTES + self.random.choice((500, 700, 900, 1400)) * MIB}
        if self.people.scaling is not None:  # so little that they take turns
            pools = {HOST_POOL: RESERVE_BYTES + self.people.scaling.choice((350, 500)) * MIB}
        if self.random.random() < DEVICE_SHARE:
            pools[DEVICE_POOL] = DEVICE_RESERVE_BYTES + self.random.choice((500, 900, 1400)) * MIB
        lanes = (DEVICE_LANE, LANE) if DEVICE_POOL in pools else (LANE,)
        used_percent = 0
        if self.mixed is not None:
            used_percent = self.mixed.choice((0, 90, 120))
            if self.mixed.random() < 0.6:
                pools[HOST_POOL] = RESERVE_BYTES + self.mixed.choice((700, 1000)) * MIB
                for each in (DEVICE_LANE, SECOND_LANE):
                    pools[each.pool] = DEVICE_RESERVE_BYTES + self.mixed.choice((600, 800, 1200)) * MIB
                lanes = (DEVICE_LANE, SECOND_LANE, LANE)
        if self.has_groups:
            lanes = tuple(lane.model_copy(update={"roles": ROLES}) for lane in lanes)
        return Ground(
            facts=NodeFacts(
                os="linux",
                architecture="x86_64",
                cpu_cores=4,
                pools=tuple(MemoryPool(name=name, total_bytes=size) for name, size in pools.items()),
            ),
            lanes=lanes,
            reserve_bytes=RESERVE_BYTES,
            pace=DrawnPace(),
            headers=read_header,
            used_percent=used_percent,
        )

    def begin(self) -> None:
        count = self.random.choice((1, 2, 2, 3))
        self.people.begin(3 if self.people.scaling or self.people.ranks else count)
        super().begin()

    def choose_model(self) -> str:
        return self.random.choice(MODELS)


Fault = Callable[[SeededWorld, Random], Coroutine[Any, Any, None]]
