"""Placement: the wish. Serve this Model, so many replicas, under these constraints."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from covey_api.engines import Compute, EngineName, KvCacheType
from covey_api.kinds import Column, Kind, Scale, cel
from covey_api.meta import LabelKey, LabelValue, Message, Name, Status
from covey_api.reasons import FailureCause, RefusalReason


class RolloutStrategy(StrEnum):
    SURGE = "Surge"
    """Start the new revision beside the old one when memory allows, else as Recreate."""
    RECREATE = "Recreate"
    """Drain and stop the old revision, then start the new one."""


class Preemption(StrEnum):
    NEVER = "Never"
    """It waits for a place."""
    LOWER_PRIORITY = "LowerPriority"
    """Where it fits nowhere, instances of lower priority are drained for it."""


class ModelReference(Message):
    """Names a Model in the Placement's own namespace."""

    name: Name
    """Name of the Model."""


class TolerationOperator(StrEnum):
    EQUAL = "Equal"
    """The taint's value must be the same."""
    EXISTS = "Exists"
    """Whatever the taint's value is."""


class Toleration(Message):
    """Lets instances come to nodes with a matching taint; it draws none there."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.value) || self.value == '' || !has(self.operator) || self.operator == 'Equal'",
                "`value` of a toleration must be absent when its `operator` is 'Exists'",
            )
        )
    )

    key: LabelKey
    """Key of the taint."""
    operator: TolerationOperator = TolerationOperator.EQUAL
    """`Equal`: the taint's value must be `value`; `Exists`: any value will do."""
    value: LabelValue = ""
    """Value of the taint, for `Equal`."""


class NodeChoice(Message):
    """Which nodes may run it. Every part given must hold."""

    selector: Annotated[dict[Annotated[str, Field(max_length=128)], LabelValue], Field(max_length=16)] = Field(
        default={}
    )
    """Labels that a node must carry."""
    include: Annotated[tuple[Name, ...], Field(max_length=64)] = ()
    """Only these nodes, if any are named."""
    exclude: Annotated[tuple[Name, ...], Field(max_length=64)] = ()
    """Never these nodes."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Taints of nodes that don't keep it away."""
    computes: Annotated[tuple[Compute, ...], Field(max_length=8)] = ()
    """Only lanes of these, if any are named: `Cuda`, `Rocm`, `Metal` and `Vulkan` keep it off processors."""


class ShapeType(StrEnum):
    SINGLE = "Single"
    """Each replica on one node."""
    RPC = "Rpc"
    """Each replica on several nodes, with `LlamaServer`: a driver has the file and answers, donors lend it their
    memory."""
    PIPELINE = "Pipeline"
    """Each replica on several nodes, with `Mlx`: every rank of a ring has a run of layers, one computes after the
    other."""
    TENSOR = "Tensor"
    """Each replica on several nodes, with `Mlx`: every rank of a ring has an equal part of each layer, all compute at
    once. The model's heads must divide by the ranks."""
    AUTO = "Auto"
    """On one node where it fits on one, else as `Rpc`."""


class ShapeWish(Message):
    """Over how many nodes a replica goes."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.minNodes) || !has(self.maxNodes) || self.minNodes <= self.maxNodes",
                "`spec.shape.minNodes` must be at most `spec.shape.maxNodes`",
            ),
            (
                "!has(self.topologyLock) || size(self.topologyLock) == 0 || "
                "(has(self.type) && self.type in ['Rpc', 'Pipeline', 'Tensor'])",
                "`spec.shape.topologyLock` must come with `spec.shape.type` 'Rpc', 'Pipeline' or 'Tensor'",
            ),
            (
                "!has(self.topologyLock) || (size(self.topologyLock) != 1 && "
                "self.topologyLock.all(n, self.topologyLock.exists_one(m, m == n)))",
                "`spec.shape.topologyLock` must name two nodes at least, each once",
            ),
        )
    )

    type: ShapeType = ShapeType.SINGLE
    """`Single`: one node; `Rpc`: several, with `LlamaServer`; `Pipeline` and `Tensor`: several, with `Mlx`; `Auto`:
    several only where it fits on none alone."""
    min_nodes: Annotated[int, Field(ge=2, le=4)] = 2
    """Of several nodes, at least so many."""
    max_nodes: Annotated[int, Field(ge=2, le=4)] = 4
    """Of several nodes, at most so many; of those that fit the fewest are taken."""
    topology_lock: Annotated[tuple[Name, ...], Field(max_length=4)] = ()
    """These nodes in this order and no others: the first drives, or is rank 0. While one of them can't take its part
    the Placement waits and says for whom. `minNodes` and `maxNodes` count for nothing then."""


class ContextWish(Message):
    """The window of one slot that is asked for."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.tokens) || !has(self.minTokens) || self.minTokens <= self.tokens",
                "`spec.context.minTokens` must be at most `spec.context.tokens`",
            )
        )
    )

    tokens: Annotated[int, Field(ge=256, le=1 << 30)] | None = None
    """The window of one slot, exactly; beside `minTokens` the most that it gets. When absent: the largest that fits, at
    most the model's own."""
    min_tokens: Annotated[int, Field(ge=256, le=1 << 30)] | None = None
    """Not placed where less than this fits."""


