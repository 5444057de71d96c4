"""Instance: one running copy of a Model variant. Written by the controller, never by a user.

Self-contained and stamped once: of the spec only `goal`, `attempt` and `term` change later. No other object is needed
to run, drain or re-create it.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from covey_api.companion import CompanionRole
from covey_api.engines import HOST_POOL, Compute, EngineName, KvCacheType, KvLayout, Task
from covey_api.kinds import Column, Kind, cel
from covey_api.meta import Message, Name, Status
from covey_api.model import ResolvedArtifact
from covey_api.reasons import FailureCause
from covey_api.runtime import Runtime


class InstanceGoal(StrEnum):
    RUN = "Run"
    DRAIN = "Drain"


class MemberRole(StrEnum):
    SINGLE = "Single"
    """The only one."""
    DRIVER = "Driver"
    """It has the file, computes its own layers and answers requests; always the first member."""
    DONOR = "Donor"
    """It lends the driver its memory and processors for the layers that are its own."""
    RANK = "Rank"
    """One of a ring in which all have the file and compute their own part of every token; the first member is rank 0,
    which answers requests."""


# Bounds of what earlier loads may change: beyond them the computation is wrong and must be mended, not scaled.
MIN_CALIBRATION_PERCENT, MAX_CALIBRATION_PERCENT = 85, 150


class Costs(Message):
    """The bytes one member takes from one pool, by purpose. The planner computes them, the agent checks them."""

    pool: Annotated[str, Field(max_length=63)] = HOST_POOL
    """Which memory pool of the node."""
    weights_bytes: int = 0
    """The weights, as loaded."""
    kv_cache_bytes: int = 0
    """Keys and values of all slots at the whole window."""
    compute_bytes: int = 0
    """Compute and output buffers of the engine's graph."""
    host_cache_bytes: int = 0
    """Limit of the engine's prompt cache in host memory (`--cache-ram`)."""
    checkpoint_bytes: int = 0
    """Context checkpoints of all slots (`--ctx-checkpoints`)."""
    workspace_bytes: int = 0
    """What `memory.workspace` of the Model adds."""
    floor_bytes: int = 0
    """The engine's process without a model."""
    companion_bytes: int = 0
    """Projector and draft model, with all that they keep."""
    calibration_percent: Annotated[int, Field(ge=MIN_CALIBRATION_PERCENT, le=MAX_CALIBRATION_PERCENT)] = 100
    """What earlier loads made of the computed bytes (weights, cache, compute, floor, companions); it is in them."""

    layers: Annotated[int, Field(ge=0, le=4096)] = 0
    """How many layers are in this pool, where several devices or members share the model; 0: all that are on one."""

    @property
    def total_bytes(self) -> int:
        return (
            self.weights_bytes
            + self.kv_cache_bytes
            + self.compute_bytes
            + self.host_cache_bytes
            + self.checkpoint_bytes
            + self.workspace_bytes
            + self.floor_bytes
            + self.companion_bytes
        )


class EngineOptions(Message):
    """Every option that costs memory or context, stamped: none is left to an engine's default."""

    context_tokens: int
    """The window of one slot."""
    slots: int
    """Sequences that run at a time."""
    kv_cache_type: KvCacheType = KvCacheType.F16
    """Element type of keys and values."""
    kv_layout: KvLayout = KvLayout.PER_SLOT
    """Whether slots share one window."""
    batch_tokens: int = 2048
    """Tokens of one logical batch."""
    micro_batch_tokens: int = 512
    """Tokens of one physical batch; the compute buffers follow it."""
    host_cache_mib: int = 0
    """`--cache-ram`; zero turns the host prompt cache off."""
    context_checkpoints: int = 0
    """`--ctx-checkpoints` per slot."""
    threads: int = 1
    """CPU threads of the engine."""
    repack: bool = True
    """False: `--no-repack`, matrices stay on the CPU as the file has them."""
    image_tokens: int = 0
    """`--image-max-tokens`: what an image of any size becomes at most; zero without a projector."""


class StampedCompanion(Message):
    """A file that the engine loads beside the weights."""

    role: CompanionRole
    """What it is to the engine."""
    artifact: ResolvedArtifact
    """The file, by digest."""


class Member(Message):
    """One engine process of an Instance on one Node."""

    name: Annotated[str, Field(max_length=63)] = "0"
    """Unique within the Instance."""
    node: Name
    """The Node it runs on."""
    role: MemberRole = MemberRole.SINGLE
    """What it does in its Instance."""
    costs: Annotated[tuple[Costs, ...], Field(max_length=64)]
    """Reserved bytes, per pool."""

    @property
    def layers(self) -> int:
        """How many are its own, of an Instance of several members."""
        return sum(costs.layers for costs in self.costs)

    def bytes_in(self, pool: str) -> int:
        """Stamped bytes in one pool."""
        return sum(costs.total_bytes for costs in self.costs if costs.pool == pool)


# Written at creation and never again, beside `instanceId`.
STAMPED = (
    "placement",
    "model",
    "variant",
    "revision",
    "engine",
    "compute",
    "engineVersion",
    "artifact",
    "companions",
    "task",
    "options",
    "runtime",
    "members",
    "startupSeconds",
    "drainSeconds",
)


