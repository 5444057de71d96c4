"""What the planner is asked and what it answers. Everything is a value; an unsatisfiable wish is one too."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from covey_api.companion import CompanionRole
from covey_api.engines import ArtifactFormat, Compute, EngineName, KvCacheType, Lane, Task
from covey_api.instance import Costs, EngineOptions, StampedCompanion
from covey_api.model import Geometry, ResolvedArtifact
from covey_api.node import Taint
from covey_api.placement import Toleration
from covey_api.reasons import RefusalReason
from covey_api.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Pool:
    """One memory pool of a node. `reserved_bytes`: what Instances (known or reported) hold, from the decision on."""

    name: str
    total_bytes: int
    reserve_bytes: int
    reserved_bytes: int
    declared_bytes: int = 0
    """As much of the reserve as its Node declares: the rest is of new places only (docs/adr/0049)."""

    @property
    def unreserved_bytes(self) -> int:
        return self.total_bytes - self.reserve_bytes - self.reserved_bytes

    @property
    def keepable_bytes(self) -> int:
        """What is left for a stamp that is there already."""
        return self.total_bytes - self.declared_bytes - self.reserved_bytes


class NodeState(StrEnum):
    READY = "Ready"
    UNKNOWN = "Unknown"
    """Silent."""
    FACTS_PENDING = "FactsPending"
    """Known, but it has not reported its facts yet."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node as the planner sees it."""

    name: str
    state: NodeState
    schedulable: bool
    labels: Mapping[str, str]
    lanes: tuple[Lane, ...]
    """As new Instances get them: of an engine that is pinned, in that version."""
    pools: tuple[Pool, ...]
    cpu_cores: int
    cached: frozenset[str]
    """Digests of artifacts on its disk."""
    taints: tuple[Taint, ...] = ()
    is_offline: bool = False
    """Whether it gets files from nodes of the fleet alone."""


@dataclass(frozen=True, slots=True)
class CompanionView:
    """A projector or a draft model; `geometry` and `artifact` are None until a node has read the header."""

    role: CompanionRole
    geometry: Geometry | None
    artifact: ResolvedArtifact | None
    error: str = ""


class KnownCompanion(NamedTuple):
    """One whose header was read."""

    role: CompanionRole
    geometry: Geometry
    artifact: ResolvedArtifact


@dataclass(frozen=True, slots=True)
class VariantView:
    """One variant of the Model; `geometry` and `artifact` are None until a node has read the header."""

    name: str
    format: ArtifactFormat
    engines: tuple[EngineName, ...]
    geometry: Geometry | None
    artifact: ResolvedArtifact | None
    error: str = ""
    calibrations: Mapping[tuple[EngineName, Compute], int] = field(
        default_factory=dict[tuple[EngineName, Compute], int]
    )
    """By lane: percent of what is computed that earlier loads took."""
    is_offered: bool = True
    """Whether some node offers an engine that can run it; while none does, nobody reads its header."""
    companions: tuple[CompanionView, ...] = ()
    is_held: bool = True
    """Whether some node has all its files, or they are where each node looks by itself. Asked for nodes that are
    offline alone."""
    runtime: Runtime = field(default_factory=Runtime)
    """Options of engines, some of which not every build has."""

    @property
    def is_known(self) -> bool:
        """Whether the headers of all its files were read."""
        return self.geometry is not None and self.artifact is not None and self.known_companions() is not None

    @property
    def errors(self) -> tuple[str, ...]:
        """Why headers of it can't be read."""
        beside = (f"its {each.role.lower()}: {each.error}" for each in self.companions if each.error)
        return (*([self.error] if self.error else []), *beside)

    def known_companions(self) -> tuple[KnownCompanion, ...] | None:
        """None while one of them isn't known."""
        known = tuple(
            KnownCompanion(each.role, each.geometry, each.artifact)
            for each in self.companions
            if each.geometry is not None and each.artifact is not None
        )
        return known if len(known) == len(self.companions) else None


class Barred(NamedTuple):
    """What a revision failed on: an engine of a node, or only its lanes that fill one pool."""

    node: str
    engine: EngineName
    pool: str = ""
    """The pool that its agent found too little in; empty: something else failed, and that on every lane."""