class KvCacheWish(Message):
    """How keys and values are stored."""

    type: KvCacheType | None = None
    """Element type of keys and values; when absent the Fleet's default."""


class Rollout(Message):
    """How a change reaches the instances."""

    strategy: RolloutStrategy = RolloutStrategy.SURGE
    """`Surge` starts the new revision beside the old one when memory allows; `Recreate` stops the old one first."""
    drain_seconds: Annotated[int, Field(ge=0, le=86_400)] = 60
    """Longest wait for requests in flight before an instance is stopped."""


class UnknownFields(StrEnum):
    """What becomes of a request's field that Covey doesn't know."""

    REFUSE = "Refuse"
    FORWARD = "Pass"


class Scaling(Message):
    """How many replicas, by what is asked. An instance above `min` without requests yields to a model that is asked for
    and fits nowhere else, also at equal priority."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.min) || !has(self.max) || self.min <= self.max",
                "`spec.scaling.min` must be at most `spec.scaling.max`",
            ),
        )
    )

    min: Annotated[int, Field(ge=0, le=64)] = 0
    """Replicas that stay whoever asks; zero: it starts when a request comes, which waits for it."""
    max: Annotated[int, Field(ge=1, le=64)] = 1
    """Replicas at most."""
    target: Annotated[int, Field(ge=1, le=4096)] = 4
    """Requests in flight per replica: of more, another replica is wished."""
    idle_seconds: Annotated[int, Field(ge=5, le=604_800)] = 300
    """How long fewer replicas must have been enough before one leaves."""
    min_dwell_seconds: Annotated[int, Field(ge=0, le=86_400)] = 30
    """How long a replica serves at least before it yields to another model."""


class RequestTimeouts(Message):
    """Deadlines of one request at one instance, as gateways keep them. Changing one rolls nothing."""

    connect_seconds: Annotated[int, Field(ge=1, le=60)] = 5
    """Until the engine takes a connection; another instance is tried then."""
    queue_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """Until a slot is free for it: as long as this gateway has as many earlier requests there as there are slots."""
    first_token_seconds: Annotated[int, Field(ge=5, le=86_400)] = 600
    """From then to the first byte of an answer: reading the prompt. What waits behind others doesn't count."""
    between_tokens_seconds: Annotated[int, Field(ge=5, le=86_400)] = 300
    """Between two bytes of an answer that began. Waiting for the client doesn't count."""
    total_seconds: Annotated[int, Field(ge=0, le=604_800)] = 0
    """From the request's sending to the answer's end; 0: as long as tokens come."""


class Timeouts(RequestTimeouts):
    """Deadlines of one instance and of the requests to it."""

    startup_seconds: Annotated[int, Field(ge=5, le=86_400)] = 300
    """From the engine's start to its first token."""
    form_seconds: Annotated[int, Field(ge=5, le=3600)] = 120
    """Of a replica over several nodes: from a member's start until it has reached the others."""
    hold_seconds: Annotated[int, Field(ge=0, le=3600)] = 60
    """How long gateways hold a request while no instance is ready; 0: it is answered 503 at once. Of several Placements
    of a Model the longest counts."""


