"""Ports of the agent: what the supervisor's shell needs of the outside. Adapters implement; `main` composes."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from covey_api.engines import EngineName, Lane, UnusableEngine
from covey_api.instance import Instance
from covey_api.messages import PoolReading
from covey_api.meta import Message
from covey_api.model import Geometry, ResolvedArtifact
from covey_api.node import NodeFacts, NodeSpec
from covey_api.reasons import FailureCause


class AgentError(Exception):
    """Something a person can act on: a cause for machines, words for people."""

    def __init__(self, cause: FailureCause, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        """Another try before that is in vain."""


class UnmeasuredHeader(AgentError):
    """The header is sound, but what such a model takes is not known; who declares its geometry can run `artifact`."""

    def __init__(self, message: str, artifact: ResolvedArtifact | None = None) -> None:
        super().__init__(FailureCause.ARTIFACT_CORRUPT, message)
        self.artifact = artifact


@dataclass(frozen=True, slots=True)
class Transfer:
    """Progress of one fetch."""

    done_bytes: int
    total_bytes: int
    bytes_per_second: int


OnTransfer = Callable[[Transfer], None]


class Artifacts(Protocol):
    """The content-addressed cache and its sources. All raise AgentError; every wait has a deadline."""

    async def read_header(self, source: str, sha256: str) -> tuple[ResolvedArtifact, Geometry]:
        """Resolve a source and read its header by ranges: a bounded number of bytes, nothing fetched whole."""
        ...

    async def fetch(self, artifact: ResolvedArtifact, on_transfer: OnTransfer) -> Path:
        """The verified file or folder on this disk; fetched when it isn't there. One download per digest however many
        ask."""
        ...

    def digests(self) -> tuple[str, ...]:
        """`ResolvedArtifact.digest` of all that is in the cache, sorted."""
        ...


@dataclass(frozen=True, slots=True)
class EngineProgram:
    """An engine that can be started: absolute path and the environment it needs beyond a clean one."""

    path: Path
    environment: dict[str, str]
    version: str
    digest: str
    arguments: tuple[str, ...] = ()
    """What comes before an adapter's own: for engines in Python the interpreter's flags and where its packages are."""
    features: frozenset[str] | None = None
    """What this build can do of what not every build can, as its own help says (`engines.features`). None: unknown."""
    packages: Path | None = None
    """Of a managed engine in Python: the folder of its packages."""

    @property
    def command(self) -> tuple[str, ...]:
        return str(self.path), *self.arguments


class Engines(Protocol):
    """Which engines this node has or can have."""

    async def prepare(self, spec: NodeSpec | None, *, has_members: bool) -> bool:
        """Get what must be there before lanes can be told: devices are seen by an engine alone. False: it is on its
        way; ask again. `spec`: None while nobody has said what is wished here. `has_members`: lanes are told at once,
        since the members of a node that tells none count as lost."""
        ...

    async def observe_lanes(self, spec: NodeSpec) -> tuple[Lane, ...]:
        """Lanes offered now. A probe that hangs is abandoned in two seconds."""
        ...

    def observe_unusable(self, spec: NodeSpec) -> tuple[UnusableEngine, ...]:
        """Engines that can't be started though somebody counts on them, as of the last look and the last try."""
        ...

    async def refresh_devices(self) -> None:
        """List accelerators anew, for their free memory; where they can't be listed now, the last list stands."""
        ...

    async def ensure(
        self, engine: EngineName, spec: NodeSpec, on_transfer: OnTransfer, version: str | None = None
    ) -> EngineProgram:
        """The engine, provisioned if needed. `version`: of what is installed for it; None: the agent's own choice."""
        ...

    async def require_architecture(self, engine: EngineName, program: EngineProgram, architecture: str) -> None:
        """AgentError where this build is known to have no code for such models; its lanes say so from then on."""
        ...


@dataclass(frozen=True, slots=True)
class Effort:
    """What an engine's processes have done since their start: it grows while anything of them is at work."""

    cpu_seconds: float
    disk_bytes: int
    """Read from disks, also by way of mapped files; 0 where the system doesn't say."""
    read_bytes: int = 0
    """Read from files wherever they were, also from the page cache; not by way of mapped files. 0 likewise."""


class Facts(Protocol):
    """What this machine is; each call is bounded and never blocks serving."""

    async def observe_facts(self) -> NodeFacts: ...

    def observe_readings(self) -> tuple[PoolReading, ...]: ...

    def observe_shared_devices(self) -> frozenset[str]:
        """The engine's names of devices that fill the host's memory."""
        ...

    def observe_used_bytes(self, pid: int) -> int:
        """The most host memory that this engine had with its keeper and children; 0: not known."""
        ...

    def observe_taken_bytes(self, pid: int) -> int:
        """Host memory that nothing else could have, which this engine has now; 0: not known."""
        ...

    def observe_effort(self, pid: int) -> Effort | None:
        """Of this engine with its children; None: it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another member of the same attempt, on another node."""

    member: str
    node: str
    address: str = ""
    """Where its keeper's front is, if this member dials it: a number, since keepers ask no name server."""
    port: int = 0
    local_port: int = 0
    """On loopback here: where this member's engine finds that one's."""


