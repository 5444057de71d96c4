"""What the simulator's rules allow and forbid, rule by rule: a rule that excuses too much finds nothing."""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import cast

import pytest
from covey_api.engines import HOST_POOL
from covey_api.instance import Costs, Instance, Member
from covey_api.reasons import EventReason
from covey_controller.reconcile.outcomes import Note
from covey_gateway.routing.table import Target
from covey_simulator.engine import Engine
from covey_simulator.machine import Keeper, Machine
from covey_simulator.safety import BELIEF_SECONDS, Safety
from covey_simulator.story import Story
from covey_simulator.wishes import Wishes
from kit import builders

GIB = 2**30
ID = "00000000000000aa"


@dataclass
class Claimed:
    """A machine as far as the rules look at it. `claims`: (when, bytes) that its facts said."""

    name: str = "a"
    claims: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 4 * GIB)])
    ports: dict[int, Engine] = field(default_factory=dict[int, Engine])
    keepers: dict[str, Keeper] = field(default_factory=dict[str, Keeper])

    @property
    def pools(self) -> dict[str, int]:
        return {HOST_POOL: 4 * GIB}

    def engines(self) -> list[Engine]:
        return list(self.ports.values())

    def owns_port(self, port: int) -> bool:
        return port < 100

    def reserve_bytes(self, pool: str) -> int:
        return GIB

    most_claimed = Machine.most_claimed

    @property
    def claimed(self) -> dict[str, int]:
        return {HOST_POOL: self.claims[-1][1]}

    @property
    def _claims(self) -> dict[str, list[tuple[float, int]]]:
        return {HOST_POOL: self.claims}


@dataclass
class Scene:
    safety: Safety
    machine: Claimed
    story: Story
    loop: asyncio.AbstractEventLoop

    def engine(self, *, ready_at: float | None, instance_id: str = ID, port: int = 1) -> Engine:
        made = Engine(instance_id, 1, 1, port, "", 0.0, {HOST_POOL: GIB}, self.loop.create_future())
        made.ready_told_at = ready_at
        self.machine.ports[port] = made
        return made

    def stop(self, engine: Engine, now: float, attempt: int = 1) -> list[str]:
        instance = builders.instance()
        keeper = Keeper(1, 1, attempt, "", instance, instance.spec.members[0], engine)
        self.safety.on_stop(cast("Machine", self.machine), keeper, now)
        return self.story.violations

    def note(self, reason: EventReason, now: float) -> None:
        self.safety.on_note(Note(builders.instance().key, reason.value, "", warning=False), now, lambda _: 0.0)


@pytest.fixture
def scene() -> Generator[Scene]:
    loop, machine, story = asyncio.new_event_loop(), Claimed(), Story(lambda: 0.0)
    safety = Safety(story, cast("dict[str, Machine]", {"a": machine}), Wishes())
    yield Scene(safety, machine, story, loop)
    loop.close()


@pytest.mark.parametrize("reason", [EventReason.FAILED, EventReason.ATTEMPT_STARTED])
def test_failure_before_it_was_ready_excuses_no_silent_stop(scene: Scene, reason: EventReason) -> None:
    scene.note(EventReason.CREATED, 0.0)
    scene.note(reason, 10.0)
    engine = scene.engine(ready_at=20.0)
    assert "is stopped without a note" in "\n".join(scene.stop(engine, 30.0))


@pytest.mark.parametrize("reason", [EventReason.FAILED, EventReason.DRAIN_STARTED])
def test_stop_that_was_told_is_one(scene: Scene, reason: EventReason) -> None:
    engine = scene.engine(ready_at=20.0)
    scene.note(EventReason.FAILED, 10.0)
    scene.note(reason, 25.0)
    assert not any("without a note" in each for each in scene.stop(engine, 30.0))


def instance(name: str, count: int) -> Instance:
    costs = (Costs(pool=HOST_POOL, weights_bytes=count, kv_cache_bytes=0, compute_bytes=0, floor_bytes=0),)
    made = builders.instance(f"{name}-0", instance_id=f"{name:0>16}")
    member = Member.model_validate(made.spec.members[0].to_wire() | {"costs": [each.to_wire() for each in costs]})
    return made.model_copy(update={"spec": made.spec.model_copy(update={"members": (member,)})})


def test_facts_that_lied_once_are_no_licence_for_later(scene: Scene) -> None:
    scene.machine.claims = [(0.0, 4 * GIB), (10.0, 16 * GIB), (20.0, 4 * GIB)]
    first = instance("1", 10 * GIB)
    scene.safety.check((first,), 15.0)
    scene.safety.check((first,), 199.0)
    assert scene.story.violations == [], "it was decided by what the facts said then"
    scene.safety.check((), 200.0)
    scene.safety.check((instance("2", 10 * GIB),), 20.0 + BELIEF_SECONDS + 1.0)
    assert "over-committed: instances that are stored hold" in "\n".join(scene.story.violations)


def test_routed_endpoint_that_never_generated_is_found_though_nobody_asks(scene: Scene) -> None:
    target = Target(f"{ID}/1", ID, "default", "m", "127.0.0.1", 1, "", 4, 1, 4096, confirmed=True)
    scene.engine(ready_at=5.0)
    scene.safety.check_routes("g", (target,))
    assert scene.story.violations == []
    scene.engine(ready_at=None)
    scene.safety.check_routes("g", (target,))
    assert "never generated a token" in "\n".join(scene.story.violations)
