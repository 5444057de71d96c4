"""One machine: its process table, its keepers with their engines, its memory and its disk. It outlives its agent.

A keeper is found as the real one is: by what it wrote down (process id and start time) and the process table. Process
ids are used again after a reboot, so an id alone proves nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from covey_agent.ports import AgentError, EngineExit, EngineProcess, Group, Launch
from covey_api.engines import HOST_POOL
from covey_api.instance import Instance, Member
from covey_api.messages import MemberAssignment
from covey_api.reasons import FailureCause
from covey_planner.fit.reserves import reserve_bytes

from covey_simulator.engine import Engine
from covey_simulator.ground import Ground
from covey_simulator.loop import wait_until
from covey_simulator.story import Story

# An engine whose keeper no agent claims ends after this.
ORPHAN_GRACE_SECONDS = 300.0
# Of a member of several, which holds memory of other nodes too.
MEMBER_GRACE_SECONDS = 10.0
FIRST_PID = 100
STRANGER_SECONDS = 1.0
KILLED, CRASHED = -9, 1


@dataclass(eq=False, slots=True)
class Keeper:
    """What is on disk of one, and what lives of it."""

    pid: int
    start_time: int
    attempt: int
    assignment: str
    """As its folder holds it."""
    instance: Instance
    """The same, as it was read at its start."""
    member: Member
    """Which of its members runs here."""
    engine: Engine
    group: Group | None = None
    """The others that it has to do with; None: it is its Instance's only one."""
    front_port: int = 0
    """Where others of its attempt come in; 0: none does."""
    is_claimed: bool = False
    record: EngineExit | None = None
    """Its exit record, once it has written one."""

    @property
    def answers(self) -> bool:
        """Whether requests come to it: of several members to the first."""
        return self.member.name == self.instance.spec.members[0].name


