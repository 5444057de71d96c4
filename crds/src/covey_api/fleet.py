"""Fleet: the one cluster-wide settings object, named `default`. Changes apply to new Instances only."""

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from covey_api.engines import EngineName, EngineVersion, KvCacheType
from covey_api.kinds import Column, Kind, cel
from covey_api.meta import Message, Status


class FleetKvCache(Message):
    """How keys and values are stored where a Placement does not say."""

    type: KvCacheType = KvCacheType.F16
    """Element type where the Placement names none."""


class EnginePin(Message):
    """Which version of an engine agents install."""

    engine: EngineName
    """Which engine this is about."""
    version: EngineVersion
    """One of `status.lanes[].versions` of the Nodes. A program that an operator gave, or that is on PATH, is what it
    is."""


class FleetSpec(Message):
    """Settings of the whole fleet."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.engines) || self.engines.all(e, self.engines.exists_one(f, f.engine == e.engine))",
                "`spec.engines` must name each engine at most once",
            ),
        )
    )

    kv_cache: FleetKvCache = FleetKvCache()
    engines: Annotated[tuple[EnginePin, ...], Field(max_length=8)] = ()
    """Versions of engines that new Instances get; a Node's `spec.engines[].version` beats it. What runs stays."""


class FleetClaim(Message):
    """Which controllers this cluster's fleet belongs to. To give it to others, remove it from the status."""

    namespace: Annotated[str, Field(max_length=63)]
    """The namespace they run in."""
    authority: Annotated[str, Field(max_length=71)] = ""
    """A digest that tells this fleet from every other one; it stays the same when the fleet's authority is replaced."""


class FleetStatus(Status):
    """What was found of the settings, and whose the fleet is."""

    claim: FleetClaim | None = None
    """Kubernetes mode only: one fleet a cluster."""


class Fleet(Kind):
    """The one cluster-wide settings object, named `default`."""

    PLURAL: ClassVar[str] = "fleets"
    SINGULAR: ClassVar[str] = "fleet"
    NAMESPACED: ClassVar[bool] = False
    ONLY_NAME: ClassVar[str] = "default"
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("KVCache", ".spec.kvCache.type"),
        Column("Age", ".metadata.creationTimestamp", "date"),
    )

    kind: str = "Fleet"
    spec: FleetSpec = FleetSpec()
    status: FleetStatus = FleetStatus()
