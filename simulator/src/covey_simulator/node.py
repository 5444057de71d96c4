"""A node: its machine at the agent's ports, and the agent's own loops on it.

Real here: the supervisor's step and its runtime, the performer, reports, asks, the membership's following, the kept
file. Replaced: keepers, artifacts, engines, facts and the adapter, all of which read the machine.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

from covey_agent.asks import Asks
from covey_agent.capturing import Captures
from covey_agent.engines.donors import PROGRAMS
from covey_agent.engines.proof import PROBE_SECONDS
from covey_agent.keeping import Keeping
from covey_agent.kept_file import KeptFile
from covey_agent.membership import Membership
from covey_agent.peers.directory import FleetDirectory
from covey_agent.performer import Outside
from covey_agent.ports import AgentError, Effort, EngineProgram, Launch, OnTransfer, Ring, Transfer
from covey_agent.refused import RefusedFile
from covey_agent.reports import Reporter, Self
from covey_agent.runtime import Runtime
from covey_agent.supervisor.kept import Kept
from covey_agent.surveys import Survey
from covey_agent.whereabouts import Whereabouts
from covey_api.engines import HOST_POOL, EngineName, Lane, UnusableEngine
from covey_api.instance import Instance
from covey_api.messages import PoolReading
from covey_api.model import Geometry, ResolvedArtifact
from covey_api.node import MemoryPool, NodeFacts, NodeSpec
from covey_api.reasons import FailureCause

from covey_simulator.loop import Process
from covey_simulator.machine import Machine, MachineKeepers, OnStop
from covey_simulator.network import SimFleet


class Adapter:
    """`EngineAdapter`: renders nothing that matters, and asks the machine's engine for a token."""

    def __init__(self, engine: EngineName, machine: Machine, random: Random) -> None:
        self.engine = engine
        self._machine = machine
        self._random = random

    def render(
        self,
        program: EngineProgram,
        instance: Instance,
        weights: Path,
        folder: Path,
        port: int,
        key: str,
        companions: tuple[Path, ...] = (),
        donors: tuple[int, ...] = (),
        ring: Ring | None = None,
    ) -> Launch:
        return Launch((str(program.path),), {}, ())

    async def explain_unwell(self, port: int) -> str:
        return ""

    async def explain_unready(self, instance: Instance, port: int, key: str) -> str:
        await asyncio.sleep(self._random.uniform(0.001, 0.1))
        engine = self._machine.ports.get(port)
        if engine is None or engine.key != key or not engine.is_loaded(self._machine.now()):
            return "it isn't loaded"
        if engine.is_wedged:
            await asyncio.wait({engine.exit}, timeout=PROBE_SECONDS)
            return "it gave no answer"
        engine.ready_told_at = engine.ready_told_at or self._machine.now()
        return ""

    async def observe_progress(self, port: int, key: str) -> str | None:
        return None

    async def is_at_rest(self, port: int, key: str) -> bool:
        return False

    async def read_metrics(self, port: int, key: str) -> str | None:
        return None

    def blank(self, output: str) -> str:
        return output

    def classify_exit(self, status: int, tail: str) -> tuple[FailureCause, str]:
        return (FailureCause.KILLED, "was killed") if status < 0 else (FailureCause.EXITED, f"exited with {status}")


class Artifacts:
    def __init__(self, machine: Machine, random: Random) -> None:
        self._machine = machine
        self._random = random

    async def read_header(self, source: str, sha256: str) -> tuple[ResolvedArtifact, Geometry]:
        await asyncio.sleep(self._random.uniform(0.05, 1.0))
        self._check()
        return self._machine.ground.headers(source)

    async def fetch(self, artifact: ResolvedArtifact, on_transfer: OnTransfer) -> Path:
        if artifact.digest not in self._machine.cached:
            on_transfer(Transfer(0, artifact.size_bytes, 10_000_000))
            await asyncio.sleep(self._machine.ground.pace.fetch_seconds(artifact.size_bytes, self._random))
            self._check()
            self._machine.cached.add(artifact.digest)
        return Path("/cache") / artifact.digest

    def _check(self) -> None:
        if self._machine.is_fetch_broken:
            raise AgentError(FailureCause.ARTIFACT_UNAVAILABLE, "the source can't be reached")

    def digests(self) -> tuple[str, ...]:
        return tuple(sorted(self._machine.cached))


