"""What the agent's runtime needs of the world, without a world: each part can be told to fail."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from covey_agent.performer import Outside
from covey_agent.ports import (
    AgentError,
    Answer,
    Effort,
    EngineExit,
    EngineProcess,
    EngineProgram,
    Launch,
    OnTransfer,
    Ring,
    Transfer,
)
from covey_api.engines import EngineName, Lane, UnusableEngine
from covey_api.instance import Instance
from covey_api.messages import PoolReading, Report
from covey_api.meta import Message
from covey_api.model import Geometry, ResolvedArtifact
from covey_api.node import MemoryPool, NodeFacts, NodeSpec
from covey_api.reasons import FailureCause
from covey_fleet_client.errors import FleetError, FleetErrorKind

from kit import builders

FACTS = NodeFacts(os="linux", architecture="x86_64", cpu_cores=2, pools=(MemoryPool(name="Host", total_bytes=1 << 34),))


class FakeArtifacts:
    """`failure` is raised by every call while it is set."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.fetched: list[str] = []
        """Names, in order."""

    async def read_header(self, source: str, sha256: str) -> tuple[ResolvedArtifact, Geometry]:
        if self.failure:
            raise self.failure
        return builders.artifact(source=source), builders.geometry()

    async def fetch(self, artifact: ResolvedArtifact, on_transfer: OnTransfer) -> Path:
        on_transfer(Transfer(1, artifact.size_bytes, 1))
        await asyncio.sleep(0)
        if self.failure:
            raise self.failure
        self.fetched.append(artifact.name)
        return Path("/weights") / artifact.name

    def digests(self) -> tuple[str, ...]:
        return ()


class FakeEngines:
    """`is_prepared`: whether lanes can be told."""

    def __init__(self) -> None:
        self.is_prepared = True
        self.refreshes = 0

    def observe_unusable(self, spec: NodeSpec) -> tuple[UnusableEngine, ...]:
        return ()

    async def refresh_devices(self) -> None:
        self.refreshes += 1

    async def prepare(self, spec: NodeSpec | None, *, has_members: bool) -> bool:
        return self.is_prepared or has_members

    async def observe_lanes(self, spec: NodeSpec) -> tuple[Lane, ...]:
        return (builders.lane(),)

    async def ensure(
        self, engine: EngineName, spec: NodeSpec, on_transfer: OnTransfer, version: str | None = None
    ) -> EngineProgram:
        return EngineProgram(Path("/bin/engine"), {}, "1", "")

    async def require_architecture(self, engine: EngineName, program: EngineProgram, architecture: str) -> None:
        """Knows them all."""


class FakeFacts:
    def __init__(self) -> None:
        self.used_bytes: dict[int, int] = {}
        """By process id."""
        self.devices: tuple[PoolReading, ...] = ()
        self.taken_bytes: dict[int, int] = {}
        """Likewise."""
        self.efforts: dict[int, Effort | None] = {}
        """By process id; of others: always the same."""

    async def observe_facts(self) -> NodeFacts:
        return FACTS

    def observe_readings(self) -> tuple[PoolReading, ...]:
        return (PoolReading(name="Host", available_bytes=1 << 33), *self.devices)

    def observe_shared_devices(self) -> frozenset[str]:
        return frozenset()

    def observe_used_bytes(self, pid: int) -> int:
        return self.used_bytes.get(pid, 0)

    def observe_taken_bytes(self, pid: int) -> int:
        return self.taken_bytes.get(pid, 0)

    def observe_effort(self, pid: int) -> Effort | None:
        return self.efforts.get(pid, Effort(0.0, 0))


