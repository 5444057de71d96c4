"""What a scenario says, in users' words: documents, clients, and what happens when.

Owns its fields, their bounds, and which fields each event needs. It must not know files: documents that a path names
are read by whoever calls. Unknown fields are refused by whoever reads, as for documents.
"""

from enum import StrEnum
from typing import Annotated, Any

from covey_api.meta import Message, Name
from pydantic import Field, WithJsonSchema

# A day: enough for every wait of the product (the longest is of hours), and some minutes of computing.
MAX_SECONDS = 86_400
# After the last event, where no duration is given: strays drain after 15 minutes, backoffs are up to five.
PATIENCE_SECONDS = 1800
# One virtual second of a fleet costs about a millisecond for each node: more is a load test, not a question.
MAX_NODES = 40
MAX_EVENTS = 500
# A request costs about a millisecond.
MAX_REQUESTS = 50_000
# How long a killed process is away: its parent starts it again.
RESTART_SECONDS = 2

Seconds = Annotated[int, Field(ge=0, le=MAX_SECONDS)]
Path = Annotated[str, Field(min_length=1, max_length=1024)]
Paths = Annotated[tuple[Path, ...], Field(max_length=64)]
# Documents that are written out are objects of any kind; `covey.described_fleet` reads them as it reads files.
Written = Annotated[
    tuple[dict[str, Any], ...],
    WithJsonSchema({"type": "array", "maxItems": 1000, "items": {"type": "object"}}),
]


class EventName(StrEnum):
    NODE_DIES = "NodeDies"
    """The machine loses power: its engines and its agent are gone."""
    NODE_LOSES_NETWORK = "NodeLosesNetwork"
    """Neither the controller nor a gateway reaches it; what it runs goes on."""
    NODE_RETURNS = "NodeReturns"
    """Power and network are back."""
    CORDON = "Cordon"
    """Nothing new is placed on the node."""
    UNCORDON = "Uncordon"
    """It is placed on again."""
    DISK_FULL = "DiskFull"
    """The node's disk takes no byte more."""
    AGENT_KILLED = "AgentKilled"
    """The node's agent is killed; its engines go on."""
    CONTROLLER_KILLED = "ControllerKilled"
    """Nobody leads until it is started again."""
    CONTROLLER_PAUSED = "ControllerPaused"
    """It stands still, as a machine that swaps, and goes on."""
    GATEWAY_KILLED = "GatewayKilled"
    """Its clients' connections break."""
    ENGINE_CRASHES = "EngineCrashes"
    """One engine of a Placement ends by itself."""
    ENGINE_OUT_OF_MEMORY = "EngineOutOfMemory"
    """The system kills it for want of memory."""
    ENGINE_HANGS = "EngineHangs"
    """It lives and takes connections, and generates nothing any more."""
    APPLY = "Apply"
    """Documents are written into the source."""
    DELETE = "Delete"
    """A Placement's document is removed."""
    SCALE = "Scale"
    """A Placement gets another number of replicas."""


_NODE = {"node"}
# By event: fields that it needs, and fields that it may have.
NEEDED: dict[EventName, tuple[frozenset[str], frozenset[str]]] = {
    name: (frozenset(needed), frozenset(allowed))
    for name, (needed, allowed) in {
        EventName.NODE_DIES: (_NODE, {"for_seconds"}),
        EventName.NODE_LOSES_NETWORK: (_NODE, {"for_seconds"}),
        EventName.NODE_RETURNS: (_NODE, set[str]()),
        EventName.CORDON: (_NODE, set[str]()),
        EventName.UNCORDON: (_NODE, set[str]()),
        EventName.DISK_FULL: (_NODE, {"for_seconds"}),
        EventName.AGENT_KILLED: (_NODE, {"for_seconds"}),
        EventName.CONTROLLER_KILLED: (set[str](), {"for_seconds"}),
        EventName.CONTROLLER_PAUSED: ({"for_seconds"}, set[str]()),
        EventName.GATEWAY_KILLED: (set[str](), {"gateway", "for_seconds"}),
        EventName.ENGINE_CRASHES: ({"placement"}, {"namespace"}),
        EventName.ENGINE_OUT_OF_MEMORY: ({"placement"}, {"namespace"}),
        EventName.ENGINE_HANGS: ({"placement"}, {"namespace"}),
        EventName.APPLY: (set[str](), {"files", "objects"}),
        EventName.DELETE: ({"placement"}, {"namespace"}),
        EventName.SCALE: ({"placement", "replicas"}, {"namespace"}),
    }.items()
}


class ScenarioEvent(Message):
    """One thing that happens."""

    at_seconds: Seconds
    """When, since the fleet was started."""
    event: EventName
    """What."""
    node: Name | None = None
    """To which node."""
    gateway: Annotated[int, Field(ge=1, le=8)] | None = None
    """To which gateway, counted from 1; the first if it isn't said."""
    placement: Name | None = None
    """To which Placement, or to an engine of which."""
    namespace: Name | None = None
    """Of the Placement."""
    replicas: Annotated[int, Field(ge=0, le=64)] | None = None
    """As many as are wished from then on."""
    files: Paths = ()
    """Documents that are applied: files or folders, from the scenario's folder."""
    objects: Written = ()
    """Documents that are applied, written out."""
    for_seconds: Annotated[int, Field(ge=1, le=MAX_SECONDS)] | None = None
    """How long it lasts. A killed process is started again after 2 s if it isn't said; all else stays as it is."""

    @property
    def ends_at(self) -> int:
        return self.at_seconds + (self.for_seconds or 0)


class SteadyRequests(Message):
    """Clients that ask for a model at an even rate."""

    model: Annotated[str, Field(min_length=1, max_length=253)]
    """As clients name it."""
    per_minute: Annotated[int, Field(ge=1, le=6000)] = 60
    """How many."""
    from_seconds: Seconds = 0
    """When they begin; before the first instance is ready they are refused."""
    until_seconds: Seconds | None = None
    """When they end; with the run if it isn't said."""


class Pacing(Message):
    """What is assumed of machines: nothing in a description says how fast they are."""

    load_mib_per_second: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Weights that an engine loads in a second, once they are on the machine."""
    download_mib_per_second: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Of artifacts that a node hasn't cached."""


class Scenario(Message):
    """A whole scenario."""

    seed: Annotated[int, Field(ge=0, le=2**31)] = 1
    """Decides delays and their order, and nothing that is said here."""
    duration_seconds: Annotated[int, Field(ge=1, le=MAX_SECONDS)] | None = None
    """When the run ends at the latest. Half an hour after the last event if it isn't said."""
    files: Paths = ()
    """Nodes that are described, Models, Placements: files or folders, from the scenario's folder."""
    objects: Written = ()
    """The same, written out."""
    gateways: Annotated[int, Field(ge=1, le=8)] = 1
    """How many there are; clients ask the first that is there."""
    pace: Pacing = Pacing()
    """How fast machines are."""
    requests: Annotated[tuple[SteadyRequests, ...], Field(max_length=32)] = ()
    """What clients do."""
    events: Annotated[tuple[ScenarioEvent, ...], Field(max_length=MAX_EVENTS)] = ()
    """What happens, in any order."""

    @property
    def last_event_seconds(self) -> int:
        """When nothing is left to happen, by what is said here."""
        ends = [event.ends_at for event in self.events]
        ends += [each.until_seconds or each.from_seconds for each in self.requests]
        return max(ends, default=0)

    @property
    def end_seconds(self) -> int:
        return self.duration_seconds or min(MAX_SECONDS, self.last_event_seconds + PATIENCE_SECONDS)