class PlacementSpec(Message):
    """Which Model, how many replicas, and under which constraints."""

    model_ref: ModelReference
    replicas: Annotated[int, Field(ge=0, le=64)] = 1
    """Instances that are wished; zero is healthy. `scaling` beats it."""
    scaling: Scaling | None = None
    """As many replicas as are asked for; when present `replicas` counts for nothing."""
    engines: Annotated[tuple[EngineName, ...], Field(max_length=8)] = ()
    """Only these engines, best first. When empty: what the variant lists."""
    shape: ShapeWish = ShapeWish()
    """Whether a replica may go over several nodes. No Instance of several is made of a variant with companions."""
    nodes: NodeChoice = NodeChoice()
    """Which nodes may run it."""
    context: ContextWish = ContextWish()
    """The window of one slot."""
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4
    """Sequences that one instance runs at a time: its slots."""
    kv_cache: KvCacheWish = KvCacheWish()
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """Who chooses first when memory is short: higher before lower."""
    preemption: Preemption = Preemption.NEVER
    """`LowerPriority`: where it fits nowhere, instances of Placements of lower priority are drained for it; `Never`: it
    waits."""
    rollout: Rollout = Rollout()
    timeouts: Timeouts = Timeouts()
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """`Refuse`: a request with a field that Covey doesn't know is refused by name; `Pass`: the engine gets it. Fields
    that could hurt other requests are refused in any case, and so are more than 16 of a body above 256 KiB. Of several
    Placements of a Model all must say `Pass`."""
    suspend: bool = False
    """True: drain and stop every instance, keep the wish."""


class Failure(Message):
    """One entry of the breaker's memory: this revision failed on this node with this engine."""

    node: Annotated[str, Field(max_length=63)]
    """The Node that it failed on."""
    engine: EngineName
    """The engine that failed."""
    pool: Annotated[str, Field(max_length=63)] = ""
    """The memory pool of the lane that its agent refused for want of memory: lanes that fill another one are still open
    to this revision. Empty: it failed for another reason, and none of this engine's lanes is tried there."""
    revision: Annotated[str, Field(max_length=64)]
    """The revision that failed; another one is tried again."""
    cause: FailureCause
    """Why, in one word."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """Why, in the engine's or the agent's own words."""


class ReasonCount(Message):
    """How many nodes were refused for one reason."""

    reason: RefusalReason
    """Why they are not chosen."""
    nodes: int
    """How many."""


class PlacementStatus(Status):
    """What runs of the wish, and why the rest doesn't."""

    replicas: int = 0
    """Instances that run or start; those that drain don't count."""
    ready_replicas: int = 0
    """Instances that serve, of whatever revision."""
    selector: Annotated[str, Field(max_length=256)] = ""
    """For the scale subresource: `covey.dev/placement=<name>`."""
    revision: Annotated[str, Field(max_length=64)] = ""
    """Hash of what its instances are made from now; another one is a rollout."""
    ready: Annotated[str, Field(max_length=16)] = ""
    """`1/2`: of the wished replicas, how many serve as wished, for the printer column. Instances of another revision,
    or of a Model that is missing by now, may serve meanwhile: they count in `readyReplicas` alone."""
    engine: Annotated[str, Field(max_length=64)] = ""
    """Lanes in use, e.g. `LlamaServer/Cpu`."""
    context_tokens: int | None = None
    """Smallest window among its instances that serve; while none does, among those that start."""
    nodes: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=64)] = ()
    """Nodes that it runs on."""
    node_names: Annotated[str, Field(max_length=256)] = ""
    """The first of these nodes as one text, for the printer column."""
    refusals: Annotated[tuple[ReasonCount, ...], Field(max_length=16)] = ()
    """Nodes that were refused, counted by reason."""
    closest_refusal: Annotated[str, Field(max_length=1024)] = ""
    """The refusal that is nearest to a fit, in bytes."""
    failures: Annotated[tuple[Failure, ...], Field(max_length=64)] = ()
    """Where it failed and isn't tried again; a new revision or the annotation `covey.dev/retry` clears it."""


class Placement(Kind):
    """The wish: serve this Model, so many replicas, under these constraints."""

    PLURAL: ClassVar[str] = "placements"
    SINGULAR: ClassVar[str] = "placement"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("plc",)
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("Model", ".spec.modelRef.name"),
        Column("Ready", ".status.ready"),
        Column("Context", ".status.contextTokens", "integer"),
        Column("Engine", ".status.engine"),
        Column("Age", ".metadata.creationTimestamp", "date"),
        Column("Nodes", ".status.nodeNames", wide=True),
        Column("Reason", ".status.conditions[?(@.type=='Ready')].reason", wide=True),
    )
    SCALE: ClassVar[Scale | None] = Scale()

    kind: str = "Placement"
    spec: PlacementSpec
    status: PlacementStatus = PlacementStatus()
