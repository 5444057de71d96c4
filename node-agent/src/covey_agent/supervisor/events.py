"""What can happen to a member, in the past tense. The shell makes them; `step` is total over them, in any order."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from covey_api.messages import Assignments
from covey_api.reasons import FailureCause

from covey_agent.ports import EngineProcess, EngineProgram


@dataclass(frozen=True, slots=True)
class AssignmentsReceived:
    """A snapshot of the controller's wishes."""

    assignments: Assignments


@dataclass(frozen=True, slots=True)
class KeeperFound:
    """A keeper from before this agent's start lives and is claimed."""

    instance_id: str
    process: EngineProcess


@dataclass(frozen=True, slots=True)
class KeeperMissed:
    """No keeper from before this agent's start lives; `identity` is the engine it ended with, if there is a record."""

    instance_id: str
    identity: str
    cause: FailureCause | None
    message: str


@dataclass(frozen=True, slots=True)
class ArtifactReady:
    """The weights are here, and all companions."""

    instance_id: str
    weights: Path
    companions: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class ArtifactFailed:
    instance_id: str
    cause: FailureCause
    message: str
    retry_after_seconds: float = 0.0
    """A server asked for this pause."""


@dataclass(frozen=True, slots=True)
class EngineReady:
    instance_id: str
    program: EngineProgram


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine can't be had here."""

    instance_id: str
    cause: FailureCause
    message: str
    retry_after_seconds: float = 0.0
    """A server asked for this pause."""


@dataclass(frozen=True, slots=True)
class PortKept:
    """Nobody else gets it before the keeper does."""

    instance_id: str
    port: int


@dataclass(frozen=True, slots=True)
class PortMissed:
    """Other members can't reach this node."""

    instance_id: str
    cause: FailureCause
    message: str


@dataclass(frozen=True, slots=True)
class FitChecked:
    instance_id: str
    problem: str
    """Why the stamped bytes don't fit now; empty: they do."""
    pool: str = ""
    """The one that is short; `Host` if that is one of several."""
    waits_for: str = ""
    """An Instance that loads there: what it has taken may be counted twice until it is ready."""


@dataclass(frozen=True, slots=True)
class KeeperStarted:
    instance_id: str
    process: EngineProcess


@dataclass(frozen=True, slots=True)
class KeeperFailed:
    """The engine's process could not be started."""

    instance_id: str
    cause: FailureCause
    message: str


@dataclass(frozen=True, slots=True)
class Probed:
    """One try to have the smallest request completed."""

    instance_id: str
    identity: str
    unready: str
    """Why it isn't ready, in words; empty: it is."""


class Finding(StrEnum):
    """What a look at a doubted engine found."""

    GENERATES = "Generates"
    """It completed the smallest request."""
    COMPUTES = "Computes"
    """It didn't, but it is at work; or it has ended meanwhile, which another event tells."""
    DEAD = "Dead"
    """It didn't, and nothing of it moves."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A look at a doubted engine has ended."""

    instance_id: str
    identity: str
    doubt: str
    """`suspectSince` of the assignment by which it was looked at."""
    finding: Finding
    message: str
    """What was found, in words."""


@dataclass(frozen=True, slots=True)
class EngineExited:
    """`cause` None: it ended because somebody asked it to."""

    instance_id: str
    identity: str
    cause: FailureCause | None
    message: str


@dataclass(frozen=True, slots=True)
class KeeperReleased:
    """The keeper of an engine that ended is gone too: another may be started."""

    instance_id: str


@dataclass(frozen=True, slots=True)
class CloseAsked:
    """Everything must stop, though it is still wished: the agent ends with its members."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


Event = (
    AssignmentsReceived
    | KeeperFound
    | KeeperMissed
    | ArtifactReady
    | ArtifactFailed
    | EngineReady
    | EngineFailed
    | PortKept
    | PortMissed
    | FitChecked
    | KeeperStarted
    | KeeperFailed
    | Probed
    | Examined
    | EngineExited
    | KeeperReleased
    | CloseAsked
    | Ticked
)