class ShapeKind(StrEnum):
    """How several nodes run one replica."""

    PIPELINE = "Pipeline"
    """Each rank has a run of layers; one after the other."""
    TENSOR = "Tensor"
    """Each rank has an equal part of every layer; all at once."""
    RPC = "Rpc"
    """A driver has the file and computes; donors lend it their memory."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Over so many nodes."""

    least: int
    most: int
    is_asked: bool
    """Also where it fits on one node."""
    kind: ShapeKind = ShapeKind.RPC
    lock: tuple[str, ...] = ()
    """These nodes in this order; empty: the planner chooses."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What one Placement asks for, with the Model's and the Fleet's defaults filled in."""

    placement: str
    model: str
    variants: tuple[VariantView, ...]
    engines: tuple[EngineName, ...]
    """Preference of the Placement; empty: the variant's own."""
    selector: Mapping[str, str]
    include: frozenset[str]
    exclude: frozenset[str]
    failed: frozenset[Barred]
    """Where this revision failed, and is not to be tried now."""
    context_tokens: int | None
    min_context_tokens: int | None
    model_context_tokens: int | None
    """`spec.contextTokens` of the Model: a cap."""
    slots: int
    kv_cache_type: KvCacheType
    workspace_bytes: int
    placed: Mapping[str, int] = field(default_factory=dict[str, int])
    """Instances of this Placement that each node runs already: new ones go elsewhere first."""
    tolerations: tuple[Toleration, ...] = ()
    expected_requests: int = 4
    """At a time, of one replica."""
    task: Task = Task.CHAT
    """What the engine is started for."""
    spread: Spread | None = None
    """How a replica may go over several nodes; None: it may not."""
    computes: tuple[Compute, ...] = ()
    """Only lanes of these, if any are named."""

    def is_barred(self, node: str, lane: Lane) -> bool:
        """Whether this revision failed on this lane of this node."""
        if not self.failed:
            return False
        return Barred(node, lane.engine) in self.failed or Barred(node, lane.engine, lane.pool) in self.failed


@dataclass(frozen=True, slots=True)
class Other:
    """A node that runs a replica with the first one, and the layers that go there."""

    node: str
    costs: tuple[Costs, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """One replica: where it goes and all that is stamped on its Instance. Of several nodes `node` is the one that
    answers: its driver's, or rank 0's."""

    node: str
    variant: str
    lane: Lane
    artifact: ResolvedArtifact
    options: EngineOptions
    costs: tuple[Costs, ...]
    companions: tuple[StampedCompanion, ...] = ()
    others: tuple[Other, ...] = ()
    """In the order of the members: donors, or ranks from 1 on."""
    kind: ShapeKind = ShapeKind.RPC
    """Of several nodes."""

    @property
    def places(self) -> tuple[tuple[str, tuple[Costs, ...]], ...]:
        """Every node with what it takes there."""
        return ((self.node, self.costs), *((each.node, each.costs) for each in self.others))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one node can't take one replica; without a node: why no several can. `short_bytes`: how much is missing,
    where memory is the reason."""

    node: str
    reason: RefusalReason
    message: str
    short_bytes: int = 0

    @property
    def closest_words(self) -> str:
        """As the one that is nearest to a fit."""
        if not self.node:
            return f"{self.reason}: {self.message}"
        return f"closest is node '{self.node}': {self.reason}: {self.message}"


@dataclass(frozen=True, slots=True)
class Pending:
    """The answer is not known yet: `ReadyReason.GEOMETRY_PENDING`, `GEOMETRY_UNAVAILABLE` or `FACTS_PENDING`."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for `count` new replicas of one wish. len(chosen) <= count; the rest is explained."""

    chosen: tuple[Chosen, ...]
    pending: Pending | None
    counts: tuple[tuple[RefusalReason, int], ...]
    """Nodes refused, by reason, sorted by reason; for the replica that found no place."""
    closest: Refusal | None
    """The refusal nearest to a fit, for the replica that found no place."""
