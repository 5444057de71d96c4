"""Ports of the controller: what its core needs of the outside. Adapters implement them; `main` composes.

`Store` is the one port for desired and observed objects, with two adapters: `stores/files` and
`stores/kube`.
`Board` is where the reconciler's loop publishes what the fleet API streams, and where the fleet API puts what arrived.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from covey_api.instance import Instance
from covey_api.kinds import Kind, ObjectKey
from covey_api.messages import (
    Ask,
    AskAnswer,
    Assignments,
    Cancel,
    Demand,
    DemandAnswer,
    Endpoints,
    Order,
    Report,
    ReportAnswer,
    Wanted,
    WantedAnswer,
)
from covey_api.meta import Status
from covey_api.node import Node
from covey_api.placement import Placement

CreatedT = TypeVar("CreatedT", Instance, Node)
HeldT = TypeVar("HeldT", bound=Instance | Node | Placement)

# Terms travel in JSON, where integers are exact up to here. Nobody gets there by counting.
MAX_TERM = 1 << 53


@dataclass(frozen=True, slots=True)
class Lease:
    """Leadership. `lost` is set when writing must stop."""

    term: int
    holder: str
    lost: asyncio.Event


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """Where the leader listens, for a standby that passes connections on. `HOST:PORT` each; empty where unknown."""

    fleet: str
    control: str


class Leaders(Protocol):
    """Who leads, as a standby sees it."""

    def leader_address(self) -> LeaderAddress | None:
        """Of another process that leads now; None while this one leads, or nobody does."""
        ...


class Vault(Protocol):
    """Small secret documents that every replica of the controller shares: authority, fleet secret, token hashes,
    denials. Their names are in `vault`. Both methods raise VaultUnavailable and have a deadline."""

    async def read(self, name: str) -> bytes | None:
        """The document; None if there is none."""
        ...

    async def replace(self, name: str, content: bytes, *, seen: bytes | None) -> None:
        """Write it whole. Conflict if it is not what was `seen` (None: there must be none)."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a bearer token belongs to, as the platform that issued it says."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True, slots=True)
class Access:
    """One thing that somebody may do or not, as RBAC has it."""

    verb: str
    resource: str
    namespace: str = ""
    """Empty: in all namespaces, or of a cluster-scoped kind."""


class Reviewer(Protocol):
    """Who somebody is and what they may do, decided by the platform. Both raise ReviewUnavailable."""

    async def review_token(self, token: str, audience: str) -> Caller | None:
        """None if the token isn't valid for this audience."""
        ...

    async def review_access(self, caller: Caller, access: Access) -> bool: ...


class ReviewUnavailable(Exception):
    """The platform can't be asked now; the words say why and are fit for whoever asked."""


class VaultUnavailable(Exception):
    """A document can't be read or written now; the words say why and are fit for whoever asked."""


class Conflict(Exception):
    """A precondition did not hold (resourceVersion, uid, or the object exists): observe again and plan anew."""


class Refused(Exception):
    """This one write is forbidden, by a rule that is not Covey's (admission, quota, rights) or by its kind's schema.

    Others are not concerned.
    """


class LeaseLost(Conflict):
    """This process doesn't lead any more; whoever does writes now."""


@dataclass(frozen=True, slots=True)
class Event:
    """A note that people see in `describe`: deduplicated by (object, reason, message)."""

    key: ObjectKey
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class ToldEvent:
    """An event, and when it was told (RFC 3339, UTC)."""

    event: Event
    seen: str


class Store(Protocol):
    """Desired objects in, observed objects and status both ways. At most eight methods."""

    @property
    def writes_at_once(self) -> int:
        """How many objects may be written at a time; of one object, one write at a time."""
        ...

    async def acquire_lease(self, holder: str) -> Lease:
        """Wait until this process leads; a new holding is a new, higher term."""
        ...

    async def raise_term(self, above: int) -> Lease:
        """Step down and take the lease anew with a term above `above`, which somebody reported."""
        ...

    async def list_objects(self) -> Mapping[ObjectKey, Kind]:
        """All objects, specs and status, once the store has been listed whole."""
        ...

    async def wait_changed(self, timeout_seconds: float) -> bool:
        """True when desired objects have changed since the last `list_objects`; False after the timeout."""
        ...

    async def create(self, instance: CreatedT) -> CreatedT:
        """Store a new Instance, or the Node of a machine that joined. Conflict if the name is taken; Refused."""
        ...

    async def update(self, item: HeldT) -> HeldT:
        """Replace an Instance's spec; add finalizers to an Instance, Node or Placement. Nothing else is ever written.

        Conflict if its resourceVersion is not the stored one, or a rule of the kind is broken; Refused.
        """
        ...

    async def delete(self, key: ObjectKey, uid: str) -> None:
        """Remove an Instance, or a Node or Placement whose deletion was carried out. Conflict if the uid differs."""
        ...

    async def write_status(self, key: ObjectKey, status: Status, events: tuple[Event, ...] = ()) -> None:
        """Replace an object's status and record events. An equal status or a missing object: nothing. Refused."""
        ...