class Engines:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._program = machine.folder / "engines" / "llama-server"
        # An agent looks for the donors' program beside it.
        self._program.parent.mkdir(exist_ok=True)
        self._program.with_name(PROGRAMS[0]).touch()

    async def prepare(self, spec: NodeSpec | None, *, has_members: bool) -> bool:
        return True

    def observe_unusable(self, spec: NodeSpec) -> tuple[UnusableEngine, ...]:
        return ()

    async def refresh_devices(self) -> None:
        """Readings of simulated devices are never old."""

    async def observe_lanes(self, spec: NodeSpec) -> tuple[Lane, ...]:
        return self._machine.ground.lanes

    async def ensure(
        self, engine: EngineName, spec: NodeSpec, on_transfer: OnTransfer, version: str | None = None
    ) -> EngineProgram:
        await asyncio.sleep(0.01)
        return EngineProgram(self._program, {}, "1", "")

    async def require_architecture(self, engine: EngineName, program: EngineProgram, architecture: str) -> None:
        """Knows them all."""


class Facts:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._free: dict[str, int] = {}
        self._readings: tuple[PoolReading, ...] = ()

    async def observe_facts(self) -> NodeFacts:
        pools = tuple(MemoryPool(name=name, total_bytes=size) for name, size in self._machine.claimed.items())
        return self._machine.ground.facts.model_copy(update={"pools": pools})

    def observe_readings(self) -> tuple[PoolReading, ...]:
        free = {name: self._machine.available_bytes(name) for name in self._machine.pools}
        if free != self._free:
            self._free = free
            self._readings = tuple(PoolReading(name=name, available_bytes=each) for name, each in free.items())
        return self._readings

    def observe_shared_devices(self) -> frozenset[str]:
        return frozenset()

    def observe_used_bytes(self, pid: int) -> int:
        return self._machine.used_bytes(pid)

    def observe_taken_bytes(self, pid: int) -> int:
        """An engine takes all that it will when it starts."""
        return sum(each.taken[HOST_POOL] for each in self._machine.engines() if each.pid == pid)

    def observe_effort(self, pid: int) -> Effort | None:
        """An engine works while it has a request."""
        engine = next((each for each in self._machine.ports.values() if each.pid == pid), None)
        if engine is None or not engine.is_alive:
            return None
        return Effort(self._machine.now() if engine.in_flight and not engine.is_wedged else 0.0, 0)


class SimKeptFile(KeptFile):
    """The real file, on a disk that can be full."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.folder)
        self._machine = machine

    def write(self, kept: Kept) -> None:
        if self._machine.is_disk_full:
            raise OSError(28, "no space left on device")
        super().write(kept)


class Agent:
    """One agent process on a machine."""

    def __init__(
        self, machine: Machine, fleet: SimFleet, random: Random, on_stop: OnStop, on_change: Callable[["Agent"], None]
    ) -> None:
        self.machine = machine
        keepers = MachineKeepers(machine, random, on_stop)
        facts, artifacts, engines = Facts(machine), Artifacts(machine, random), Engines(machine)
        adapters = {engine: Adapter(engine, machine, random) for engine in EngineName}
        outside = Outside(artifacts, engines, facts, keepers, adapters, choose_port=machine.choose_port)
        self._changed = asyncio.Event()
        self._on_change = on_change
        self.runtime = Runtime(outside, machine.folder / "members", SimKeptFile(machine), "boot", self._change)
        self._survey = Survey(
            engines,
            facts,
            lambda: self.runtime.state.spec,
            lambda: bool(self.runtime.state.members),
            self.runtime.spec_changed,
            self._changed.set,
            "",
        )
        whereabouts = Whereabouts("127.0.0.1", "", machine.folder)
        this = Self(machine.name, f"{random.getrandbits(64):016x}", "0.1.0", "", whereabouts, lambda: 0)
        reporter = Reporter(this, self.runtime, self._survey, artifacts, facts, self._changed)
        captures = Captures(machine.name, self.runtime, outside, machine.folder / "members")
        asks = Asks(machine.name, artifacts, captures)
        refused = RefusedFile(machine.folder)
        directory = FleetDirectory(machine.name)
        keeping = Keeping(artifacts, machine.folder, lambda: None, self._changed.set)
        self._membership = Membership(
            machine.name, self.runtime, reporter, asks, refused, random.random, directory, keeping
        )
        self._fleet = fleet
        self.process = Process(f"agent {machine.name}", self._run)

    def _change(self) -> None:
        self._changed.set()
        self._on_change(self)

    async def _run(self, process: Process) -> None:
        process.spawn(self.runtime.run())
        process.spawn(self._survey.run())
        await self._membership.serve(self._fleet)

    async def kill(self) -> None:
        await self.process.kill()
        self.machine.release_claims()
