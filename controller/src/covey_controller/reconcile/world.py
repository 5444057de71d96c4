"""The world as the reconciler sees it, and what the leader remembers between two plans. Values only.

`World` is everything a plan may depend on: objects as listed, the fleet as it reported itself, what is published, and
`Memory`, which lives in the leader's process only. A new leader starts with an empty `Memory`: whatever must survive it
is in the store or in reports. Times are the leader's monotonic seconds, except `timestamp`.

This package imports nothing that reads the world (DESIGN §8): fresh ids and the wall clock are fields here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey
from covey_api.messages import Ask, AskAnswer, Assignments, Demand, Endpoints, KeyUsage, Order
from covey_api.model import Model, ModelSpec
from covey_api.placement import PlacementSpec
from covey_api.reasons import ReadyReason
from covey_planner.types import Barred, Decision

from covey_controller.reconcile.index import Indexed
from covey_controller.reconcile.sights import AgentView, FleetSight, Sight


@dataclass(frozen=True, slots=True)
class GatewayView:
    """What one gateway reported last."""

    name: str
    seen: float
    connected: bool
    demand: Demand | None = None


Reported = Mapping[str, Mapping[str, KeyUsage]]
"""What gateways counted: by a gateway's boot and a key's hash."""


@dataclass(frozen=True, slots=True)
class Spending:
    """What one key spent today, and of each boot what of that is in it."""

    day: int
    """Days since the epoch, UTC."""
    tokens: int
    counted: Mapping[str, int]

    def with_reports(self, hash_: str, reported: Reported) -> int:
        """With what was reported since."""
        now = {boot: found.tokens for boot, usages in reported.items() if (found := usages.get(hash_)) is not None}
        return self.tokens + sum(max(0, tokens - self.counted.get(boot, 0)) for boot, tokens in now.items())


@dataclass(frozen=True, slots=True)
class Published:
    """What the board streams at the moment, with its orders."""

    endpoints: Endpoints | None = None
    assignments: Mapping[str, Assignments] = field(default_factory=dict[str, Assignments])


@dataclass(frozen=True, slots=True)
class Drain:
    """One Instance on its way out."""

    since: float
    left: Order | None = None
    """Order of the first table without it; None until one is published."""
    stop: bool = False
    """No request is on it any more, or the wait for them is over: its members stop. Never taken back."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Gateways see nothing come from one Instance."""

    since: str
    """Wall clock, as its agent is told."""
    began: float
    is_waited_for: bool
    """Requests wait for it; False: nobody has asked it for long."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often a revision had failed in a row, this one included, and when it may be tried there again."""

    count: int
    until: float


class Spot(NamedTuple):
    """Where a revision can fail: the breaker's key."""

    placement: ObjectKey
    revision: str
    barred: Barred


class LoadKey(NamedTuple):
    """One start of one member's engine."""

    instance_id: str
    member: str
    attempt: int
    pid: int


@dataclass(frozen=True, slots=True)
class Load:
    """What that start has taken so far, of an Instance as it was stamped."""

    instance: Instance
    member: str
    used_bytes: int
    """The most host memory."""
    was_ready: bool


class ArtifactKey(NamedTuple):
    """What is asked for once, however many Models name it."""

    source: str
    sha256: str


@dataclass(frozen=True, slots=True)
class OpenAsk:
    """A question that one node has not answered yet."""

    ask: Ask
    node: str
    since: float


@dataclass(frozen=True, slots=True)
class Search:
    """The search for a node that can read one artifact's header."""

    tried: frozenset[str] = frozenset()
    """Nodes that failed in this round."""
    rounds: int = 0
    until: float = 0.0
    """No ask before this."""


@dataclass(frozen=True, slots=True)
class Revised:
    """A revision with what it was made from: while both are the same objects still, so is it."""

    placement: PlacementSpec
    annotations: Mapping[str, str]
    model: ModelSpec
    revision: str


@dataclass(frozen=True, slots=True)
class Asked:
    """How a Model without an endpoint is asked for, by all gateways."""

    held: int
    """Requests that wait; none: somebody was refused of late."""
    since: float
    """Since when it has been asked for without a pause, or the oldest of them waits."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """How many replicas of a Placement with `scaling` are wished."""

    count: int
    needed_at: float
    """When as many were needed last."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A Ready Instance of a Placement with `scaling`."""

    since: float
    used_at: float
    """When a gateway last had a request on it."""


@dataclass(frozen=True, slots=True)
class Yield:
    """An Instance that is out of the table to make room, and still runs: its requests end first."""

    by: ObjectKey
    """The Placement that it makes room for."""
    left: Order | None = None
    """Order of the first table without it; None until one is published."""