class InstanceSpec(Message):
    """Everything that is needed to run it, stamped at creation."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self.term >= oldSelf.term", "`spec.term` must never fall"),
            ("self.attempt >= oldSelf.attempt", "`spec.attempt` must never fall"),
            ("self.goal == oldSelf.goal || self.goal == 'Drain'", "`spec.goal` must only go from 'Run' to 'Drain'"),
            ("self.instanceId == oldSelf.instanceId", "`spec.instanceId` must not change"),
            (
                " && ".join(f"self.{name} == oldSelf.{name}" for name in STAMPED),
                "of `spec` only `goal`, `attempt` and `term` must change; to have it made anew, delete the Instance",
            ),
        )
    )

    instance_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$", max_length=16)]
    """Random, minted once, carried in every assignment and report."""
    placement: Annotated[str, Field(max_length=63)]
    """Name of the Placement that wished it."""
    model: Annotated[str, Field(max_length=63)]
    """Name of the Model."""
    variant: Annotated[str, Field(max_length=63)]
    """Name of the Variant."""
    revision: Annotated[str, Field(max_length=64)]
    """Hash of what it is made from."""
    term: int
    """Leadership that wrote it last."""
    attempt: Annotated[int, Field(ge=1)] = 1
    """Number of the present start; never reused."""
    goal: InstanceGoal = InstanceGoal.RUN
    """`Run`, or `Drain`: serve what is in flight, then stop."""
    engine: EngineName
    """The engine that runs it."""
    compute: Compute
    """What the engine runs on."""
    engine_version: Annotated[str, Field(pattern=r"^([0-9A-Za-z][0-9A-Za-z.+_-]{0,63})?$", max_length=64)] = ""
    """Which version of it was pinned when the Instance was made; empty: none was, and its agent chooses."""
    artifact: ResolvedArtifact
    """The file or folder of weights, by digest."""
    companions: Annotated[tuple[StampedCompanion, ...], Field(max_length=2)] = ()
    """Projector and draft model, where the variant names them."""
    task: Task = Task.CHAT
    """What the engine is started for; ready is who did the smallest request of it."""
    options: EngineOptions
    """What the engine is started with."""
    runtime: Runtime = Runtime()
    """What the Model asks of the engine beside it."""
    members: Annotated[tuple[Member, ...], Field(min_length=1, max_length=64)]
    """Its engine processes."""
    startup_seconds: int
    """From the engine's start to its first token, at most."""
    form_seconds: int = 120
    """Of several members: from a driver's or rank's start until it has reached the others, or its attempt ends."""
    drain_seconds: int
    """Longest wait for requests in flight before it is stopped."""


class MemberPhase(StrEnum):
    """Where one member stands; the agent writes it."""

    PENDING = "Pending"
    """Accepted, nothing done yet."""
    FETCHING = "Fetching"
    """Artifact or engine on their way."""
    STARTING = "Starting"
    """The engine runs and loads or warms up."""
    READY = "Ready"
    """It generated a token."""
    DRAINING = "Draining"
    """Serves what is in flight; takes nothing new."""
    BACKOFF = "Backoff"
    """The engine ended; the agent will start it again."""
    FAILED = "Failed"
    """The agent gave up on this attempt; the controller decides."""
    STOPPED = "Stopped"
    """Ended as asked."""


class InstancePhase(StrEnum):
    PENDING = "Pending"
    STARTING = "Starting"
    READY = "Ready"
    DRAINING = "Draining"
    FAILED = "Failed"


class MemberStatus(Message):
    """One engine process, as its agent reports it."""

    name: Annotated[str, Field(max_length=63)]
    """The member's name."""
    node: Annotated[str, Field(max_length=63)]
    """The Node that it runs on."""
    phase: MemberPhase = MemberPhase.PENDING
    """How far it is."""
    cause: FailureCause | None = None
    """Why it ended, in one word, while it isn't running again."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """Why it ended, in words."""
    restarts: int = 0
    """How often the agent started it again within this attempt."""
    progress: Annotated[str, Field(max_length=80)] = ""
    """How far its slowest step is: `model 35 %, 12 min left`, `engine 25 %`, `load 75 %`. In steps that take half a
    minute at least, or quarters; the time is what was left when it was written."""


class InstanceStatus(Status):
    """How far it is."""

    phase: InstancePhase = InstancePhase.PENDING
    """Where the instance stands, from all its members."""
    members: Annotated[tuple[MemberStatus, ...], Field(max_length=64)] = ()
    """Its engine processes."""
    endpoint: Annotated[str, Field(max_length=255)] = ""
    """`http://127.0.0.1:PORT` of the engine on its node, when Ready."""
    front: Annotated[str, Field(max_length=300)] = ""
    """`tls://ADDRESS:PORT` at which gateways of other machines reach it; empty when only its own machine's do."""


class Instance(Kind):
    """One running copy of a Model variant; written by the controller."""

    PLURAL: ClassVar[str] = "instances"
    MAX_NAME_LENGTH: ClassVar[int] = 63
    SINGULAR: ClassVar[str] = "instance"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("inst",)
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("Model", ".spec.model"),
        Column("Phase", ".status.phase"),
        Column("Progress", ".status.members[*].progress"),
        Column("Goal", ".spec.goal"),
        Column("Node", ".spec.members[*].node"),
        Column("Engine", ".spec.engine"),
        Column("Context", ".spec.options.contextTokens", "integer"),
        Column("Age", ".metadata.creationTimestamp", "date"),
        Column("Revision", ".spec.revision", wide=True),
        Column("Attempt", ".spec.attempt", "integer", wide=True),
        Column("Members", ".status.members[*].phase", wide=True),
        Column("Endpoint", ".status.endpoint", wide=True),
        Column("Message", ".status.members[*].message", wide=True),
    )

    kind: str = "Instance"
    spec: InstanceSpec
    status: InstanceStatus = InstanceStatus()