class FakeKeepers:
    """Engines that run until told otherwise."""

    def __init__(self) -> None:
        self.running: dict[str, EngineProcess] = {}
        self.exits: dict[str, asyncio.Event] = {}
        self.living: dict[str, str] = {}
        self.forgotten: list[str] = []
        self.failure: AgentError | None = None
        self.before_start: Callable[[], None] = lambda: None
        self.starts = 0
        self.launched: tuple[str, ...] = ()

    def observe_living(self) -> dict[str, str]:
        return self.living

    async def find(self, instance_id: str, engine: str) -> EngineProcess | EngineExit | None:
        return self.running.get(instance_id)

    async def start(self, instance_id: str, attempt: int, port: int, launch: Launch) -> EngineProcess:
        self.before_start()
        self.launched = launch.argv
        if self.failure:
            raise self.failure
        self.starts += 1
        self.running[instance_id] = EngineProcess(attempt, port, self.starts, f"{self.starts}@boot")
        self.exits[instance_id] = asyncio.Event()
        return self.running[instance_id]

    async def wait_exit(self, instance_id: str) -> EngineExit:
        await self.exits.setdefault(instance_id, asyncio.Event()).wait()
        process = self.running.pop(instance_id)
        return EngineExit(process.attempt, process.identity, -15, "Stop", False, "")

    async def stop(self, instance_id: str, grace_seconds: float) -> None:
        self.exits[instance_id].set()

    async def read_tail(self, instance_id: str, count: int) -> str:
        return "words"

    async def release(self, instance_id: str) -> None: ...

    def keep_port(self, instance_id: str) -> int:
        return 52599

    def forget(self, instance_id: str) -> None:
        self.forgotten.append(instance_id)


class FakeAdapter:
    engine = EngineName.LLAMA_SERVER

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.unready_probes = 0
        self.progress: Callable[[], str | None] = lambda: None
        self.rests = False

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
        if self.failure:
            raise self.failure
        return Launch(("engine", str(weights), *map(str, companions)), {}, ())

    async def explain_unwell(self, port: int) -> str:
        return ""

    async def explain_unready(self, instance: Instance, port: int, key: str) -> str:
        self.unready_probes -= 1
        return "" if self.unready_probes < 0 else "it loads"

    async def observe_progress(self, port: int, key: str) -> str | None:
        await asyncio.sleep(0)
        return self.progress()

    async def is_at_rest(self, port: int, key: str) -> bool:
        return self.rests

    async def read_metrics(self, port: int, key: str) -> str | None:
        return None

    def blank(self, output: str) -> str:
        return output

    def classify_exit(self, status: int, tail: str) -> tuple[FailureCause, str]:
        return FailureCause.EXITED, f"exited with code {status}"


class FakeFleet:
    """Streams `lines`, then is silent; keeps what was posted and put. `is_down`: calls fail."""

    def __init__(self, *lines: bytes) -> None:
        self.lines = lines
        self.posts: list[Message] = []
        self.puts: list[tuple[str, Message]] = []
        self.answers: list[Message] = []
        self.is_down = False
        self.refusal: FleetError | None = None

    @property
    def reports(self) -> list[Report]:
        return [post for post in self.posts if isinstance(post, Report)]

    async def stream(self, path: str) -> AsyncGenerator[bytes]:
        for line in self.lines:
            yield line
        await asyncio.Event().wait()

    async def post(self, path: str, message: Message, answer: type[Answer]) -> Answer:
        self._fail()
        self.posts.append(message)
        prepared = self.answers.pop(0) if self.answers else None
        return prepared if isinstance(prepared, answer) else answer.model_validate({"term": 1, "serial": 1})

    async def put(self, path: str, message: Message) -> None:
        self._fail()
        self.puts.append((path, message))

    def _fail(self) -> None:
        if self.is_down:
            raise FleetError(FleetErrorKind.UNREACHABLE, "nobody there")
        if self.refusal is not None:
            raise self.refusal


class World:
    """All of it, as `Outside`."""

    def __init__(self) -> None:
        self.artifacts = FakeArtifacts()
        self.engines = FakeEngines()
        self.facts = FakeFacts()
        self.keepers = FakeKeepers()
        self.adapter = FakeAdapter()

    @property
    def outside(self) -> Outside:
        adapters = {EngineName.LLAMA_SERVER: self.adapter}
        return Outside(self.artifacts, self.engines, self.facts, self.keepers, adapters)