@dataclass(frozen=True, slots=True)
class Group:
    """What a keeper knows of the other members of its attempt; any's end ends this one."""

    member: str
    """This one's name."""
    form_seconds: float | None
    """Until every neighbour must be linked; None: it may take as long as the agent is there."""
    dials: tuple[Neighbour, ...] = ()
    """A driver's donors."""
    admits: tuple[Neighbour, ...] = ()
    """A donor's driver, a rank's neighbour: it comes in by the front, and no gateway does unless this one answers."""
    ring_port: int = 0
    """On loopback here: where a rank's engine listens for the one before it; 0: it is no rank."""
    front_port: int = 0
    """Which the others were told of; 0: whichever is free."""
    answers: bool = False
    """Requests come to it though others come in: it is rank 0."""
    lost_status: int = 0
    """With which the engine ends when others have ended, and for nothing of its own; 0: it has none such."""
    stuck_status: int = 0
    """With which it ends when a step with the others took longer than `step_seconds`; 0: it has none such."""
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ring:
    """Of a rank: where it listens, and where it finds the next one. All on loopback."""

    rank: int
    port: int
    """Here the one before finds it."""
    next_port: int
    """Here it finds the next one."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How one engine process is started: what an adapter renders."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    files: tuple[tuple[str, str], ...]
    """(relative path, content) written 0600 into the member's folder before the start."""
    memory_bytes: int = 0
    """Of the machine's own memory, as stamped: far more than that ends the engine alone where a limit can be had."""
    group: Group | None = None
    """None: it is its Instance's only member."""


class EngineAdapter(Protocol):
    """The code that runs one engine: small and declarative."""

    engine: EngineName

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
        """Pure. Every option that costs memory or context is rendered from the stamp (`instance.spec.options`).

        `companions`: files of `instance.spec.companions`, in their order. `donors`: ports of loopback at which a driver
        finds its donors, in the order of the members. `ring`: of a rank."""
        ...

    async def explain_unwell(self, port: int) -> str:
        """Why it isn't ready, of a rank that answers no requests; empty: it has loaded its part and met the others. One
        bounded try; never raises."""
        ...

    async def explain_unready(self, instance: Instance, port: int, key: str) -> str:
        """Why it isn't ready, in words; empty: the engine completed the smallest request of its task. One bounded try;
        never raises."""
        ...

    async def observe_progress(self, port: int, key: str) -> str | None:
        """What the engine says that it has computed so far: another text means that it moved. None: it says nothing,
        or not while it computes. One bounded try; never raises."""
        ...

    async def is_at_rest(self, port: int, key: str) -> bool:
        """Whether what generates in it says itself that nothing is asked of it. One bounded try; never raises."""
        ...

    async def read_metrics(self, port: int, key: str) -> str | None:
        """The engine's own page of metrics; None: it has none, or doesn't answer. One bounded try; never raises."""
        ...

    def blank(self, output: str) -> str:
        """Pure. Its output without the lines that may hold a client's words."""
        ...

    def classify_exit(self, status: int, tail: str) -> tuple[FailureCause, str]:
        """Pure. Cause and words from exit status (negative: signal) and the last lines of output."""
        ...


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """An engine under its keeper."""

    attempt: int
    port: int
    pid: int
    identity: str
    """Process id and start time: tells this process from every other one."""
    front_port: int = 0
    """Of its keeper's TLS front; 0: there is none."""


@dataclass(frozen=True, slots=True)
class EngineExit:
    """How an engine ended, as its keeper recorded it."""

    attempt: int
    identity: str
    """Of the `EngineProcess` that it was; empty when nothing says."""
    status: int | None
    """Exit status, negative for a signal; None: the keeper ended without an exit record."""
    ended_by: str
    """`Engine` (by itself), `Stop`, `Neighbour`, `Stuck`, `Orphaned`, `Terminated`; empty without a record."""
    out_of_memory: bool
    """The kernel ended processes for lack of memory while it ran: a hint."""
    tail: str
    """Its last output."""
    why: str = ""
    """What other members of its attempt have to do with it, in words."""


class Keepers(Protocol):
    """The keepers of this node's members, by `instanceId`. All raise AgentError; only `wait_exit` has no deadline."""

    def observe_living(self) -> dict[str, str]:
        """Members whose keeper holds its lock, with the text of their `assignment.json` (empty: none readable)."""
        ...

    async def find(self, instance_id: str, engine: str) -> EngineProcess | EngineExit | None:
        """Claim the living keeper, or read what a dead one left; None: nothing is there.

        `engine`: identity of the engine that ran, if one did. Where nothing tells of its keeper, it is ended.
        """
        ...

    def keep_port(self, instance_id: str) -> int:
        """Keep a port free for the front of this member's next keeper, until that starts or the member is forgotten."""
        ...

    async def start(self, instance_id: str, attempt: int, port: int, launch: Launch) -> EngineProcess:
        """A keeper with its engine. Where one lives already it is claimed instead: there are never two."""
        ...

    async def wait_exit(self, instance_id: str) -> EngineExit:
        """How the engine of a claimed keeper ends, once it has."""
        ...

    async def stop(self, instance_id: str, grace_seconds: float) -> None:
        """Ask the engine to end; kill it after the grace. Its end is told by `wait_exit`."""
        ...

    async def read_tail(self, instance_id: str, count: int) -> str:
        """The last bytes of output, of a living or a dead keeper."""
        ...

    async def release(self, instance_id: str) -> None:
        """The exit is known here: the keeper ends, and has when this returns."""
        ...

    def forget(self, instance_id: str) -> None:
        """Remove all that a dead keeper left."""
        ...


Answer = TypeVar("Answer", bound=Message)


class Fleet(Protocol):
    """The controller, as `covey_fleet_client.FleetClient` reaches it. Paths below `/fleet/v1`. All raise FleetError."""

    def stream(self, path: str) -> AsyncGenerator[bytes]:
        """Lines, until it breaks."""
        ...

    async def post(self, path: str, message: Message, answer: type[Answer]) -> Answer: ...

    async def put(self, path: str, message: Message) -> None: ...