class RestingPlacement(NamedTuple):
    """A Placement with its Instances, of which a plan had nothing to do, to write or to note."""

    seen: tuple[object, ...]
    """What that came from, but for its Instances."""
    sights: tuple[Sight, ...]
    """Its Instances, as they were seen then."""
    served: tuple[object, ...]
    """What of them it came from."""
    revision: str | None
    reason: ReadyReason
    message: str
    """Of its outcome."""
    decision: Decision | None = None
    """Where replicas are without a place; then what was seen has the whole fleet in it."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What one leader knows beyond the store. Lost with it, and rebuilt by looking again."""

    complete: bool = False
    """Latched: the store is listed, and nodes have reported or timed out."""
    expected: frozenset[str] | None = None
    """Nodes that the store knew when this leadership began."""
    planned_at: float | None = None
    """When the last plan was made, or its leader last gave a sign of life after it."""
    watching_since: float | None = None
    """Silence counts from here at the earliest: a leader that was paused heard nobody, which is nobody's fault."""
    drains: Mapping[str, Drain] = field(default_factory=dict[str, Drain])
    lost: Mapping[str, float] = field(default_factory=dict[str, float])
    """By instanceId: when it was judged lost with its silent node."""
    unreachable: frozenset[str] = frozenset()
    """instanceIds that a gateway could not reach while their node was silent."""
    absent: Mapping[str, float] = field(default_factory=dict[str, float])
    """By instanceId: since when its node reports without it."""
    failed: Mapping[str, int] = field(default_factory=dict[str, int])
    """By instanceId: the attempt whose failure has been counted."""
    backoffs: Mapping[Spot, Backoff] = field(default_factory=dict[Spot, Backoff])
    asks: Mapping[str, OpenAsk] = field(default_factory=dict[str, OpenAsk])
    searches: Mapping[ArtifactKey, Search] = field(default_factory=dict[ArtifactKey, Search])
    strays: Mapping[str, float] = field(default_factory=dict[str, float])
    """By instanceId: since when nobody wishes for it."""
    ended: Mapping[str, Instance] = field(default_factory=dict[str, Instance])
    """By instanceId: what was deleted while a node of its own was silent, the last ones."""
    retries: Mapping[ObjectKey, str] = field(default_factory=dict[ObjectKey, str])
    """The value of the retry annotation that was honoured last."""
    heard: Mapping[str, float] = field(default_factory=dict[str, float])
    """By instanceId of what serves: the last byte that a gateway had of it, or when it was first seen to serve."""
    doubts: Mapping[str, Doubt] = field(default_factory=dict[str, Doubt])
    """By instanceId."""
    loads: Mapping[LoadKey, Load] = field(default_factory=dict[LoadKey, Load])
    """Engines that run, with what they took."""
    revisions: Mapping[ObjectKey, Revised] = field(default_factory=dict[ObjectKey, Revised])
    """By Placement: hashing each of them anew in every plan would be most of what a quiet plan costs."""
    asked: Mapping[ObjectKey, Asked] = field(default_factory=dict[ObjectKey, Asked])
    """By Model without an endpoint."""
    scaled: Mapping[ObjectKey, Scaled] = field(default_factory=dict[ObjectKey, Scaled])
    """By Placement with `scaling`."""
    serving: Mapping[str, Serving] = field(default_factory=dict[str, Serving])
    """By instanceId, of such Placements."""
    yields: Mapping[str, Yield] = field(default_factory=dict[str, Yield])
    """By instanceId."""
    assignments: Mapping[str, Assignments] = field(default_factory=dict[str, Assignments])
    """By node: as the last plan made them, so that what says the same is the same object."""
    resting_nodes: Mapping[str, tuple[object, ...]] = field(default_factory=dict[str, tuple[object, ...]])
    """By name: what the status of a Node was made from when there was nothing to write and nothing to note."""
    resting_placements: Mapping[ObjectKey, RestingPlacement] = field(default_factory=dict[ObjectKey, RestingPlacement])
    resting_models: Mapping[ObjectKey, Model] = field(default_factory=dict[ObjectKey, Model])
    """Those of which all is known and said."""
    indexed: Indexed | None = field(default=None, compare=False)
    """What the last plan looked through."""
    fleet: FleetSight | None = field(default=None, compare=False)
    """What the last plan saw of the fleet."""


@dataclass(frozen=True, slots=True)
class World:
    """All that a plan depends on. Order of the collections carries no meaning."""

    term: int
    led_since: float
    objects: tuple[Kind, ...]
    agents: tuple[AgentView, ...]
    gateways: tuple[GatewayView, ...]
    answers: Mapping[str, AskAnswer]
    published: Published
    memory: Memory
    fresh_ids: tuple[str, ...]
    """instanceIds that no Instance has had yet; bounds how many are created by one plan."""
    timestamp: str
    """Wall clock, for `lastTransitionTime` alone."""
    engine_key: Callable[[str], str]
    """The engine's key for an instanceId: a keyed hash, so pure."""
    seal_of: Callable[[Instance], str]
    """What an agent must show with an Instance that the store does not know: a keyed hash, so pure."""
    allow_empty: bool = False
    """Strays are drained also when the store holds no Placement at all."""
    usage: Reported = field(default_factory=dict[str, Mapping[str, KeyUsage]])
    version: str = ""
    """The controller's own; empty: compared with nobody's."""