class Machine:
    def __init__(
        self,
        name: str,
        index: int,
        ground: Ground,
        random: Random,
        story: Story,
        folder: Path,
        on_change: Callable[[], None],
        on_start: Callable[["Machine", Keeper], None] = lambda machine, keeper: None,
    ) -> None:
        """`on_change` hears of each start and end of an engine, `on_start` of each keeper that starts."""
        self.name = name
        self.ground = ground
        self.pools: Mapping[str, int] = {pool.name: pool.total_bytes for pool in ground.facts.pools}
        """Bytes by pool, as they truly are."""
        self.claimed = dict(self.pools)
        """What its facts say."""
        self._claims: dict[str, list[tuple[float, int]]] = {}
        """By pool: when they began to say how much else, in order."""
        self.folder = folder
        self.is_on = True
        self.foreign_bytes = 0
        self.is_fetch_broken = False
        self.is_disk_full = False
        self.crashes_to_come = 0
        self.hangs_to_come = 0
        self.leaks_to_come = 0
        self.cached: set[str] = set()
        self.keepers: dict[str, Keeper] = {}
        self.ports: dict[int, Engine] = {}
        self.processes: dict[int, int] = {}
        """Living process ids with their start times."""
        self.has_lost_memory = False
        """What the agent decided did not reach the disk: its next start may know less."""
        self._random = random
        self._story = story
        self._on_change = on_change
        self._on_start = on_start
        self._loop = asyncio.get_running_loop()
        self._next_pid = FIRST_PID
        self._next_port = self._first_port = 20_000 + 1_000 * index

    def now(self) -> float:
        return self._loop.time()

    def choose_port(self) -> int:
        self._next_port = self._first_port + (self._next_port + 1 - self._first_port) % 1_000
        return self._next_port

    def owns_port(self, port: int) -> bool:
        return self._first_port <= port < self._first_port + 1_000

    def spawn(self) -> tuple[int, int]:
        """A new process: its id and start time."""
        pid, start_time = self._next_pid, int(self.now() * 1000)
        self._next_pid += 1
        self.processes[pid] = start_time
        return pid, start_time

    def start_keeper(self, instance_id: str, attempt: int, port: int, launch: Launch) -> Keeper:
        text = dict(launch.files)["assignment.json"]
        assignment = MemberAssignment.model_validate_json(text)
        pid, start_time = self.spawn()
        engine_pid, engine_start = self.spawn()
        member = next(each for each in assignment.instance.spec.members if each.name == assignment.member)
        group = launch.group
        is_hanging = self.hangs_to_come > 0
        self.hangs_to_come -= is_hanging
        load_seconds = 1e9 if is_hanging else self.ground.pace.load_seconds(assignment.instance, self._random)
        exited: asyncio.Future[int] = self._loop.create_future()
        engine = Engine(
            instance_id=instance_id,
            pid=engine_pid,
            start_time=engine_start,
            port=port,
            key=assignment.key,
            ready_at=self.now() + load_seconds,
            taken={pool: member.bytes_in(pool) for pool in self.pools},
            exit=exited,
            is_linked=group is None or not group.dials,
        )
        front_port = self.choose_port() if group is not None and group.admits else 0
        keeper = Keeper(pid, start_time, attempt, text, assignment.instance, member, engine, group, front_port)
        self._on_change()
        self.keepers[instance_id] = keeper
        self.ports[port] = engine
        exited.add_done_callback(lambda _: self._on_exit(keeper))
        self._story.tell(self.name, f"engine of {assignment.instance.metadata.name} ({instance_id}) starts")
        self._on_start(self, keeper)
        if self.crashes_to_come > 0:
            self.crashes_to_come -= 1
            self._loop.call_later(self._random.uniform(0.05, 1.0), self.end_engine, keeper, CRASHED, "Engine")
        elif self.leaks_to_come > 0:
            self.leaks_to_come -= 1
            self._loop.call_later(self._random.uniform(0.05, 20.0), self.end_engine, keeper, KILLED, "Engine", True)
        return keeper

    def end_engine(
        self, keeper: Keeper, status: int, ended_by: str, out_of_memory: bool = False, why: str = ""
    ) -> None:
        """The engine ends and its keeper writes that down; a keeper that isn't there writes nothing."""
        if not keeper.engine.is_alive:
            return
        if self.is_living(keeper):
            tail = "out of luck" if ended_by == "Engine" else ""
            keeper.record = EngineExit(
                keeper.attempt, keeper.engine.identity, status, ended_by, out_of_memory, tail, why
            )
        keeper.engine.end(status, self.now())

    def _on_exit(self, keeper: Keeper) -> None:
        self._on_change()
        self.processes.pop(keeper.engine.pid, None)
        if self.ports.get(keeper.engine.port) is keeper.engine:
            del self.ports[keeper.engine.port]
        self._story.tell(self.name, f"engine of {keeper.engine.instance_id} has ended")

    def is_living(self, keeper: Keeper) -> bool:
        return self.processes.get(keeper.pid) == keeper.start_time

    def kill_keeper(self, keeper: Keeper) -> None:
        """Its engine dies with it, and no record is written."""
        self.processes.pop(keeper.pid, None)
        keeper.engine.end(KILLED, self.now())

    def end_keeper(self, keeper: Keeper) -> None:
        if self.is_living(keeper):
            self.processes.pop(keeper.pid)

    def power_off(self) -> None:
        self.is_on = False
        for keeper in self.keepers.values():
            self.kill_keeper(keeper)
        self.processes.clear()

    def power_on(self) -> None:
        """Other processes get the ids that keepers had."""
        self.is_on = True
        self._next_pid = FIRST_PID
        for _ in range(12):
            self.spawn()

    def freeze(self) -> None:
        """No byte reaches a gateway, and none is told that a connection ended: power or network are gone."""
        for keeper in self.keepers.values():
            if keeper.engine.held is None:
                keeper.engine.held = []

    def thaw(self) -> None:
        """What gateways would have heard, they hear."""
        for keeper in self.keepers.values():
            held, keeper.engine.held = keeper.engine.held, None
            for hear in held or ():
                hear()

    def release_claims(self) -> None:
        """The agent is gone: each keeper counts its grace."""
        for keeper in self.keepers.values():
            keeper.is_claimed = False
            seconds = MEMBER_GRACE_SECONDS if keeper.group else ORPHAN_GRACE_SECONDS
            self._loop.call_later(seconds, self._end_orphan, keeper, self.now(), seconds)

    def _end_orphan(self, keeper: Keeper, since: float, seconds: float) -> None:
        if not keeper.is_claimed and self.is_living(keeper) and self.now() - since >= seconds:
            self.end_engine(keeper, 0, "Orphaned")
            self.end_keeper(keeper)

    def engines(self) -> list[Engine]:
        return [keeper.engine for _, keeper in sorted(self.keepers.items()) if keeper.engine.is_alive]

    def claim(self, pool: str, total_bytes: int) -> None:
        """Facts that lie: what is free is measured, and true."""
        if total_bytes != self.claimed[pool]:
            self._claims.setdefault(pool, [(0.0, self.claimed[pool])]).append((self.now(), total_bytes))
        self.claimed[pool] = total_bytes

    def most_claimed(self, pool: str, since: float) -> int:
        """The most that they said from `since` on: what a controller may have promised by."""
        claims = self._claims.get(pool)
        if claims is None:
            return self.claimed[pool]
        ends = (*(at for at, _ in claims[1:]), float("inf"))
        return max(count for (_, count), end in zip(claims, ends, strict=True) if end >= since)

    def used_bytes(self, pid: int) -> int:
        """As an agent would measure it: beside what is computed, whatever that was scaled to for the stamp."""
        for keeper in self.keepers.values():
            if keeper.engine.pid == pid:
                stamped = keeper.member.costs
                host = (each for each in stamped if each.pool == HOST_POOL)
                percent = self.ground.used_percent
                return sum(each.total_bytes * percent // each.calibration_percent for each in host)
        return 0

    def available_bytes(self, pool: str) -> int:
        foreign = self.foreign_bytes if pool == HOST_POOL else 0
        taken = sum(keeper.engine.taken[pool] for keeper in self.keepers.values() if keeper.engine.is_alive)
        return self.pools[pool] - foreign - taken

    def free_bytes(self, pool: str) -> int:
        """What may still be promised."""
        return self.pools[pool] - self.reserve_bytes(pool) - sum(engine.taken[pool] for engine in self.engines())

    def reserve_bytes(self, pool: str) -> int:
        return reserve_bytes(pool, self.pools[pool], self.ground.reserve_bytes, self.ground.lanes)


OnStop = Callable[[Machine, Keeper], None]


class MachineKeepers:
    """`Keepers` of the agent's ports, for one agent process. `on_stop` sees each stop that the agent asks for."""

    def __init__(self, machine: Machine, random: Random, on_stop: OnStop) -> None:
        self._machine = machine
        self._random = random
        self._on_stop = on_stop

    async def _wait(self) -> None:
        await asyncio.sleep(self._random.uniform(0.001, 0.05))

    def observe_living(self) -> dict[str, str]:
        keepers = sorted(self._machine.keepers.items())
        return {key: keeper.assignment for key, keeper in keepers if self._machine.is_living(keeper)}

    async def find(self, instance_id: str, engine: str) -> EngineProcess | EngineExit | None:
        await self._wait()
        keeper = self._machine.keepers.get(instance_id)
        if keeper is None:
            return None
        if self._machine.is_living(keeper):
            keeper.is_claimed = True
            return render_process(keeper)
        if keeper.record is not None:
            return keeper.record
        return EngineExit(keeper.attempt, keeper.engine.identity, None, "", False, "")

    async def start(self, instance_id: str, attempt: int, port: int, launch: Launch) -> EngineProcess:
        await self._wait()
        keeper = self._machine.keepers.get(instance_id)
        if keeper is not None and self._machine.is_living(keeper):
            if keeper.engine.is_alive:
                keeper.is_claimed = True
                return render_process(keeper)
            self._machine.end_keeper(keeper)
        if self._machine.is_disk_full:
            raise AgentError(FailureCause.DISK_FULL, "the member's folder can't be written: no space left on device")
        keeper = self._machine.start_keeper(instance_id, attempt, port, launch)
        await self._wait()
        keeper.is_claimed = True
        return render_process(keeper)

    async def wait_exit(self, instance_id: str) -> EngineExit:
        keeper = self._machine.keepers.get(instance_id)
        if keeper is None:
            return EngineExit(0, "", None, "", False, "")
        await asyncio.shield(keeper.engine.exit)
        await self._wait()
        # A keeper tells of its engine's end; a stranger that was taken for one never does.
        await wait_until(lambda: keeper.record is not None or not self._machine.is_living(keeper), STRANGER_SECONDS)
        return keeper.record or EngineExit(keeper.attempt, keeper.engine.identity, None, "", False, "")

    async def stop(self, instance_id: str, grace_seconds: float) -> None:
        keeper = self._machine.keepers.get(instance_id)
        if keeper is None:
            return
        self._on_stop(self._machine, keeper)
        await asyncio.sleep(self._random.uniform(0.01, 1.0))
        self._machine.end_engine(keeper, 0, "Stop")

    async def read_tail(self, instance_id: str, count: int) -> str:
        return "words"

    async def release(self, instance_id: str) -> None:
        await self._wait()
        if keeper := self._machine.keepers.get(instance_id):
            self._machine.end_keeper(keeper)

    def keep_port(self, instance_id: str) -> int:
        return 52599

    def forget(self, instance_id: str) -> None:
        self._machine.keepers.pop(instance_id, None)


def render_process(keeper: Keeper) -> EngineProcess:
    engine = keeper.engine
    return EngineProcess(keeper.attempt, engine.port, engine.pid, engine.identity, keeper.front_port)