@dataclass(frozen=True, slots=True)
class SourceError:
    """One thing wrong in a set. Printed as `FILE:LINE: MESSAGE`."""

    file: str
    line: int
    field: str
    """Path such as `spec.variants[0].engines[0]`; empty when the whole document is meant."""
    found: str
    message: str
    """Whole sentence: field in back-quotes, what must hold, what was found, a suggestion."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """What the source holds and what of it runs."""

    source: str
    applied: str
    """First 12 hex of the set that runs, its digest or its commit; empty before the first."""
    wanted: str
    """The same of the newest set read, valid or not."""
    errors: tuple[SourceError, ...] = ()
    notices: tuple[str, ...] = ()
    """E.g. that an empty folder deletes nothing."""


class InvalidSet(Exception):
    """A set that must not be applied, with every error in it."""

    def __init__(self, errors: tuple[SourceError, ...]) -> None:
        super().__init__("; ".join(f"{error.file}:{error.line}: {error.message}" for error in errors))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class Applied:
    """What happened to one document of an apply or delete."""

    key: ObjectKey
    outcome: str
    """`created`, `configured`, `unchanged`, `deleted`, as kubectl prints."""


class Source(Protocol):
    """Where desired objects are written by people, for the control API (files mode only)."""

    def source_state(self) -> SourceState: ...

    def refresh_source(self) -> None:
        """Look at the source now: somebody says that it has changed."""
        ...

    async def apply_documents(self, text: str, name: str, author: str = "") -> tuple[Applied, ...]:
        """Write documents into the source as one atomic set, without waiting for rest. InvalidSet if any is wrong.

        `author`: `Name <email>` of who asks, for a source that keeps it.
        """
        ...

    async def delete_documents(self, keys: tuple[ObjectKey, ...], author: str = "") -> tuple[Applied, ...]:
        """Remove documents from the source. KeyError names one that isn't there."""
        ...


@dataclass(slots=True)
class AgentSession:
    """What one agent reported last, merged; times are the loop's monotonic seconds."""

    node: str
    connected: bool = False
    disconnected_at: float | None = None
    """Since when its stream is broken; None while it is open, or was never opened."""
    last_seen: float = 0.0
    report: Report | None = None
    """Merged: every section that any report of this boot carried."""


@dataclass(slots=True)
class GatewaySession:
    """What one gateway reported last."""

    name: str
    connected: bool = False
    last_seen: float = 0.0
    demand: Demand | None = None


@dataclass(slots=True)
class Observed:
    """The fleet as it reported itself; in the leader's memory only."""

    agents: dict[str, AgentSession] = field(default_factory=dict[str, AgentSession])
    gateways: dict[str, GatewaySession] = field(default_factory=dict[str, GatewaySession])
    answers: dict[str, AskAnswer] = field(default_factory=dict[str, AskAnswer])
    """By ask id; the loop takes them out."""
    highest_term: int = 0
    """The highest term that anybody reported."""


class Board(Protocol):
    """Between the reconciler's loop and the fleet API; one event loop, no locks."""

    @property
    def order(self) -> Order: ...

    def on_report(self, node: str, report: Report) -> ReportAnswer:
        """Merge a report and wake the loop when it matters. NameTaken of another machine than the node's."""
        ...

    def on_beat(self, node: str, report: Report) -> ReportAnswer | None:
        """`on_report` of one that leaves out all that didn't change, from whom the node is known by. None, and nothing
        done, of any other."""
        ...

    def on_demand(self, gateway: str, demand: Demand) -> DemandAnswer: ...

    def on_cancel(self, gateway: str, cancel: Cancel) -> int:
        """Tell all other gateways that are connected; how many these are."""
        ...

    def on_answer(self, node: str, answer: AskAnswer) -> None:
        """Keep the answer of an ask that is open; others are dropped."""
        ...

    def on_wanted(self, node: str, wanted: Wanted) -> WantedAnswer:
        """Where a node gets a blob that it lacks."""
        ...

    def watch_assignments(self, node: str, boot: str) -> AsyncIterator[Assignments | None]:
        """The newest snapshot now and after each change; None every `KEEPALIVE_SECONDS`. Marks the session connected
        while it is iterated. A slow reader gets the newest only. NameTaken as `on_report`; an empty `boot` is
        believed."""
        ...

    def watch_endpoints(self, gateway: str) -> AsyncIterator[Endpoints | None]: ...

    def may_be_there(self, gateway: str) -> bool:
        """Whether it was heard in the last minutes, or could not have been."""
        ...


class Asker(Protocol):
    """For the control API: questions that only a node can answer."""

    async def ask(self, node: str, ask: Ask) -> AskAnswer:
        """TimeoutError after the ask's own time; TooManyAsks."""
        ...


class Explainer(Protocol):
    """For the control API: the decision in full, computed when asked, by the functions that decide."""

    def explain(self, key: ObjectKey) -> tuple[str, dict[str, Any]]:
        """Text for people and the same as data. KeyError if there is no such object."""
        ...

    async def forecast(self, documents: tuple[Kind, ...]) -> tuple[str, dict[str, Any]]:
        """What these documents would come to; without any, what is about to happen. Nothing is written."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether as many forecasts are asked for as may wait."""
        ...

    def objects(self) -> Mapping[ObjectKey, Kind]:
        """All objects as the loop saw them last, status included."""
        ...

    async def wait_objects_changed(self, timeout_seconds: float) -> bool: ...

    def events(self, key: ObjectKey) -> tuple[ToldEvent, ...]: ...

    def gateways(self) -> tuple[GatewaySession, ...]: ...

    def watched_seconds(self) -> float:
        """For how long gateways could have been heard by this leader."""
        ...

    def table_order(self) -> Order | None:
        """Order of the table that gateways are sent; None before this leader has seen enough to publish one."""
        ...

    def progress(self, key: ObjectKey) -> dict[str, Any]:
        """Live progress of an Instance or Placement, for `covey up --wait`; empty when there is none. Never stored.

        Keys: `step`, `doneBytes`, `totalBytes`, `bytesPerSecond`; `secondsLeft` while it moves.
        """
        ...
