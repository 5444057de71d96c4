"""What the shell must do, in the imperative. Each but `Keep`, `CancelWork` and `Forget` ends in an event, always."""

from dataclasses import dataclass
from pathlib import Path

from covey_api.engines import EngineName
from covey_api.instance import Costs
from covey_api.messages import MemberAssignment
from covey_api.model import ResolvedArtifact
from covey_api.node import NodeSpec

from covey_agent.ports import EngineProcess, EngineProgram
from covey_agent.supervisor.kept import Kept


@dataclass(frozen=True, slots=True)
class Keep:
    """Write this to disk before any other effect of the same step."""

    kept: Kept


@dataclass(frozen=True, slots=True)
class FindKeeper:
    """Ends in KeeperFound or KeeperMissed."""

    instance_id: str
    engine: str
    """Identity of the engine that ran, as far as it was kept; empty: none did."""


@dataclass(frozen=True, slots=True)
class FetchArtifact:
    """Ends in ArtifactReady or ArtifactFailed."""

    instance_id: str
    artifact: ResolvedArtifact
    companions: tuple[ResolvedArtifact, ...] = ()


@dataclass(frozen=True, slots=True)
class EnsureEngine:
    """Ends in EngineReady or EngineFailed."""

    instance_id: str
    engine: EngineName
    spec: NodeSpec
    version: str | None = None
    architecture: str = ""
    """What it must have code for; empty: not known."""


@dataclass(frozen=True, slots=True)
class KeepPort:
    """Keep a port free at which other members will reach this one. Ends in PortKept or PortMissed."""

    instance_id: str


@dataclass(frozen=True, slots=True)
class CheckFit:
    """Ends in FitChecked."""

    instance_id: str
    costs: tuple[Costs, ...]
    loading: tuple["Loading", ...]
    """Engines that are on their way to the memory that they were promised."""


@dataclass(frozen=True, slots=True)
class Loading:
    """One engine that isn't ready yet. `pid`: 0 while it has no process."""

    pid: int
    costs: tuple[Costs, ...]
    name: str = ""
    """Of its Instance; empty: it is being stopped, and nobody need wait for it to be ready."""


@dataclass(frozen=True, slots=True)
class StartKeeper:
    """Ends in KeeperStarted or KeeperFailed."""

    instance_id: str
    assignment: MemberAssignment
    weights: Path | None
    """None: of a donor, which loads no file."""
    program: EngineProgram
    companions: tuple[Path, ...] = ()
    kept_port: int = 0
    """Of a rank."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Ends in Probed."""

    instance_id: str
    assignment: MemberAssignment
    process: EngineProcess


@dataclass(frozen=True, slots=True)
class Examine:
    """Gateways doubt that it generates. Ends in Examined."""

    instance_id: str
    assignment: MemberAssignment
    process: EngineProcess


@dataclass(frozen=True, slots=True)
class StopKeeper:
    """Ends in EngineExited."""

    instance_id: str
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class ReleaseKeeper:
    """Ends in KeeperReleased."""

    instance_id: str


@dataclass(frozen=True, slots=True)
class CancelWork:
    """Fetching and checking for this member are of no use any more."""

    instance_id: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The member is over: remove what it left."""

    instance_id: str


Slow = (
    FindKeeper
    | FetchArtifact
    | EnsureEngine
    | KeepPort
    | CheckFit
    | StartKeeper
    | Probe
    | Examine
    | StopKeeper
    | ReleaseKeeper
)
"""Carried out by a task of its own."""

Effect = Keep | CancelWork | Forget | Slow
