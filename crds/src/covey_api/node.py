"""Node: a machine with an agent. Its facts are observed, its limits are declared."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from covey_api.engines import EngineName, EngineVersion, Lane
from covey_api.kinds import Column, Kind, cel
from covey_api.meta import LabelKey, LabelValue, Message, Status
from covey_api.units import Quantity

ABSOLUTE_PATH_PATTERN = r"^/[^\x00-\x1f\x7f]*$"


class Provisioning(StrEnum):
    MANAGED = "Managed"
    """The agent fetches and installs the engine when a member needs it."""
    OFF = "Off"
    """Only what is on the machine already."""


class EngineOverride(Message):
    """What the operator says about one engine on this node."""

    engine: EngineName
    """Which engine this is about."""
    path: Annotated[str, Field(pattern=ABSOLUTE_PATH_PATTERN, max_length=1024)] | None = None
    """Absolute path of the engine's program; beats a managed one and PATH."""
    version: EngineVersion | None = None
    """Which version new Instances get that the agent installs for; beats the Fleet's. Not given: the Fleet's, or the
    agent's own."""
    provisioning: Provisioning = Provisioning.MANAGED
    """`Managed`: the agent fetches and installs it when needed; `Off`: only what is on the machine already."""
    disabled: bool = False
    """True: this node offers no lane of the engine."""


class NodeReserve(Message):
    """Memory that is left to everything else on the machine."""

    memory: Quantity = "1Gi"
    """Bytes of host memory that Covey never plans with; of a Mac at least a quarter, which Metal gives nobody."""


class NodeDownloads(Message):
    """How the node fetches models and engines."""

    bytes_per_second: Quantity | None = None
    """What all of its downloads may take together, such as `20Mi`; less than `64Ki` counts as `64Ki`. Not given: as
    much as there is."""


class NodeSharing(Message):
    """How the node gives what is in its cache to other nodes of the fleet."""

    bytes_per_second: Quantity | None = None
    """What all of them may take together, such as `100Mi`; less than `64Ki` counts as `64Ki`. Not given: as much as
    there is."""


class Keeps(StrEnum):
    """What stays in a node's cache."""

    NEEDED = "Needed"
    """What runs on it, or is about to."""
    MODELS = "Models"
    """Also all that any Model of the fleet names: it is fetched, and stays while the Model does."""


class NodeStore(Message):
    """What the node keeps for the fleet."""

    keeps: Keeps = Keeps.NEEDED
    """`Needed`: what runs on it; `Models`: also all variants and companions of every Model, for other nodes to fetch
    from it. With `unschedulable` it does nothing else."""


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    """Nothing new is placed here without a toleration; what runs stays."""


class Taint(Message):
    """Keeps away what doesn't tolerate it."""

    key: LabelKey
    """What a toleration names."""
    value: LabelValue = ""
    """What a toleration with operator `Equal` must have too."""
    effect: TaintEffect = TaintEffect.NO_SCHEDULE
    """`NoSchedule`: nothing new is placed here without a toleration; what runs stays."""

    def __str__(self) -> str:
        """As kubectl writes it, such as `owner=ann:NoSchedule`."""
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class NodeSpec(Message):
    """Limits of the machine and what the operator says about its engines."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.engines) || self.engines.all(e, self.engines.exists_one(f, f.engine == e.engine))",
                "`spec.engines` must name each engine at most once",
            ),
            (
                "!has(self.taints) || self.taints.all(t, self.taints.exists_one(u, u.key == t.key))",
                "`spec.taints` must name each key at most once",
            ),
        )
    )

    unschedulable: bool = False
    """True: nothing new is placed here; what runs stays."""
    taints: Annotated[
        tuple[Taint, ...],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"]},
        ),
    ] = ()
    """Keep away every Placement that doesn't tolerate them, at most one per key; what runs stays."""
    reserve: NodeReserve = NodeReserve()
    engines: Annotated[tuple[EngineOverride, ...], Field(max_length=8)] = ()
    """Overrides, at most one per engine."""
    offline: bool = False
    """True: nothing is fetched from outside the fleet, neither models nor engines: what isn't in the node's cache comes
    from another node's. What no node has is not placed here."""
    downloads: NodeDownloads = NodeDownloads()
    sharing: NodeSharing = NodeSharing()
    store: NodeStore = NodeStore()


class MemoryPool(Message):
    """One pool of memory that engines fill. Pools are never summed."""

    name: Annotated[str, Field(max_length=63)]
    """`Host`, or the device's name."""
    total_bytes: int
    """Its size."""


class Device(Message):
    """One accelerator."""

    id: Annotated[str, Field(max_length=128)]
    """Stable across restarts: UUID or PCI address."""
    name: Annotated[str, Field(max_length=128)]
    """As its driver calls it."""
    compute: Annotated[str, Field(max_length=16)]
    """What engines reach it by, such as `Cuda`."""
    total_bytes: int = 0
    """Its memory."""


class NodeFacts(Message):
    """What the machine is. Changes rarely; readings that move (free memory) travel beside it, in reports."""

    os: Annotated[str, Field(max_length=32)]
    """`linux` or `darwin`."""
    os_version: Annotated[str, Field(max_length=128)] = ""
    """Its version, as it names itself."""
    architecture: Annotated[str, Field(max_length=32)]
    """As `uname -m` says: `x86_64`, `arm64`."""
    libc: Annotated[str, Field(max_length=64)] = ""
    """The C library, which decides what engines can be installed."""
    hostname: Annotated[str, Field(max_length=253)] = ""
    """As the machine calls itself."""
    cpu_model: Annotated[str, Field(max_length=128)] = ""
    """As the processor calls itself."""
    cpu_cores: int
    """Cores that the agent may use."""
    pools: Annotated[tuple[MemoryPool, ...], Field(max_length=64)]
    """Memory that engines fill: the host's, and each device's own."""
    devices: Annotated[tuple[Device, ...], Field(max_length=64)] = ()
    """Accelerators."""
    disk_total_bytes: int = 0
    """Of the file system that holds the artifact cache."""


class NodeStatus(Status):
    """What its agent last said that lasts."""

    version: Annotated[str, Field(max_length=64)] = ""
    """Version of the agent."""
    facts: NodeFacts | None = None
    """What the machine is."""
    lanes: Annotated[tuple[Lane, ...], Field(max_length=64)] = ()
    """What it can run engines with."""
    lane_names: Annotated[str, Field(max_length=256)] = ""
    """The first of these lanes as one text, `LlamaServer/Cpu`, for the printer column."""
    unusable_names: Annotated[str, Field(max_length=256)] = ""
    """Engines that can't be started there though somebody counts on them, as one text, for the printer column; the
    condition `UnusableEngines` says why."""


class Node(Kind):
    """A machine with an agent; its facts are observed, its limits are declared."""

    PLURAL: ClassVar[str] = "cnodes"
    SINGULAR: ClassVar[str] = "cnode"
    SHORT_NAMES: ClassVar[tuple[str, ...]] = ("cn",)
    NAMESPACED: ClassVar[bool] = False
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
        Column("OS", ".status.facts.os"),
        Column("Arch", ".status.facts.architecture"),
        Column("Lanes", ".status.laneNames"),
        Column("Unusable", ".status.unusableNames"),
        Column("Version", ".status.version"),
        Column("Age", ".metadata.creationTimestamp", "date"),
        Column("Reason", ".status.conditions[?(@.type=='Ready')].reason", wide=True),
        Column("Skew", ".status.conditions[?(@.type=='VersionSkew')].reason", wide=True),
    )

    kind: str = "Node"
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
